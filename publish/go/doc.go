// Package otelctx publishes what a Go program is (process context) and what each of its goroutines is working on (profiler
// labels), so that profilers, debuggers and security agents can read both from outside. It needs no cgo and no other module.
//
// The process context (OTEP 4719) has the attributes of the program's OpenTelemetry resource:
//
//	err := otelctx.Publish(otelctx.Detect().With(otelctx.String("service.version", "1.2")))
//
// In Go, what a goroutine works on is in its profiler labels: the process context announces the schema
// go_pprof_labels_v1, and readers find the labels of the goroutine that a thread runs. [Do] sets them for a trace and a span:
//
//	otelctx.Do(ctx, traceID, spanID, func(ctx context.Context) { … }, "http.route", "/cart")
//
// For spans of OpenTelemetry's SDK, use the module publish/go/otel; for routes of net/http, the package otelctxhttp; for methods
// of gRPC, the module publish/go/grpc.
//
// On systems other than Linux, everything compiles and every call succeeds, but no process context is published.
package otelctx
