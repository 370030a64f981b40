#!/usr/bin/env bash
# @opentelemetry/core 2.12.1 (JavaScript), go.opentelemetry.io/otel v1.47.0, opentelemetry-api 1.45.2 (Python): traceparent.
# Six bits of the flags are reserved for later versions, of which a receiver reads the bits that it knows. JavaScript passes
# them on, with three digits if the upper four bits are set ("0ff"): the next service refuses the header and starts a new trace.
# Python passes them on too, as version 00; Go clears them in version 01 and starts a new trace at once in version 00.
# A good guess: unknown flags are cleared (as W3C says) or passed on; they never end a trace.
# Seen: see "expected" below, by version and flags of the incoming header.
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
for (const flags of ['00/01', '00/05', '01/05', '01/11', '01/ff']) {
  const [version, bits] = flags.split('/')
  const first = hop(`${version}-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-${bits}`)
  console.log(`JavaScript ${flags}: ${first?.slice(53)}, and after a second hop: ${hop(first)?.slice(53)}`)
}
JS
cat >main.py <<'PY'
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

propagator = TraceContextTextMapPropagator()
for flags in "00/01", "00/05", "01/05", "01/11", "01/ff":
    carrier = {}
    version, bits = flags.split("/")
    header = f"{version}-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{bits}"
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
	"strings"

	"go.opentelemetry.io/otel/propagation"
)

func main() {
	p := propagation.TraceContext{}
	for _, flags := range []string{"00/01", "00/05", "01/05", "01/11", "01/ff"} {
		version, bits, _ := strings.Cut(flags, "/")
		in := propagation.MapCarrier{"traceparent": version + "-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + bits}
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

expected='JavaScript 00/01: 01, and after a second hop: 01
JavaScript 00/05: 05, and after a second hop: 05
JavaScript 01/05: 05, and after a second hop: 05
JavaScript 01/11: 011, and after a second hop: undefined
JavaScript 01/ff: 0ff, and after a second hop: undefined
Python 00/01: 01
Python 00/05: 05
Python 01/05: 05
Python 01/11: 11
Python 01/ff: ff
Go 00/01: 01
Go 00/05: no trace
Go 01/05: 01
Go 01/11: 01
Go 01/ff: 03'
diff <(echo "$expected") <(echo "$got") || { echo "changed: reserved flags of traceparent"; exit 1; }
echo "ok: reserved flags of traceparent end the trace in Go, or one hop after JavaScript"
