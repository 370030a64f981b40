// Package auto publishes the process context when a program starts, with what [otelctx.Detect] finds:
//
//	import _ "repository.invalid/publish/go/auto"
//
// If that fails, the program runs as it would without, and the default logger of log/slog warns. Where the program knows more,
// [otelctx.Modify] adds to the context, and Publish of the module publish/go/otel adds the attributes of a resource.
//
// Programs with another publisher, such as dd-trace-go, should not import it: a process has one process context.
package auto

import (
	"log/slog"

	otelctx "repository.invalid/publish/go"
)

func init() {
	context := otelctx.Detect()
	if err := context.MalformedVariable(); err != nil {
		slog.Warn(err.Error())
	}
	if err := otelctx.Publish(context); err != nil {
		slog.Warn(err.Error())
	}
}
