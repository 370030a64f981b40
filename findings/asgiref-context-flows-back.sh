#!/usr/bin/env bash
# asgiref 3.13.0 (under Django and others) with opentelemetry-sdk 1.45.2, beside asyncio.to_thread.
# After sync_to_async, what the thread changed in its context is copied back to the caller: a span that a sync function
# attaches stays current in the coroutine. It cannot be detached there: its token belongs to the thread's context.
# A good guess: as with asyncio.to_thread, the thread gets a copy and its changes end with it.
# Seen: "current: query" after sync_to_async and after the failed detach, "current: None" after to_thread.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check asgiref==3.13.0 opentelemetry-sdk==1.45.2

cat >main.py <<'PY'
import asyncio
import logging
import sys
from asgiref.sync import sync_to_async
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider

logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger().handlers[0].formatter.formatException = lambda e: f"({e[0].__name__})"
tracer = TracerProvider().get_tracer("t")


def attach():
    return context.attach(trace.set_span_in_context(tracer.start_span("query")))


def show(after):
    print(f"{after}, current: {getattr(trace.get_current_span(), 'name', None)}")


async def by_thread():
    await asyncio.to_thread(attach)
    show("after to_thread")


async def by_asgiref():
    token = await sync_to_async(attach)()
    show("after sync_to_async")
    context.detach(token)
    show("after detach")


asyncio.run(by_thread())
asyncio.run(by_asgiref())
PY
got=$(venv/bin/python main.py)

expected='after to_thread, current: None
after sync_to_async, current: query
Failed to detach context
(ValueError)
after detach, current: query'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the context after sync_to_async"; exit 1; }
echo "ok: a span attached in a sync function stays current after sync_to_async"
