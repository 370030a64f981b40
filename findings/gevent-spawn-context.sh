#!/usr/bin/env bash
# gevent 26.9.0 with opentelemetry-sdk 1.45.2 (Python).
# gevent supports contextvars, but every greenlet starts with an empty context: work spawned in a request has no current span.
# eventlet 0.41.3 does the same, in pools too.
# A good guess: gevent.spawn is to greenlets what asyncio.create_task is to tasks, which copies the context.
# Seen: the task has the request's span; greenlets have none unless copy_context().run is spawned.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check gevent==26.9.0 eventlet==0.41.3 opentelemetry-sdk==1.45.2

cat >main.py <<'PY'
import asyncio
import contextvars
import warnings

warnings.simplefilter("ignore")
import eventlet
import gevent
import gevent.pool
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


def current():
    return getattr(trace.get_current_span(), "name", None)


async def task():
    async def body():
        return current()

    return await asyncio.create_task(body())


with TracerProvider().get_tracer("t").start_as_current_span("request"):
    print("asyncio.create_task:", asyncio.run(task()))
    print("gevent.spawn:", gevent.spawn(current).get())
    print("gevent.pool.Pool:", gevent.pool.Pool(1).spawn(current).get())
    print("gevent.spawn with copy_context:", gevent.spawn(contextvars.copy_context().run, current).get())
    print("eventlet.GreenPool:", eventlet.GreenPool(1).spawn(current).wait())
PY
got=$(venv/bin/python main.py)

expected='asyncio.create_task: request
gevent.spawn: None
gevent.pool.Pool: None
gevent.spawn with copy_context: request
eventlet.GreenPool: None'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the context of new greenlets"; exit 1; }
echo "ok: a greenlet starts without the current span"
