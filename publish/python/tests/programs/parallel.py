"""Threads attach, detach and switch contexts all the time, at once, while another process reads them.

Every step of a thread has a number, which tells what the thread publishes in it. A file that both
processes map has the number of the last step that each thread has begun, and that of the step up to
which it has ended all. Forked children and threads that end with an attached context come and go.
"""

import asyncio
import contextvars
import mmap
import os
import signal
import sys
import threading
import time

import otelctx
from truth import STDIN, TRACE, show

THREADS = 6
#: The span of a context that all threads attach, and whose attributes they all change.
SHARED = 1 << 60
shared = otelctx.Context(TRACE, SHARED, 1, {"http.route": "/shared", "user.id": "/shared"})
shared_scope = otelctx.scope(shared)
finish = threading.Event()
ready = threading.Barrier(THREADS + 1)
counts = [[0, 0] for _ in range(THREADS + 1)]
first_wrong = []
tids = {}

with open(sys.argv[1], "r+b") as file:
    steps = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
begun, ended = steps[:THREADS], steps[THREADS:]


def published(thread, number):
    """What a thread publishes in a step."""
    return {
        "trace_id": f"{TRACE:032x}",
        "span_id": f"{thread << 40 | number:016x}",
        "trace_flags": number % 2,
        "attributes": {"http.route": f"/{thread}", "user.id": str(number)},
    }


def context(thread, number):
    attributes = {"http.route": f"/{thread}", "user.id": number}
    return otelctx.Context(TRACE, thread << 40 | number, number % 2, attributes)


def count(thread, seen, is_right):
    counts[thread][not is_right] += 1
    if not is_right:
        first_wrong.append([thread, seen])


def check(thread, number):
    seen = otelctx.visible_to_readers()
    count(thread, seen, seen == (number and published(thread, number)))


def check_shared(thread):
    seen = otelctx.visible_to_readers()
    attributes = seen["attributes"] if seen else {}
    is_right = len(attributes) == 2 and len(set(attributes.values())) == 1
    count(thread, seen, is_right and seen["span_id"] == f"{SHARED:016x}")


def scopes(thread):
    """Attaches and detaches."""
    number = 0
    while not finish.is_set():
        number += 1
        begun[thread] = number
        own = context(thread, number)
        with otelctx.scope(own):
            check(thread, number)
            with shared_scope:
                check_shared(thread)
                value = f"/shared {thread} {number}"
                otelctx.update({"http.route": value, "user.id": value})
                check_shared(thread)
            check(thread, number)
            if number % 64 == 0:
                time.sleep(0.002)
        ended[thread] = number
        check(thread, None)


def switches(thread):
    """Switches between contexts that keep what is attached in them."""

    def inner(number):
        otelctx.attach(context(thread, number))
        check(thread, number)

    def outer(number):
        otelctx.attach(context(thread, number))
        contextvars.copy_context().run(inner, number + 1)
        check(thread, number)
        contextvars.copy_context().run(check, thread, number)
        check(thread, number)

    number = 1
    while not finish.is_set():
        begun[thread] = number + 1
        contextvars.Context().run(outer, number)
        ended[thread] = number + 1
        check(thread, None)
        number += 2


async def tasks(thread):
    """Switches between tasks."""
    last, active = 0, set()

    async def task():
        nonlocal last
        while not finish.is_set():
            last += 1
            number = begun[thread] = last
            active.add(number)
            with otelctx.scope(context(thread, number)):
                await asyncio.sleep(0)
                check(thread, number)
                with shared_scope:
                    await asyncio.sleep(0)
                    check_shared(thread)
                check(thread, number)
            active.remove(number)
            ended[thread] = min(active, default=last + 1) - 1

    await asyncio.gather(*(task() for _ in range(4)))
    check(thread, None)


def start(thread):
    tids[threading.get_native_id()] = thread
    ready.wait()
    if thread % 3 == 0:
        scopes(thread)
    elif thread % 3 == 1:
        switches(thread)
    else:
        asyncio.run(tasks(thread))


def function(thread):
    """A function of this thread alone: samples have its name."""
    names = {"start": start}
    exec(f"def number_{thread}():\n    start({thread})\n", names)
    return names[f"number_{thread}"]


def child():
    """Whether all works in a forked child, whatever other threads did."""
    signal.alarm(60)
    shared.update({"http.route": "/child", "user.id": "/child"})
    with shared_scope:
        check_shared(THREADS)
    otelctx.attach(context(THREADS, 2))
    otelctx.update({f"key.{os.getpid()}": "x"})
    return otelctx.visible_to_readers()["attributes"].pop(f"key.{os.getpid()}") == "x"


def come_and_go():
    """Forks children, and starts threads that end with an attached context."""
    number = 0
    while not finish.is_set():
        number += 1
        thread = threading.Thread(target=lambda: otelctx.attach(context(THREADS, number)))
        thread.start()
        if number % 4 == 0:
            pid = os.fork()
            if pid == 0:
                os._exit(0 if child() else 1)
            status = os.waitpid(pid, 0)[1]
            count(THREADS, status, status == 0)
        thread.join()
        check(THREADS, None)
        time.sleep(0.005)


def wait_for_the_end():
    os.read(STDIN, 1)
    finish.set()


threads = [threading.Thread(target=function(thread)) for thread in range(THREADS)]
threads.append(threading.Thread(target=wait_for_the_end))
for thread in threads:
    thread.start()
ready.wait()
show(threads=tids, gil=getattr(sys, "_is_gil_enabled", lambda: True)())
come_and_go()
for thread in threads:
    thread.join()
show(counts=counts, first_wrong=first_wrong[:1])
