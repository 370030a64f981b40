#!/usr/bin/env bash
# github.com/DataDog/dd-trace-go/v2 v2.10.0, v2.11.0 and v2.12.0.
# Up to v2.10.0 each goroutine in a span has the label "local root span id" beside "span id", both decimal; from v2.11.0 on only the
# latter, with no label of a trace: a sample has a span, and nothing of the request that it belongs to.
# A good guess: labels that profilers read stay within a major version, and a reader can know decimal IDs by the root span's label.
# Seen: {"local root span id":"…", "span id":"…", "trace endpoint":"request"}, then {"span id":"…", "trace endpoint":"request"}.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS='-modcacherw -trimpath' GOWORK=off

cat >main.go <<'GO'
package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/ext"
	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
)

type silent struct{}

func (silent) Log(string) {}

func main() {
	tracer.Start(tracer.WithProfilerCodeHotspots(true), tracer.WithProfilerEndpoints(true), tracer.WithLogger(silent{}))
	defer tracer.Stop()
	root, ctx := tracer.StartSpanFromContext(context.Background(), "request", tracer.SpanType(ext.SpanTypeWeb))
	defer root.Finish()
	child, _ := tracer.StartSpanFromContext(ctx, "child")
	defer child.Finish()
	var goroutines bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&goroutines, 1)
	labels := regexp.MustCompile(`# labels: (.*"span id".*)`).FindSubmatch(goroutines.Bytes())
	fmt.Printf("%s\n", regexp.MustCompile(`"\d+"`).ReplaceAll(labels[1], []byte(`"…"`)))
}
GO
run() {
	printf 'module finding\ngo 1.25\n' >go.mod
	rm -f go.sum
	go get "github.com/DataDog/dd-trace-go/v2@$1" 2>/dev/null
	go mod tidy 2>/dev/null
	DD_TRACE_AGENT_URL=unix:///nonexistent.socket DD_INSTRUMENTATION_TELEMETRY_ENABLED=false go run . 2>/dev/null
}

got=$(run v2.10.0; run v2.11.0; run v2.12.0)
expected='{"local root span id":"…", "span id":"…", "trace endpoint":"request"}
{"span id":"…", "trace endpoint":"request"}
{"span id":"…", "trace endpoint":"request"}'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the labels of a span"; exit 1; }
echo "ok: from v2.11.0 on, goroutines have no label of the root span"
