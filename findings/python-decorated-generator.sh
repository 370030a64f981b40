#!/usr/bin/env bash
# opentelemetry-api 1.45.2 and opentelemetry-sdk 1.45.2 (Python).
# start_as_current_span is also a decorator, and knows async functions. On a generator, sync or async, the span begins and
# ends before the first line of the body runs: it is exported with no time in it, and what the body starts has no parent.
# A good guess: as it handles coroutines, it spans the iteration, or it refuses generators.
# Seen: inside the body the current span is None; for the async function it is the decorator's.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check opentelemetry-sdk==1.45.2

cat >main.py <<'PY'
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("t")


def show(where):
    ended = [s.name for s in exporter.get_finished_spans()]
    print(f"{where}: current {getattr(trace.get_current_span(), 'name', None)}, ended {ended}")
    exporter.clear()


@tracer.start_as_current_span("function")
async def function():
    show("async function")


@tracer.start_as_current_span("rows")
def rows():
    show("generator")
    yield 1


@tracer.start_as_current_span("stream")
async def stream():
    show("async generator")
    yield 1


async def main():
    await function()
    exporter.clear()
    for _ in rows():
        pass
    async for _ in stream():
        pass


asyncio.run(main())
PY
got=$(venv/bin/python main.py)

expected="async function: current function, ended []
generator: current None, ended ['rows']
async generator: current None, ended ['stream']"
diff <(echo "$expected") <(echo "$got") || { echo "changed: start_as_current_span on generators"; exit 1; }
echo "ok: a span that decorates a generator ends before its body runs"
