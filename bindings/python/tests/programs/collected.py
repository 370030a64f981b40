"""Drops objects that refer to each other, and tells which of them are collected."""

import contextvars
import gc
import json
import sys
import weakref

import otelctx

variable = contextvars.ContextVar("variable")


class Marker:
    """An object that tells whether it is there."""


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
