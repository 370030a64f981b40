"""Many tasks with contexts of their own switch all the time, and check what is published."""

import asyncio
import contextvars
import importlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

#: Looked up before otelctx was imported.
EARLY_FACTORY = getattr(asyncio, "eager_task_factory", None)


class EarlyTask(asyncio.Task):
    """Defined before otelctx was imported."""


import otelctx  # noqa: E402
from truth import Counts, context  # noqa: E402

#: From this version on, the interpreter reports all switches. Before, what native code does is not seen until the
#: next call of `Context.run`.
REPORTED = sys.version_info >= (3, 14)
TASKS = 50
STEPS = 40
counts = Counts()
check = counts.check


async def task(span, depth=0):
    """Attaches its own context in some steps, and none in others."""
    random_state = random.Random(span)
    with otelctx.scope(context(span)):
        for step in range(STEPS):
            check(span)
            await asyncio.sleep(0 if random_state.random() < 0.9 else 0.001)
            check(span)
            inner = span * 1000 + step
            with otelctx.scope(context(inner)):
                check(inner)
                await asyncio.sleep(0)
                check(inner)
                if step % 8 == 0:
                    await asyncio.to_thread(check, span=inner)
                if step % 10 == 0 and depth == 0:
                    # Its context is a copy: it shows the parent's span until it attaches its own.
                    await asyncio.gather(task(inner * 7 + 1, 1), quiet(inner))
                    check(inner)
            check(span)


async def quiet(span):
    check(span)
    await asyncio.sleep(0)
    check(span)


async def many(first):
    # Their contexts are copies of this one.
    tasks = [asyncio.create_task(task(first + number)) for number in range(TASKS)]
    for _ in range(100):
        check(first)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    check(first)


async def main():
    with otelctx.scope(context(99)):
        await many(99)
    check(None)


class EagerTask(asyncio.Task):
    """Has an `__init__` of its own."""

    def __init__(self, coro, *, context=None, **options):
        super().__init__(coro, context=context, eager_start=True, **options)


async def with_eager_tasks():
    loop = asyncio.get_running_loop()
    other = contextvars.copy_context()
    other.run(otelctx.attach, context(77))
    factories = [
        asyncio.eager_task_factory,
        EARLY_FACTORY,
        asyncio.create_eager_task_factory(EarlyTask),
        lambda loop, coro, **options: EagerTask(coro, loop=loop, **options),
    ]
    for factory in factories:
        loop.set_task_factory(factory)
        with otelctx.scope(context(98)):
            check(98)
            await asyncio.create_task(quiet(77), context=other)
            check(98)
            await asyncio.create_task(quiet(None), context=contextvars.Context())
            check(98)
            await many(98)
        check(None)
    # Without a factory.
    for create in (asyncio.Task, EarlyTask, EagerTask):
        options = {} if create is EagerTask else {"eager_start": True}
        with otelctx.scope(context(98)):
            await create(quiet(77), loop=loop, context=other, **options)
            check(98)
            await create(quiet(98), loop=loop, **options)
            check(98)
        check(None)


def direct():
    """`Context.run`, nested, with contexts that were left attached, and with exceptions."""
    contexts = [contextvars.copy_context() for _ in range(20)]
    for span, each in enumerate(contexts, 1):
        # Never detached: it belongs to this `contextvars` context.
        each.run(otelctx.attach, context(span))
        check(None)

    def nested(at):
        if at == len(contexts):
            check(at)
            raise KeyError
        check(at or None)
        try:
            contexts[at].run(nested, at + 1)
        finally:
            check(at or None)

    for _ in range(50):
        try:
            nested(0)
        except KeyError:
            check(None)
    with otelctx.scope(context(500)):
        contexts[3].run(check, 4)
        check(500)
        contextvars.Context().run(check, None)
        check(500)
        # With an error of its own: it is entered already.
        try:
            contexts[5].run(contexts[5].run, check)
        except RuntimeError:
            check(500)
        try:
            contexts[5].run()
        except TypeError:
            check(500)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for span, each in enumerate(contexts, 1):
                pool.submit(each.run, check, span).result()
                pool.submit(check, None).result()


def native():
    """Native code switches, as event loops do."""
    import ctypes

    enter, leave = (
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)((name, ctypes.pythonapi))
        for name in ("PyContext_Enter", "PyContext_Exit")
    )
    empty = contextvars.Context()
    other = contextvars.copy_context()
    other.run(otelctx.attach, context(77))
    for _ in range(100):
        with otelctx.scope(context(92)):
            enter(other)
            if REPORTED:
                check(77)
            empty.run(check, None)
            check(77)
            with otelctx.scope(context(91)):
                check(91)
            check(77)
            leave(other)
            check(92)
        with otelctx.scope(context(90)):
            enter(other)
            if REPORTED:
                check(77)
            empty.run(check, None)
            leave(other)
            check(90)


def threads():
    """A thread starts without a context, or with a copy of that of the thread that starts it."""
    inherits = bool(getattr(sys.flags, "thread_inherit_context", False))

    def work(first):
        check(first)
        for span in range(1, STEPS):
            with otelctx.scope(context(span)):
                check(span)
        check(first)

    for _ in range(10):
        with otelctx.scope(context(95)):
            first = 95 if inherits else None
            started = [threading.Thread(target=work, args=(first,)) for _ in range(4)]
            for each in started:
                each.start()
            for each in started:
                each.join()
            check(95)
    check(None)


def greenlets():
    """Greenlets have contexts of their own, which start empty."""
    import gevent

    def work(span):
        with otelctx.scope(context(span)):
            for step in range(STEPS):
                check(span)
                gevent.sleep(0)
                check(span)
                with otelctx.scope(context(span * 1000 + step)):
                    gevent.sleep(0)
                    check(span * 1000 + step)
                copy = contextvars.copy_context()
                copy.run(check, span)
                copy.run(leave_attached, span * 1000 + step + 500)
                check(span)
        check(None)

    def leave_attached(span):
        otelctx.attach(context(span))
        gevent.sleep(0)
        check(span)

    # A thread that did not import the package.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(plain_greenlets).result()
    with otelctx.scope(context(97)):
        workers = [gevent.spawn(work, number) for number in range(1, TASKS)]
        check(97)
        gevent.joinall(workers, raise_error=True)
        check(97)
        # In a thread with an event loop of its own.
        gevent.get_hub().threadpool.apply(work, (7777,))
        check(97)
    check(None)


def plain_greenlets():
    """Without an event loop."""
    from greenlet import getcurrent, greenlet

    def work(span):
        check(None)
        with otelctx.scope(context(span)):
            main.switch()
            check(span)

    main = getcurrent()
    with otelctx.scope(context(93)):
        workers = [(greenlet(work), span) for span in range(1, STEPS)]
        for each, span in workers:
            each.switch(span)
            check(93)
        for each, _ in workers:
            each.switch()
            check(93)


def with_loop_of(module):
    loop = importlib.import_module(module).new_event_loop()
    with otelctx.scope(context(96)):
        check(96)
        loop.run_until_complete(many(96))
        check(96)
    check(None)


def run(name):
    if name == "asyncio":
        asyncio.run(main())
    elif name == "eager":
        asyncio.run(with_eager_tasks())
    elif name == "direct":
        direct()
    elif name == "native":
        native()
    elif name == "threads":
        threads()
    elif name == "gevent":
        greenlets()
    elif name in ("uvloop", "rloop", "other uvloop"):
        if name == "other uvloop":
            # One whose tables do not have the functions.
            otelctx._otelctx.watch_libraries = lambda: None
        with_loop_of(name.split()[-1])
        # Afterwards everything is as before.
        asyncio.run(main())


run(sys.argv[1])
counts.show()
