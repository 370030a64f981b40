package otelctx_test

import (
	"context"
	"fmt"
	"runtime/pprof"

	otelctx "repository.invalid/publish/go"
)

func ExamplePublish() {
	err := otelctx.Publish(otelctx.Detect().With(
		otelctx.String("service.version", "1.2"),
		otelctx.Array("http.ports", otelctx.IntValue(80), otelctx.IntValue(443)),
	))
	if err != nil {
		// The program runs as it would without; profilers find no context.
		fmt.Println(err)
	}
	defer otelctx.Unpublish()
}

// A library adds to the application's context, or publishes its own.
func ExampleModify() {
	job := otelctx.String("job.name", "nightly")
	err := otelctx.Modify(func(context otelctx.ProcessContext) otelctx.ProcessContext { return context.With(job) })
	if err == otelctx.ErrNotPublished {
		err = otelctx.Publish(otelctx.Detect().With(job))
	}
	if err != nil {
		fmt.Println(err)
	}
	defer otelctx.Unpublish()
}

func ExampleDo() {
	trace := otelctx.TraceID{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c}
	span := otelctx.SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}
	otelctx.Do(context.Background(), trace, span, func(ctx context.Context) {
		pprof.ForLabels(ctx, func(name, value string) bool {
			fmt.Println(name, value)
			return true
		})
	}, "http.route", "/cart")
	// Unordered output:
	// http.route /cart
	// span_id b7ad6b7169203331
	// trace_id 0af7651916cd43dd8448eb211c80319c
}

func ExampleAttach() {
	ctx, attached := otelctx.Attach(context.Background(), otelctx.TraceID{1}, otelctx.SpanID{2})
	defer attached.Detach()
	// Becomes known later.
	otelctx.AddLabels(ctx, "user.tier", "gold")
}
