// Package otelctxotel publishes the spans and the resource of OpenTelemetry's SDK for Go, so that profilers see from outside
// which trace each goroutine works on.
//
//	otelctxotel.Publish(resource)
//	ctx, span := tracer.Start(ctx, "checkout")
//	defer span.End()
//	otelctxotel.Do(ctx, func(ctx context.Context) { … }, attribute.String("http.route", "/checkout"))
//
// [Do] and [Attach] set the profiler labels of the goroutine for an extent of code. [NewSpanProcessor] does it for every span,
// without changes to the code that starts them, within the limits that it names.
package otelctxotel
