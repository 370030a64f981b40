"""Attaches contexts with `attach`, and leaves them in every way that its token offers."""

import contextvars
import sys
from concurrent.futures import ThreadPoolExecutor

import otelctx
from truth import Counts, context

counts = Counts()
check = counts.check


def attach_opentelemetry(span):
    from opentelemetry import trace
    from opentelemetry.context import attach

    ids = trace.SpanContext(1, span, is_remote=False, trace_flags=trace.TraceFlags(1))
    return attach(trace.set_span_in_context(trace.NonRecordingSpan(ids)))


def attach(span):
    if sys.argv[1] == "opentelemetry":
        return attach_opentelemetry(span)
    return otelctx.attach(context(span))


def expect(error, function, *arguments):
    try:
        function(*arguments)
    except error:
        return
    raise AssertionError(f"no {error}")


def request():
    check(None)
    with attach(1):
        check(1)
        with attach(2) as token:
            check(2)
        check(1)
        # It was used.
        expect(RuntimeError, otelctx.detach, token)
        check(1)
        try:
            with attach(3):
                raise KeyError
        except KeyError:
            check(1)
    check(None)
    token = attach(4)
    [variable] = (each for each in contextvars.copy_context() if each.name == "otelctx")
    # That would restore the variable, and leave the context published.
    expect(TypeError, variable.reset, token)
    check(4)
    expect(ValueError, contextvars.copy_context().run, otelctx.detach, token)
    check(4)
    otelctx.detach(token)
    check(None)


with ThreadPoolExecutor(1) as pool:
    for _ in range(3):
        pool.submit(request).result()
        pool.submit(check, None).result()
expect(TypeError, otelctx.detach, None)
counts.show()
