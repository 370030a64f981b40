"""Publishes OpenTelemetry's spans with `OTEL_PYTHON_CONTEXT=otelctx` alone: it names no otelctx."""

import asyncio
import sys
import threading

if sys.argv[1] == "sdk first":
    # The SDK's module is then half imported when it loads the runtime context.
    import opentelemetry.sdk.trace
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from truth import Counts, show, wait

counts = Counts()
provider = TracerProvider(resource=Resource.create({"service.name": "sdk", "ports": [80, 443]}))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("test")


def check():
    """The published span is the one that OpenTelemetry says is the current one."""
    counts.check(trace.get_current_span().get_span_context().span_id or None)


def ids(span):
    ids = span.get_span_context()
    return {
        "trace_id": f"{ids.trace_id:032x}",
        "span_id": f"{ids.span_id:016x}",
        "trace_flags": ids.trace_flags,
    }


def held(span, **more):
    show(**ids(span), **more)
    wait()


async def task(number):
    with tracer.start_as_current_span(f"task {number}"):
        for _ in range(20):
            check()
            await asyncio.sleep(0)
            check()
            with tracer.start_as_current_span("inner"):
                await asyncio.sleep(0)
                check()
            await asyncio.to_thread(check)


async def tasks():
    with tracer.start_as_current_span("all"):
        await asyncio.gather(*(task(number) for number in range(20)))
        check()
    check()


def main():
    with tracer.start_as_current_span("no attributes") as span:
        held(span)
    attributes = {"http.route": "/at start", "http.method": "GET"}
    with tracer.start_as_current_span("at start", attributes=attributes) as span:
        held(span)
        with tracer.start_as_current_span("child") as child:
            held(child)
            child.set_attributes({"http.route": "/child", "other": 1})
            held(child)
        check()
        span.set_attribute("http.route", "/late")
        held(span)
        # Baggage is a new context with the same span.
        token = context.attach(baggage.set_baggage("key", "value"))
        held(span)
        span.set_attribute("http.route", "/later")
        context.detach(token)
        held(span)
        # A child that is started elsewhere.
        parent = context.get_current()
        token = context.attach(context.Context())
        check()
        detached = tracer.start_span("elsewhere", context=parent)
        with trace.use_span(detached):
            held(detached)
        context.detach(token)
    check()
    remote = trace.NonRecordingSpan(trace.SpanContext(5 << 64 | 6, 7, True, trace.TraceFlags(1)))
    with trace.use_span(remote):
        held(remote)
    with TracerProvider(sampler=ALWAYS_OFF).get_tracer("off").start_as_current_span("off") as span:
        held(span)
    with trace.use_span(trace.INVALID_SPAN):
        check()
    asyncio.run(tasks())
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    counts.show()
    wait()


main()
