"""What asgiref restores in a caller's context is published at once. Argument: `otelctx` or `opentelemetry`."""

import asyncio
import sys

import otelctx
from asgiref.sync import async_to_sync, sync_to_async
from truth import Counts, context

counts = Counts()
check = counts.check


if sys.argv[1] == "opentelemetry":
    from opentelemetry import trace
    from opentelemetry.context import attach as attach_opentelemetry
    from opentelemetry.context import detach

    def attach(span):
        ids = trace.SpanContext(1, span, is_remote=False)
        return attach_opentelemetry(trace.set_span_in_context(trace.NonRecordingSpan(ids)))
else:
    detach = otelctx.detach

    def attach(span):
        return otelctx.attach(context(span))


async def attach_async(span):
    attach(span)
    check(span)


def from_thread(span):
    async_to_sync(attach_async)(span)
    check(span)


async def task(first):
    # Attached in a thread, and restored in the task.
    await sync_to_async(attach)(first)
    check(first)
    await asyncio.sleep(0)
    check(first)
    # Replaced.
    await sync_to_async(attach)(first + 1)
    check(first + 1)
    # Nothing changes in the thread.
    token = attach(first + 2)
    await sync_to_async(check)(first + 2)
    check(first + 2)
    detach(token)
    check(first + 1)
    # The other way around, in a thread without an event loop.
    await asyncio.to_thread(from_thread, first + 3)
    check(first + 1)


async def main():
    await asyncio.gather(*(task(10 * number) for number in range(1, 9)))
    check(None)


check(None)
asyncio.run(main())
check(None)
counts.show()
