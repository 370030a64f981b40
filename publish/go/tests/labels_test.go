// Package tests has tests of the modules in publish/go with the newest versions of what they work beside. It is not published.
package tests

import (
	"go.opentelemetry.io/otel/trace"

	"repository.invalid/publish/go/internal/labelstest"
)

type labels = map[string]string

// with returns the labels of a span, with more.
func with(span trace.Span, more ...string) labels {
	context := span.SpanContext()
	return labelstest.Of(context.TraceID(), context.SpanID(), more...)
}
