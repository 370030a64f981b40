"""Switches greenlets, whose contexts start empty, in threads where something keeps them from being traced."""

import contextvars
import sys
import threading

import greenlet
import otelctx
from truth import Counts, context

counts = Counts()
check = counts.check


def in_another(span):
    greenlet.greenlet(lambda: check(None)).switch()
    check(span)


def thread_by_a_switch():
    """The thread attaches nothing: its context is a copy."""
    copy = contextvars.copy_context()
    copy.run(otelctx.attach, context(1))
    for _ in range(2):
        thread = threading.Thread(target=copy.run, args=(in_another, 1))
        thread.start()
        thread.join()


def tracer_replaced():
    copy = contextvars.copy_context()
    copy.run(otelctx.attach, context(3))
    for tracer in (None, lambda event, greenlets: None):
        greenlet.settrace(tracer)
        with otelctx.scope(context(1)):
            in_another(1)
            greenlet.settrace(tracer)
            with otelctx.scope(context(2)):
                in_another(2)
            greenlet.settrace(tracer)
            copy.run(in_another, 3)
            in_another(1)


def tracer_fails():
    def fail(event, greenlets):
        raise KeyError(event)

    greenlet.settrace(fail)
    with otelctx.scope(context(1)):
        for _ in range(3):
            in_another(1)


{
    "thread by a switch": thread_by_a_switch,
    "tracer replaced": tracer_replaced,
    "tracer fails": tracer_fails,
}[sys.argv[1]]()
counts.show()
