"""Suspended tasks in spans of OpenTelemetry. Prints the IDs of the tasks, their traces and spans."""

import asyncio
import json

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("tasks")


async def work(future, spans):
    with tracer.start_as_current_span("work") as span:
        context = span.get_span_context()
        spans.append(["%032x" % context.trace_id, "%016x" % context.span_id])
        await future


async def main():
    future = asyncio.get_running_loop().create_future()
    spans = []
    tasks = [asyncio.ensure_future(work(future, spans)) for _ in range(2)]
    await asyncio.sleep(0)
    known = [[id(task), span] for task, span in zip(tasks, spans)]
    print(json.dumps([*known, [id(asyncio.current_task()), None]]), flush=True)
    await future


asyncio.run(main())
