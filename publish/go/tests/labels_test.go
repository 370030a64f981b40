// Package tests has tests of the modules in publish/go with the newest versions of what they work beside. It is not published.
package tests

import (
	"context"
	"reflect"
	"runtime/pprof"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"repository.invalid/publish/go/internal/labelstest"
)

type labels = map[string]string

func expect(t *testing.T, where string, expected labels) {
	t.Helper()
	if found := labelstest.Current(); !reflect.DeepEqual(found, expected) {
		t.Errorf("%s: the goroutine has the labels %v, not %v", where, found, expected)
	}
}

// with returns the labels of a span, with more.
func with(span trace.Span, more ...string) labels {
	labels := labels{"trace_id": span.SpanContext().TraceID().String(), "span_id": span.SpanContext().SpanID().String()}
	for at := 0; at < len(more); at += 2 {
		labels[more[at]] = more[at+1]
	}
	return labels
}

// inGoroutine runs f in a goroutine without labels.
func inGoroutine(f func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		pprof.SetGoroutineLabels(context.Background())
		f()
	}()
	<-done
}
