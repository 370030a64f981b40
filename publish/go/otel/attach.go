package otelctxotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	otelctx "repository.invalid/publish/go"
)

// SpanIDs returns the IDs of the span in a context; zeroes if it has none. It is what the middlewares for net/http and gRPC take
// to find the span.
func SpanIDs(ctx context.Context) (otelctx.TraceID, otelctx.SpanID) {
	span := trace.SpanContextFromContext(ctx)
	return otelctx.TraceID(span.TraceID()), otelctx.SpanID(span.SpanID())
}

// Do calls f while the calling goroutine has the labels of the context, the IDs of the context's span, and the chosen
// attributes. See [otelctx.Do].
func Do(ctx context.Context, f func(context.Context), attributes ...attribute.KeyValue) {
	ctx, attached := Attach(ctx, attributes...)
	defer attached.Detach()
	f(ctx)
}

// Attach does what [Do] does before its function, until Detach is called on the same goroutine. See [otelctx.Attach].
func Attach(ctx context.Context, attributes ...attribute.KeyValue) (context.Context, otelctx.Attached) {
	traceID, spanID := SpanIDs(ctx)
	if len(attributes) == 0 {
		return otelctx.Attach(ctx, traceID, spanID)
	}
	labels := make([]string, 0, 2*len(attributes))
	for _, attribute := range attributes {
		labels = append(labels, string(attribute.Key), attribute.Value.Emit())
	}
	return otelctx.Attach(ctx, traceID, spanID, labels...)
}
