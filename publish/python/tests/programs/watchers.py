"""Attaches a context after other modules have taken all of the interpreter's context watchers."""

import contextvars
import ctypes
import json

import otelctx

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
callback = CALLBACK(lambda event, context: 0)
add = ctypes.pythonapi.PyContext_AddWatcher
added = 0
try:
    while True:
        add(callback)
        added += 1
except RuntimeError:
    pass
shown = []
for _ in range(2):
    token = otelctx.attach(otelctx.Context(1, 2))
    shown.append(otelctx.visible_to_readers())
    contextvars.Context().run(lambda: shown.append(otelctx.visible_to_readers()))
    otelctx.detach(token)
current = otelctx.current()
print(json.dumps({"added": added, "shown": shown, "current": current}), flush=True)
