#!/usr/bin/env bash
# github.com/DataDog/dd-trace-go/v2 v2.12.0.
# SetTag(ext.ResourceName, …) sets the goroutine's profiler labels to those of the span's own context: what pprof.Do has set since
# the span started is gone, for the rest of pprof.Do's function. Other tags leave labels alone.
# A good guess: naming the resource of a span adds or changes one label.
# Seen: {"query":"q", "span id":"…"}, then {"span id":"…", "trace endpoint":"GET /cart"}.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS='-modcacherw -trimpath' GOWORK=off

cat >go.mod <<'MOD'
module finding
go 1.25
MOD
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

var (
	labels = regexp.MustCompile(`# labels: (.*)`)
	number = regexp.MustCompile(`"span id":"\d+"`)
)

type silent struct{}

func (silent) Log(string) {}

// show prints the labels of the only goroutine that has a span.
func show(where string) {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	found := "none"
	for _, m := range labels.FindAllStringSubmatch(b.String(), -1) {
		if number.MatchString(m[1]) {
			found = number.ReplaceAllString(m[1], `"span id":"…"`)
		}
	}
	fmt.Printf("%s: %s\n", where, found)
}

func main() {
	tracer.Start(tracer.WithProfilerCodeHotspots(true), tracer.WithProfilerEndpoints(true), tracer.WithLogger(silent{}))
	defer tracer.Stop()
	span, ctx := tracer.StartSpanFromContext(context.Background(), "request", tracer.SpanType(ext.SpanTypeWeb))
	defer span.Finish()
	pprof.Do(ctx, pprof.Labels("query", "q"), func(context.Context) {
		span.SetTag("user.tier", "gold")
		show("after another tag")
		span.SetTag(ext.ResourceName, "GET /cart")
		show("after the resource's name")
	})
}
GO
go get github.com/DataDog/dd-trace-go/v2@v2.12.0 2>/dev/null
go mod tidy 2>/dev/null
got=$(DD_TRACE_AGENT_URL=unix:///nonexistent.socket DD_INSTRUMENTATION_TELEMETRY_ENABLED=false go run . 2>/dev/null)

expected='after another tag: {"query":"q", "span id":"…", "trace endpoint":"request"}
after the resource'"'"'s name: {"span id":"…", "trace endpoint":"GET /cart"}'
diff <(echo "$expected") <(echo "$got") || { echo "changed: labels after a resource's name"; exit 1; }
echo "ok: a resource's name that is set late removes the labels that pprof.Do has set within the span"
