"""Drops objects that refer to each other, and tells which of them are collected."""

import asyncio
import contextvars
import gc
import json
import sys
import types
import weakref

import otelctx

variable = contextvars.ContextVar("variable")


class Marker:
    """An object that tells whether it is there."""


def scope():
    """A suspended coroutine in a scope, whose context refers to the coroutine."""
    marker = Marker()

    @types.coroutine
    def suspended():
        yield

    async def work():
        marker.itself = coroutine
        variable.set(marker)
        with otelctx.scope(otelctx.Context(1, 2)):
            await suspended()

    coroutine = work()
    contextvars.copy_context().run(coroutine.send, None)
    return weakref.ref(marker)


def task():
    """A suspended task in a scope, which its own context refers to."""
    marker = Marker()

    async def work():
        marker.task = asyncio.current_task()
        variable.set(marker)
        with otelctx.scope(otelctx.Context(1, 2)):
            await asyncio.get_running_loop().create_future()

    async def start():
        # A task that the loop does not have any more.
        asyncio.create_task(work())
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(start())
    loop.close()
    return weakref.ref(marker)


def token():
    """A context that refers to the token that refers to it."""
    marker = Marker()

    def work():
        marker.token = otelctx.attach(otelctx.Context(1, 2))
        variable.set(marker)

    contextvars.copy_context().run(work)
    return weakref.ref(marker)


def api():
    """OpenTelemetry's API, with the runtime context of this package."""
    from opentelemetry import context

    assert "otelctx" in type(context._RUNTIME_CONTEXT).__module__
    return context


def opentelemetry():
    """A context of OpenTelemetry that refers to the `contextvars` context that it is attached in."""
    context = api()
    marker = Marker()
    marker.context = contextvars.copy_context()
    marker.context.run(context.attach, context.set_value("marker", marker))
    return weakref.ref(marker)


def detached():
    """Contexts of OpenTelemetry, after they were detached."""
    context = api()
    markers = [Marker() for _ in range(100)]
    tokens = [context.attach(context.set_value("marker", marker)) for marker in markers]
    references = [weakref.ref(marker) for marker in markers]
    while tokens:
        context.detach(tokens.pop())
    markers.clear()
    return lambda: next((marker for each in references if (marker := each())), None)


gc.disable()
reference = globals()[sys.argv[1]]()
before = reference() is not None
gc.collect()
print(json.dumps({"before": before, "after": reference() is not None}), flush=True)
