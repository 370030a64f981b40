"""Counts how often readers would see the expected context, no context, or a wrong one."""

import json
import os
import threading

import otelctx

#: `multiprocessing` closes the standard input of its children.
STDIN = os.dup(0)
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736


class Counts:
    def __init__(self):
        self.right = self.missing = self.wrong = 0
        self.first_wrong = None
        self.lock = threading.Lock()

    def check(self, span):
        """Compare what is published for this thread with the span that it works on."""
        seen = otelctx.visible_to_readers()
        with self.lock:
            if (seen and seen["span_id"]) == (span and f"{span:016x}"):
                self.right += 1
            elif seen is None:
                self.missing += 1
            else:
                self.wrong += 1
                self.first_wrong = self.first_wrong or [seen, span]

    def show(self):
        show(
            right=self.right,
            missing=self.missing,
            wrong=self.wrong,
            first_wrong=self.first_wrong,
        )


def context(span, **attributes):
    return otelctx.Context(TRACE, span, 1, attributes)


def show(**values):
    print(json.dumps({"pid": os.getpid(), **values}), flush=True)


def wait():
    """Wait until the test has read this process."""
    os.read(STDIN, 1)
