"""A thread of a library calls into Python several times, and each call attaches a context."""

import ctypes
import json
import sys
import threading

import otelctx


def wait(number):
    print(json.dumps({"tid": threading.get_native_id(), "call": number}), flush=True)
    sys.stdin.readline()


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def called(number):
    wait(number)
    otelctx.attach(otelctx.Context(1, number + 1))
    wait(number)


error = ctypes.CDLL(sys.argv[1]).call_in_thread(called, 3)
print(json.dumps({"error": error}), flush=True)
