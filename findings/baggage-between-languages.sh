#!/usr/bin/env bash
# opentelemetry-api 1.45.2 (Python), @opentelemetry/core 2.12.1 (JavaScript), go.opentelemetry.io/otel v1.47.0: W3C baggage.
# Python writes a space as "+", which only Python reads back as a space. Python takes a property for a part of the value
# and escapes it on the way out; JavaScript drops members with an empty value; Go keeps 64 of 100 members without an error.
# A good guess: what one SDK's propagator injects, another's extracts unchanged.
# Seen: see "expected" below, a line for each header and SDK.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-api==1.45.2
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts @opentelemetry/core@2.12.1 @opentelemetry/api@1.9.1

cat >main.py <<'PY'
from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

propagator = W3CBaggagePropagator()
carrier = {}
propagator.inject(carrier, baggage.set_baggage("user", "Ann Lee", Context()))
print(f"Python writes a space: {carrier['baggage']}")
for what, header in [("space", carrier["baggage"]), ("property", "user=7;ttl=60"), ("empty", "user="),
                     ("100 members", ",".join(f"k{i}=v" for i in range(100)))]:
    context = propagator.extract({"baggage": header}, Context())
    entries = baggage.get_all(context)
    out = {}
    propagator.inject(out, context)
    print(f"Python, {what}: {len(entries)}", *([entries.get("user"), out.get("baggage")] if len(entries) < 2 else []))
PY
cat >main.cjs <<'JS'
const { ROOT_CONTEXT, defaultTextMapGetter, propagation } = require('@opentelemetry/api')
const { W3CBaggagePropagator } = require('@opentelemetry/core')
const propagator = new W3CBaggagePropagator()
for (const [what, header] of Object.entries({
  space: 'user=Ann+Lee', property: 'user=7;ttl=60', empty: 'user=',
  '100 members': Array.from({ length: 100 }, (_, i) => `k${i}=v`).join(','),
})) {
  const entries = propagation.getBaggage(propagator.extract(ROOT_CONTEXT, { baggage: header }, defaultTextMapGetter))
    ?.getAllEntries() ?? []
  console.log(`JavaScript, ${what}: ${entries.length}`, ...entries.length === 1 ? [entries[0][1].value] : [])
}
JS
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

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
)

func main() {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("k%d=v", i))
	}
	for _, c := range [][2]string{{"space", "user=Ann+Lee"}, {"property", "user=7;ttl=60"}, {"empty", "user="}, {"100 members", strings.Join(many, ",")}} {
		b := baggage.FromContext(propagation.Baggage{}.Extract(context.Background(), propagation.MapCarrier{"baggage": c[1]}))
		fmt.Printf("Go, %s: %d %s\n", c[0], b.Len(), b.Member("user").Value())
	}
}
GO
go get go.opentelemetry.io/otel@v1.47.0 2>/dev/null
got=$(venv/bin/python main.py; node main.cjs; go run . 2>/dev/null)
got=$(sed 's/ *$//' <<<"$got")

expected='Python writes a space: user=Ann+Lee
Python, space: 1 Ann Lee user=Ann+Lee
Python, property: 1 7;ttl=60 user=7%3Bttl%3D60
Python, empty: 1  user=
Python, 100 members: 100
JavaScript, space: 1 Ann+Lee
JavaScript, property: 1 7
JavaScript, empty: 0
JavaScript, 100 members: 100
Go, space: 1 Ann+Lee
Go, property: 1 7
Go, empty: 1
Go, 100 members: 64'
diff <(echo "$expected") <(echo "$got") || { echo "changed: baggage between languages"; exit 1; }
echo "ok: baggage with spaces, properties, empty values or 100 members differs by SDK"
