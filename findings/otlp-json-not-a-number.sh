#!/usr/bin/env bash
# @opentelemetry/otlp-transformer 0.223.1 (JavaScript) and go.opentelemetry.io/collector/pdata v1.71.0 (the Collector's parser).
# One span attribute that is NaN, or a whole number from 2^63 on, makes the JSON exporter write "doubleValue": null or an
# "intValue" beyond int64. The Collector's parser refuses such a request whole, with all its spans; in protobuf both are fine.
# A good guess: JSON and protobuf carry the same attributes, and a bad attribute costs that attribute.
# Seen: two refusals; the number 2 is fine, and 2.0 is an integer like any other.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts @opentelemetry/otlp-transformer@0.223.1 \
  @opentelemetry/sdk-trace-base@2.12.1 @opentelemetry/api@1.9.1

cat >main.cjs <<'JS'
const fs = require('node:fs')
const { BasicTracerProvider } = require('@opentelemetry/sdk-trace-base')
const { JsonTraceSerializer, ProtobufTraceSerializer } = require('@opentelemetry/otlp-transformer')
const tracer = new BasicTracerProvider().getTracer('t')
for (const [name, value] of Object.entries({ two: 2.0, nan: NaN, large: 2 ** 63 })) {
  const span = tracer.startSpan('s').setAttribute('k', value)
  span.end()
  fs.writeFileSync(`${name}.json`, JsonTraceSerializer.serializeRequest([span]))
  fs.writeFileSync(`${name}.pb`, ProtobufTraceSerializer.serializeRequest([span]))
}
JS
node main.cjs
export GOFLAGS='-modcacherw -trimpath' GOPATH="$work/go" GOWORK=off
cat >go.mod <<'MOD'
module finding
go 1.25
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"

	"go.opentelemetry.io/collector/pdata/ptrace"
)

func main() {
	for _, name := range []string{"two", "nan", "large"} {
		for _, format := range []string{"json", "pb"} {
			data, err := os.ReadFile(name + "." + format)
			if err != nil {
				panic(err)
			}
			var traces ptrace.Traces
			if format == "json" {
				traces, err = (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(data)
			} else {
				traces, err = (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(data)
			}
			if err != nil {
				fmt.Println(name, format, "refused")
				continue
			}
			v, _ := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Attributes().Get("k")
			fmt.Println(name, format, v.Type(), v.AsString())
		}
	}
}
GO
go get go.opentelemetry.io/collector/pdata/ptrace@v1.71.0 2>/dev/null
got=$(go run .)

expected='two json Int 2
two pb Int 2
nan json refused
nan pb Double NaN
large json refused
large pb Double 9223372036854776000'
diff <(echo "$expected") <(echo "$got") || { echo "changed: OTLP/JSON of unusual numbers"; exit 1; }
echo "ok: one NaN attribute makes an OTLP/JSON request from JavaScript unreadable for the Collector"
