#!/usr/bin/env bash
# @opentelemetry/core 2.12.1 (JavaScript), go.opentelemetry.io/otel v1.47.0, opentelemetry-api 1.45.2 (Python): traceparent.
# W3C reserves six bits of the flags for later and asks receivers to ignore them. With one of them set, JavaScript passes on a
# header whose flags have three digits ("0ff"), which the next service refuses, and Go starts a new trace at once.
# A good guess: unknown flags are passed on or cleared; they never end a trace.
# Seen: "-0ff" and "-011" from JavaScript, nothing from Go; Python passes them on.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-api==1.45.2
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts @opentelemetry/core@2.12.1 @opentelemetry/api@1.9.1

cat >main.cjs <<'JS'
const { ROOT_CONTEXT, defaultTextMapGetter, defaultTextMapSetter } = require('@opentelemetry/api')
const { W3CTraceContextPropagator } = require('@opentelemetry/core')
const propagator = new W3CTraceContextPropagator()
const hop = traceparent => {
  const carrier = {}
  propagator.inject(propagator.extract(ROOT_CONTEXT, { traceparent }, defaultTextMapGetter), carrier, defaultTextMapSetter)
  return carrier.traceparent
}
for (const flags of ['01', '05', '11', 'ff']) {
  const first = hop(`00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-${flags}`)
  console.log(`JavaScript ${flags}: ${first?.slice(53)}, and after a second hop: ${hop(first)?.slice(53)}`)
}
JS
cat >main.py <<'PY'
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

propagator = TraceContextTextMapPropagator()
for flags in "01", "05", "11", "ff":
    carrier = {}
    header = f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"
    propagator.inject(carrier, propagator.extract({"traceparent": header}, Context()))
    print(f"Python {flags}: {carrier.get('traceparent', '')[53:]}")
PY
export GOFLAGS='-modcacherw -trimpath' GOPATH="$work/go" GOWORK=off
cat >go.mod <<'MOD'
module finding
go 1.25
MOD
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/propagation"
)

func main() {
	p := propagation.TraceContext{}
	for _, flags := range []string{"01", "05", "11", "ff"} {
		in := propagation.MapCarrier{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags}
		out := propagation.MapCarrier{}
		p.Inject(p.Extract(context.Background(), in), out)
		result := "no trace"
		if header := out["traceparent"]; header != "" {
			result = header[53:]
		}
		fmt.Printf("Go %s: %s\n", flags, result)
	}
}
GO
go get go.opentelemetry.io/otel@v1.47.0 2>/dev/null
got=$(node main.cjs; venv/bin/python main.py; go run .)

expected='JavaScript 01: 01, and after a second hop: 01
JavaScript 05: 05, and after a second hop: 05
JavaScript 11: 011, and after a second hop: undefined
JavaScript ff: 0ff, and after a second hop: undefined
Python 01: 01
Python 05: 05
Python 11: 11
Python ff: ff
Go 01: 01
Go 05: no trace
Go 11: no trace
Go ff: no trace'
diff <(echo "$expected") <(echo "$got") || { echo "changed: reserved flags of traceparent"; exit 1; }
echo "ok: reserved flags of traceparent end the trace in Go and one hop after JavaScript"
