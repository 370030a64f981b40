// Tracers runs a goroutine on a thread of its own in a span of another tracer, which labels goroutines for profilers, and prints the
// thread and the IDs that the labels carry: zeros for the trace if there is none.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/ext"
	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
	otelpyroscope "github.com/grafana/otel-profiling-go"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

type silent struct{}

func (silent) Log(string) {}

// run prints what there is to compare, and works until the program ends.
func run(trace string, span string) {
	fmt.Printf("thread %d %s %s\nready\n", syscall.Gettid(), trace, span)
	for {
		runtime.KeepAlive(span)
	}
}

func datadog(options ...tracer.StartOption) {
	os.Setenv("DD_TRACE_AGENT_URL", "unix:///nonexistent.socket")
	os.Setenv("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "false")
	if err := tracer.Start(append(options, tracer.WithLogger(silent{}))...); err != nil {
		panic(err)
	}
	web := []tracer.StartSpanOption{tracer.SpanType(ext.SpanTypeWeb), tracer.ResourceName("GET /cart")}
	_, ctx := tracer.StartSpanFromContext(context.Background(), "request", web...)
	child, _ := tracer.StartSpanFromContext(ctx, "child")
	// No label has the trace.
	run(strings.Repeat("0", 32), fmt.Sprintf("%016x", child.Context().SpanID()))
}

func grafana() {
	provider := otelpyroscope.NewTracerProvider(sdk.NewTracerProvider())
	ctx, root := provider.Tracer("").Start(context.Background(), "request")
	// The labels of a child have the root span's ID.
	_, _ = provider.Tracer("").Start(ctx, "child")
	run(root.SpanContext().TraceID().String(), root.SpanContext().SpanID().String())
}

func main() {
	runtime.LockOSThread()
	switch os.Args[1] {
	case "datadog":
		datadog(tracer.WithProfilerCodeHotspots(true), tracer.WithProfilerEndpoints(true))
	case "datadog-spans":
		datadog(tracer.WithProfilerCodeHotspots(true), tracer.WithProfilerEndpoints(false))
	case "grafana":
		grafana()
	}
}
