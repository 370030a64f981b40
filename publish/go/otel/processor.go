package otelctxotel

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	otelctx "repository.invalid/publish/go"
	"repository.invalid/publish/go/internal/goroutine"
)

const (
	// maxSpans is the number of active spans whose labels are known. It bounds the memory for spans that never end.
	maxSpans = 100_000
	// maxLeft is the number of ended spans whose labels a goroutine may still have.
	maxLeft = 1000
)

// SpanProcessor sets profiler labels when spans start, and restores the earlier ones when they end.
//
// It can only do what OnStart and OnEnd know:
//
//   - The labels are those of the goroutine that starts the span, and of goroutines that it starts later. The context that the
//     tracer returns does not carry them: after [runtime/pprof.Do] or SetGoroutineLabels with it, they are gone until the next span.
//   - A span that is ended on another goroutine leaves its labels on the goroutine that started it, until the next span starts
//     there.
//   - A span that was started elsewhere and is only used here, from a context, has no labels here. Use [Do].
//   - Spans that are not recorded reach no processor; goroutines keep the labels of the last recorded one around them.
//   - Labels that the goroutine has and the parent's context has not are hidden during the span, as by [runtime/pprof.Do].
//   - Attributes that are set after the start are not seen, such as the route with otelhttp.
//   - Of more than 100,000 active spans, the rest has no labels.
//
// Programs that are built with the tag otelctx_nolinkname get a processor that does nothing.
type SpanProcessor struct {
	keys []attribute.Key

	lock sync.Mutex
	// spans has the active spans; labels, which span set the labels that a goroutine has.
	spans  map[spanKey]*attached
	labels map[goroutine.Saved]*attached
	// left has the labels of the newest spans that did not end where they started, or in the order of their starts: a ring.
	left []goroutine.Saved
	// oldest is the index of the oldest in the ring.
	oldest int
}

var _ sdk.SpanProcessor = (*SpanProcessor)(nil)

type spanKey struct {
	trace trace.TraceID
	span  trace.SpanID
}

func keyOf(span trace.SpanContext) spanKey { return spanKey{span.TraceID(), span.SpanID()} }

// attached has what a span has set.
type attached struct {
	// chosen has the names and values of attributes, of its parents, too.
	chosen []string
	// before and own are the labels of the goroutine before the span, and with it.
	before, own goroutine.Saved
	// outer is the span that had set before, if any.
	outer   *attached
	isEnded bool
}

// skipEnded makes before the labels of a span that is active. Spans can end in any order.
func (a *attached) skipEnded() {
	for a.outer != nil && a.outer.isEnded {
		a.before, a.outer = a.outer.before, a.outer.outer
	}
}

// NewSpanProcessor returns a processor that sets labels for the IDs of a span, and for those of its attributes at its start
// that have one of the names. Register it before processors that take long. Children have the attributes of their parents.
func NewSpanProcessor(keys ...attribute.Key) *SpanProcessor {
	return &SpanProcessor{
		keys:   keys,
		spans:  make(map[spanKey]*attached),
		labels: make(map[goroutine.Saved]*attached),
	}
}

// OnStart sets the labels.
func (p *SpanProcessor) OnStart(parent context.Context, span sdk.ReadWriteSpan) {
	if !goroutine.Exact {
		return
	}
	started := &attached{before: goroutine.Save(parent)}
	p.lock.Lock()
	if len(p.spans) >= maxSpans {
		p.lock.Unlock()
		return
	}
	if outer := p.spans[keyOf(span.Parent())]; outer != nil {
		started.chosen = outer.chosen
	}
	started.outer = p.labels[started.before]
	p.lock.Unlock()

	started.chosen = p.choose(started.chosen, span.Attributes())
	context := span.SpanContext()
	otelctx.Attach(parent, otelctx.TraceID(context.TraceID()), otelctx.SpanID(context.SpanID()), started.chosen...)
	started.own = goroutine.Save(parent)

	p.lock.Lock()
	defer p.lock.Unlock()
	p.spans[keyOf(context)] = started
	p.labels[started.own] = started
}

// choose adds the chosen attributes to names and values, which it does not change.
func (p *SpanProcessor) choose(inherited []string, attributes []attribute.KeyValue) []string {
	// So that append copies.
	chosen := inherited[:len(inherited):len(inherited)]
	for _, attribute := range attributes {
		for _, key := range p.keys {
			if attribute.Key == key {
				chosen = append(chosen, string(key), attribute.Value.Emit())
			}
		}
	}
	return chosen
}

// OnEnd restores the labels from before the span, if the calling goroutine has those of the span.
func (p *SpanProcessor) OnEnd(span sdk.ReadOnlySpan) {
	p.lock.Lock()
	defer p.lock.Unlock()
	key := keyOf(span.SpanContext())
	ended := p.spans[key]
	if ended == nil {
		return
	}
	ended.isEnded = true
	delete(p.spans, key)
	ended.skipEnded()
	if goroutine.Save(nil) == ended.own {
		delete(p.labels, ended.own)
		ended.before.Restore()
		return
	}
	// The next span to start where these labels are restores those from before them.
	if len(p.left) < maxLeft {
		p.left = append(p.left, ended.own)
		return
	}
	delete(p.labels, p.left[p.oldest])
	p.left[p.oldest] = ended.own
	p.oldest = (p.oldest + 1) % maxLeft
}

// Shutdown does nothing: spans that are active still restore labels.
func (*SpanProcessor) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (*SpanProcessor) ForceFlush(context.Context) error { return nil }
