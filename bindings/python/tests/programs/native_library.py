"""A library enters contexts where only its tables show it.

`sys.argv`: a folder, and the name of the library as a module in it.
"""

import contextvars
import importlib
import json
import math
import sys

import otelctx
from otelctx import _otelctx
from truth import Counts, context

counts = Counts()
check = counts.check


def mappings():
    with open("/proc/self/maps") as file:
        return [line.split()[:2] for line in file if library.__file__ in line]


def fail():
    check(77)
    raise KeyError


for other in (math, json):
    try:
        _otelctx.watch_native(other)
        raise AssertionError(other)
    except ImportError:
        pass
folder, name = sys.argv[1:]
sys.path.insert(0, folder)
library = importlib.import_module(name)
if name == "native_library":
    # One that the package does not know.
    before = mappings()
    _otelctx.watch_native(library)
    # What was read-only is read-only again.
    assert mappings() == before != []
run = library.run
inner, sibling = contextvars.copy_context(), contextvars.copy_context()
inner.run(otelctx.attach, context(77))
sibling.run(otelctx.attach, context(78))
for _ in range(100):
    with otelctx.scope(context(92)):
        run(inner, lambda: check(77))
        check(92)
        run(contextvars.Context(), lambda: check(None))
        check(92)

        def nested():
            run(sibling, lambda: check(78))
            check(77)
            with otelctx.scope(context(79)):
                sibling.run(check, 78)
                check(79)
            check(77)
            try:
                # It is entered already.
                run(inner, check)
            except RuntimeError:
                check(77)

        run(inner, nested)
        check(92)
        try:
            run(inner, fail)
        except KeyError:
            check(92)
    check(None)
    run(inner, lambda: check(77))
    check(None)
counts.show()
