package otelctxotel

import (
	"context"
	"fmt"
	"reflect"
	"runtime/pprof"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	otelctx "repository.invalid/publish/go"
	"repository.invalid/publish/go/internal/goroutine"
	"repository.invalid/publish/go/internal/labelstest"
)

type labels = map[string]string

// with returns the labels of a span, with more.
func with(span trace.Span, more ...string) labels {
	context := span.SpanContext()
	return labelstest.Of(context.TraceID(), context.SpanID(), more...)
}

var background = context.Background()

func TestDoHasTheSpanAndTheChosenAttributes(t *testing.T) {
	tracer := sdk.NewTracerProvider().Tracer("")
	ctx, span := tracer.Start(background, "request")
	defer span.End()
	labelstest.InGoroutine(func() {
		Do(ctx, func(ctx context.Context) {
			labelstest.Expect(t, "within", with(span, "http.route", "/cart", "n", "7"))
			_, attached := Attach(background, attribute.Bool("b", true))
			labelstest.Expect(t, "without a span", labels{"b": "true"})
			attached.Detach()
			Do(ctx, func(context.Context) { labelstest.Expect(t, "inner", with(span, "http.route", "/cart", "n", "7")) })
		}, attribute.String("http.route", "/cart"), attribute.Int("n", 7))
		labelstest.Expect(t, "after", nil)
	})
}

func TestValuesOfResourcesKeepTheirTypes(t *testing.T) {
	found := Attributes(resource.NewSchemaless(
		attribute.String("a", "text"), attribute.Bool("b", true), attribute.Int64("c", -42), attribute.Float64("d", 0.5),
		attribute.StringSlice("e", []string{"x", "y"}), attribute.BoolSlice("f", []bool{true, false}),
		attribute.Int64Slice("g", []int64{1, 2}), attribute.Float64Slice("h", []float64{0.25}), attribute.StringSlice("i", nil)))
	expected := []otelctx.Attribute{
		otelctx.String("a", "text"), otelctx.Bool("b", true), otelctx.Int64("c", -42), otelctx.Float64("d", 0.5),
		otelctx.Array("e", otelctx.StringValue("x"), otelctx.StringValue("y")),
		otelctx.Array("f", otelctx.BoolValue(true), otelctx.BoolValue(false)),
		otelctx.Array("g", otelctx.IntValue(1), otelctx.IntValue(2)),
		otelctx.Array("h", otelctx.Float64Value(0.25)), otelctx.Array("i"),
	}
	if !reflect.DeepEqual(found, expected) {
		t.Errorf("%+v\nnot %+v", found, expected)
	}
	if convertedValue(attribute.Value{}).Kind() != otelctx.KindEmpty {
		t.Error("a value that was not set")
	}
}

func TestAResourceIsAddedToAContext(t *testing.T) {
	defer otelctx.Unpublish()
	for _, key := range []string{"first", "second"} {
		if err := Publish(resource.NewSchemaless(attribute.String(key, "x"))); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	err := otelctx.Modify(func(context otelctx.ProcessContext) otelctx.ProcessContext {
		names = nil
		for _, attribute := range context.Resource() {
			names = append(names, attribute.Key)
		}
		return context
	})
	if err != nil || !reflect.DeepEqual(names[len(names)-2:], []string{"first", "second"}) {
		t.Error(err, names)
	}
}

func processed(t *testing.T, keys ...attribute.Key) (*SpanProcessor, trace.Tracer) {
	if !goroutine.Exact {
		t.Skip("built with otelctx_nolinkname")
	}
	processor := NewSpanProcessor(keys...)
	t.Cleanup(func() {
		if len(processor.spans) != 0 || len(processor.labels) != len(processor.left) || len(processor.left) > maxLeft {
			t.Errorf("%d, %d and %d spans are kept", len(processor.spans), len(processor.labels), len(processor.left))
		}
	})
	return processor, sdk.NewTracerProvider(sdk.WithSpanProcessor(processor)).Tracer("")
}

func TestTheProcessorFollowsNestedSpans(t *testing.T) {
	_, tracer := processed(t, "http.route", "db")
	labelstest.InGoroutine(func() {
		pprof.SetGoroutineLabels(pprof.WithLabels(background, pprof.Labels("worker", "7")))
		route := trace.WithAttributes(attribute.String("http.route", "/cart"), attribute.String("secret", "x"))
		ctx, outer := tracer.Start(pprof.WithLabels(background, pprof.Labels("queue", "q")), "request", route)
		labelstest.Expect(t, "outer", with(outer, "http.route", "/cart", "queue", "q"))
		_, inner := tracer.Start(ctx, "query", trace.WithAttributes(attribute.String("db", "shop")))
		labelstest.Expect(t, "inner", with(inner, "http.route", "/cart", "db", "shop", "queue", "q"))
		inner.End()
		labelstest.Expect(t, "after the inner one", with(outer, "http.route", "/cart", "queue", "q"))
		_, root := tracer.Start(ctx, "job", trace.WithNewRoot())
		labelstest.Expect(t, "another trace", with(root, "queue", "q"))
		root.End()
		outer.End()
		outer.End()
		labelstest.Expect(t, "after", labels{"worker": "7"})
	})
}

func TestSiblingsDoNotChangeEachOthersAttributes(t *testing.T) {
	_, tracer := processed(t, "a", "b")
	start := func(ctx context.Context, key attribute.Key, value string) (context.Context, trace.Span) {
		return tracer.Start(ctx, "span", trace.WithAttributes(key.String(value)))
	}
	labelstest.InGoroutine(func() {
		// Attributes of several generations, so that their list has room for more.
		parent, outer := start(background, "a", "1")
		parent, middle := start(parent, "a", "2")
		parent, inner := start(parent, "a", "3")
		first, one := start(parent, "b", "first")
		_, two := start(parent, "b", "second")
		_, child := tracer.Start(first, "child")
		labelstest.Expect(t, "a child of the first", with(child, "a", "3", "b", "first"))
		for _, span := range []trace.Span{child, two, one, inner, middle, outer} {
			span.End()
		}
		labelstest.Expect(t, "after", nil)
	})
}

func TestSpansThatEndInAnotherOrderLeaveNoLabels(t *testing.T) {
	_, tracer := processed(t)
	labelstest.InGoroutine(func() {
		ctx, outer := tracer.Start(background, "outer")
		_, first := tracer.Start(ctx, "first")
		_, second := tracer.Start(ctx, "second")
		first.End()
		labelstest.Expect(t, "the newest", with(second))
		second.End()
		labelstest.Expect(t, "the one around them", with(outer))
		_, third := tracer.Start(ctx, "third")
		outer.End()
		labelstest.Expect(t, "the last one", with(third))
		third.End()
		labelstest.Expect(t, "after", nil)
	})
}

// A long sequence of spans of which each starts before the one before ends.
func TestOverlappingSpansAreNotKept(t *testing.T) {
	processor, tracer := processed(t)
	labelstest.InGoroutine(func() {
		_, before := tracer.Start(background, "first")
		for number := 0; number < 3*maxLeft; number++ {
			_, next := tracer.Start(background, "next")
			before.End()
			before = next
		}
		depth := 0
		for outer := processor.spans[keyOf(before.SpanContext())].outer; outer != nil; outer = outer.outer {
			depth++
		}
		if depth > 2 {
			t.Errorf("%d spans that have ended are kept", depth)
		}
		before.End()
		labelstest.Expect(t, "after", nil)
	})
}

func TestASpanThatEndsElsewhereChangesNothingThere(t *testing.T) {
	_, tracer := processed(t)
	labelstest.InGoroutine(func() {
		_, span := tracer.Start(background, "span")
		labelstest.InGoroutine(func() {
			_, other := tracer.Start(background, "other")
			span.End()
			labelstest.Expect(t, "where it ends", with(other))
			other.End()
		})
		// The limit that is documented.
		labelstest.Expect(t, "where it started", with(span))
		_, next := tracer.Start(background, "next")
		next.End()
		labelstest.Expect(t, "after the next one", nil)
	})
}

func TestSpansBeyondTheLimitHaveNoLabels(t *testing.T) {
	processor, tracer := processed(t)
	labelstest.InGoroutine(func() {
		for number := 0; number < maxSpans; number++ {
			processor.spans[spanKey{span: trace.SpanID{byte(number >> 16), byte(number >> 8), byte(number)}}] = nil
		}
		_, span := tracer.Start(background, "span")
		labelstest.Expect(t, "beyond", nil)
		span.End()
		processor.spans = nil
	})
}

func ExampleDo() {
	tracer := sdk.NewTracerProvider().Tracer("shop")
	ctx, span := tracer.Start(context.Background(), "checkout")
	defer span.End()
	Do(ctx, func(ctx context.Context) {
		// A profiler sees the trace, the span and the route on the thread that runs this.
		route, _ := pprof.Label(ctx, "http.route")
		fmt.Println(route)
	}, attribute.String("http.route", "/checkout"))
	// Output: /checkout
}

func ExampleNewSpanProcessor() {
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(NewSpanProcessor("http.route")))
	// In each span of this provider, the goroutine has the IDs of the span and its route.
	provider.Tracer("shop")
}

func ExamplePublish() {
	resource := resource.NewSchemaless(attribute.String("service.name", "shop"))
	if err := Publish(resource); err != nil {
		fmt.Println(err)
	}
	defer otelctx.Unpublish()
}

// What a span costs with the processor, and without.
func BenchmarkSpan(b *testing.B) {
	for name, options := range map[string][]sdk.TracerProviderOption{
		"alone":                      nil,
		"with processor":             {sdk.WithSpanProcessor(NewSpanProcessor("http.route"))},
		"with one that does nothing": {sdk.WithSpanProcessor(ignoring{})},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			tracer := sdk.NewTracerProvider(options...).Tracer("")
			for number := 0; number < b.N; number++ {
				_, span := tracer.Start(background, "span")
				span.End()
			}
		})
	}
}

type ignoring struct{}

func (ignoring) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (ignoring) OnEnd(sdk.ReadOnlySpan)                     {}
func (ignoring) Shutdown(context.Context) error             { return nil }
func (ignoring) ForceFlush(context.Context) error           { return nil }
