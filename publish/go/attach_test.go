package otelctx

import (
	"context"
	"encoding/hex"
	"reflect"
	"runtime/pprof"
	"testing"
	"time"

	"repository.invalid/publish/go/internal/goroutine"
	"repository.invalid/publish/go/internal/labelstest"
)

var (
	trace = TraceID{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c}
	span  = SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}
)

const (
	traceDigits = "0af7651916cd43dd8448eb211c80319c"
	spanDigits  = "b7ad6b7169203331"
)

func TestLabelsAreThoseOfTheExtent(t *testing.T) {
	if !goroutine.Exact {
		t.Skip("built with otelctx_nolinkname")
	}
	outer := pprof.WithLabels(context.Background(), pprof.Labels("worker", "7"))
	pprof.SetGoroutineLabels(outer)
	defer pprof.SetGoroutineLabels(context.Background())
	// A context that is not the goroutine's: pprof.Do would leave the goroutine without labels.
	ctx := pprof.WithLabels(context.Background(), pprof.Labels("queue", "q"))
	Do(ctx, trace, span, func(ctx context.Context) {
		within := map[string]string{
			"trace_id": traceDigits, "span_id": spanDigits, "http.route": "/cart", "zone": "z", "queue": "q",
		}
		labelstest.Expect(t, "within", within)
		inherited := make(chan map[string]string)
		go func() { inherited <- labelstest.Current() }()
		if found := <-inherited; !reflect.DeepEqual(found, within) {
			t.Errorf("a new goroutine has %v", found)
		}
		AddLabels(ctx, "user.tier", "gold")
		within["user.tier"] = "gold"
		labelstest.Expect(t, "more", within)
		// Without the IDs of the caller's.
		Do(context.Background(), TraceID{}, span, func(context.Context) {
			labelstest.Expect(t, "no trace", map[string]string{"a": "b"})
		}, "a", "b")
		labelstest.Expect(t, "after the inner one", within)
	}, "zone", "z", "http.route", "/cart")
	labelstest.Expect(t, "after", map[string]string{"worker": "7"})
}

func TestLabelsAreRestoredAfterAPanic(t *testing.T) {
	func() {
		defer func() { recover() }()
		Do(context.Background(), trace, span, func(context.Context) { panic("expected") })
	}()
	labelstest.Expect(t, "after a panic", nil)
}

func TestALabelWithoutAValuePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		labelstest.Expect(t, "after it", nil)
	}()
	Attach(context.Background(), trace, span, "http.route")
}

func TestDigitsAreThoseOfEncodingHex(t *testing.T) {
	var trace TraceID
	var span SpanID
	for number := 0; number < 256; number++ {
		for at := range trace {
			trace[at] = byte(number + 31*at)
		}
		for at := range span {
			span[at] = byte(number + 17*at)
		}
		expected := hex.EncodeToString(trace[:]) + hex.EncodeToString(span[:])
		if found := hexDigits(trace, span); found != expected {
			t.Fatalf("%s, not %s", found, expected)
		}
	}
}

// byHand does with runtime/pprof alone what Attach and Detach do, with strings that exist already.
func byHand(ctx context.Context, labels ...string) {
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels(labels...)))
	pprof.SetGoroutineLabels(ctx)
}

func TestAttachingAllocatesNoMoreThanByHand(t *testing.T) {
	if labelstest.Race {
		t.Skip("the race detector allocates")
	}
	ctx := context.Background()
	attach := testing.AllocsPerRun(1000, func() {
		_, attached := Attach(ctx, trace, span)
		attached.Detach()
	})
	hand := testing.AllocsPerRun(1000, func() {
		byHand(ctx, "trace_id", hex.EncodeToString(trace[:]), "span_id", hex.EncodeToString(span[:]))
	})
	prepared := testing.AllocsPerRun(1000, func() { byHand(ctx, "trace_id", traceDigits, "span_id", spanDigits) })
	sorted := testing.AllocsPerRun(1000, func() { byHand(ctx, "span_id", spanDigits, "trace_id", traceDigits) })
	t.Logf("Attach allocates %v times; by hand %v, with strings that exist %v, and in the cheaper order %v", attach, hand, prepared, sorted)
	if attach >= hand {
		t.Errorf("Attach allocates %v times, by hand %v", attach, hand)
	}
	// Besides the digits, no more than by hand. Since Go 1.24, the cheaper order makes up for them.
	if attach != sorted+1 || (prepared > sorted && attach > prepared) {
		t.Errorf("Attach allocates %v times, by hand with strings that exist %v or %v", attach, prepared, sorted)
	}
}

// BenchmarkAttachAndDetach compares Attach and Detach with the same labels by hand: each in short batches in turn, of which the
// fastest counts, so that other work of the machine does not. The bound of docs/benchmarks.md is 1.3 for x-of-prepared.
func BenchmarkAttachAndDetach(b *testing.B) {
	ctx := context.Background()
	b.ReportAllocs()
	ways := []struct {
		name  string
		batch func()
	}{
		{"attach", func() {
			_, attached := Attach(ctx, trace, span)
			attached.Detach()
		}},
		{"by-hand", func() {
			byHand(ctx, "trace_id", hex.EncodeToString(trace[:]), "span_id", hex.EncodeToString(span[:]))
		}},
		{"prepared", func() { byHand(ctx, "trace_id", traceDigits, "span_id", spanDigits) }},
		// The keys in the order that is cheaper for runtime/pprof.
		{"sorted", func() { byHand(ctx, "span_id", spanDigits, "trace_id", traceDigits) }},
	}
	const size = 1000
	fastest := make([]time.Duration, len(ways))
	for number := 0; number < b.N; number++ {
		for at, way := range ways {
			start := time.Now()
			for repeated := 0; repeated < size; repeated++ {
				way.batch()
			}
			if took := time.Since(start); fastest[at] == 0 || took < fastest[at] {
				fastest[at] = took
			}
		}
	}
	for at, way := range ways {
		b.ReportMetric(float64(fastest[at].Nanoseconds())/size, "ns/"+way.name)
		b.ReportMetric(float64(fastest[0])/float64(fastest[at]), "x-of-"+way.name)
	}
}
