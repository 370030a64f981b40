#!/usr/bin/env bash
# protobuf 7.36.2 (Python) with opentelemetry-proto 1.45.2.
# OTLP/JSON writes ids in hexadecimal, protobuf's own JSON mapping in base64. Hexadecimal digits are valid base64, so
# google.protobuf.json_format reads an OTLP/JSON document without an error and makes ids of 24 and 12 bytes of it.
# A good guess: the official parser with the official schema reads the official format, or refuses it.
# Seen: 24 and 12 bytes; what is sent on has ids that receivers refuse.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-proto==1.45.2 protobuf==7.36.2

got=$(venv/bin/python - <<'PY'
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

text = """{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET",
  "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331"}]}]}]}"""
span = json_format.Parse(text, TracesData()).resource_spans[0].scope_spans[0].spans[0]
print(len(span.trace_id), len(span.span_id), span.trace_id.hex())
span.trace_id = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
print(json_format.MessageToDict(span)["traceId"])
PY
)

expected='24 12 d1a7fbeb9d7dd7a71de3775df38e3c79bdb5d5cf34df5f5c
CvdlGRbNQ92ESOshHIAxnA=='
diff <(echo "$expected") <(echo "$got") || { echo "changed: ids of OTLP/JSON read by protobuf"; exit 1; }
echo "ok: protobuf's JSON parser makes 24 bytes of an OTLP/JSON trace id, without an error"
