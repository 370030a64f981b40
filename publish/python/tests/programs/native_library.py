"""A library enters contexts where only its tables show it.

`sys.argv`: a folder, the name of the library as a module in it, and who loads it: `import`, or `program` before that.
"""

import _ctypes
import contextvars
import ctypes
import importlib
import importlib.util
import json
import math
import shutil
import sys

import otelctx
from otelctx import _otelctx
from truth import Counts, context

counts = Counts()
check = counts.check


def mappings():
    with open("/proc/self/maps") as file:
        return [line.split()[:2] for line in file if path in line]


def fail():
    check(77)
    raise KeyError


folder, name, loader = sys.argv[1:]
sys.path.insert(0, folder)
if loader == "program":
    path = importlib.util.find_spec(name).origin
    # It may be loaded where another one was.
    copy = ctypes.CDLL(shutil.copy(path, folder))
    _otelctx.watch_libraries()
    _ctypes.dlclose(copy._handle)
    ctypes.CDLL(path)
    before = mappings()
    _otelctx.watch_libraries()
    # What was read-only is read-only again.
    assert mappings() == before != []
library = importlib.import_module(name)
watched = [_otelctx.is_watched(module) for module in (library, math, json, _otelctx)]
assert watched == [True, False, False, False]
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
