"""Daemon threads are in a context while the interpreter ends, which takes some time.

``run``: in ``Context.run``. ``task``: in an eager task. ``span``: attach spans whose code is Python.
"""

import asyncio
import contextvars
import os
import sys
import threading
import time

import otelctx  # noqa: F401


def work(*_arguments, **_keywords):
    while True:
        time.sleep(0.001)


async def work_in_task():
    work()


async def start_task():
    loop = asyncio.get_running_loop()
    asyncio.Task(work_in_task(), loop=loop, eager_start=True)


def attach_spans(context, trace):
    class Span(trace.NonRecordingSpan):
        def get_span_context(self):
            time.sleep(0.001)
            return super().get_span_context()

    ids = trace.SpanContext(1, 2, True)
    while True:
        context.attach(trace.set_span_in_context(Span(ids)))


class Last:
    """Ends with the modules, and gives the threads time to ask for the GIL."""

    sleep = staticmethod(time.sleep)
    write = staticmethod(os.write)

    def __del__(self):
        for _ in range(20):
            self.sleep(0.01)
        self.write(1, b"ended\n")


def start(target, *arguments, **keywords):
    threading.Thread(target=target, args=arguments, kwargs=keywords, daemon=True).start()


for _ in range(3):
    if sys.argv[1] == "run":
        start(contextvars.copy_context().run, work, Last, name=Last)
    elif sys.argv[1] == "task":
        start(asyncio.run, start_task())
    else:
        # Not in the threads: one that is ended while it imports keeps the import's lock.
        from opentelemetry import context, trace

        start(attach_spans, context, trace)
time.sleep(0.1)
sys.modules["last"] = Last()
