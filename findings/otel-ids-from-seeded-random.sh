#!/usr/bin/env bash
# opentelemetry-sdk 1.45.2 (Python) and @opentelemetry/sdk-trace-base 2.12.1 (JavaScript).
# Trace and span ids come from the language's global random generator. A program that seeds it for reproducible results
# (random.seed, node --random-seed), in every worker or at every start, gives different requests the same ids.
# A good guess: ids come from a generator of the SDK's own or from the system.
# Seen: the same trace id from each of two runs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-sdk==1.45.2
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts @opentelemetry/sdk-trace-base@2.12.1 @opentelemetry/api@1.9.1

cat >main.py <<'PY'
import random
import sys
from opentelemetry.sdk.trace import TracerProvider

if sys.argv[1] == "seeded":
    random.seed(42)
span = TracerProvider().get_tracer("t").start_span("s")
print(format(span.get_span_context().trace_id, "032x"))
PY
cat >main.cjs <<'JS'
const { BasicTracerProvider } = require('@opentelemetry/sdk-trace-base')
console.log(new BasicTracerProvider().getTracer('t').startSpan('s').spanContext().traceId)
JS
distinct() { for _ in 1 2; do "$@"; done | sort -u | wc -l; }
got="Python: $(distinct venv/bin/python main.py unseeded) distinct ids in two runs, seeded $(distinct venv/bin/python main.py seeded)
JavaScript: $(distinct node main.cjs) distinct ids in two runs, seeded $(distinct node --random-seed=42 main.cjs)"

expected='Python: 2 distinct ids in two runs, seeded 1
JavaScript: 2 distinct ids in two runs, seeded 1'
diff <(echo "$expected") <(echo "$got") || { echo "changed: where ids come from"; exit 1; }
echo "ok: a seeded random generator repeats trace ids in Python and JavaScript"
