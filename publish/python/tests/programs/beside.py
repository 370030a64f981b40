"""Imports another publisher, which publishes a process context of its own when it is imported."""

import logging
import sys
import tempfile
from pathlib import Path

import otelctx

TRACER = '''
import ctypes, mmap, os
file = os.memfd_create("OTEL_CTX")
os.ftruncate(file, 4096)
page = mmap.mmap(file, 4096, mmap.MAP_PRIVATE)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
integer = lambda size, value: value.to_bytes(size, "little")
page[:32] = b"OTEL_CTX" + integer(4, 2) + integer(4, 0) + integer(8, int(PUBLISHES)) + integer(8, address)
'''

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("otelctx").addHandler(handler)

with tempfile.TemporaryDirectory() as folder:
    package = Path(folder, "ddtrace")
    package.mkdir()
    (package / "__init__.py").touch()
    publishes = sys.argv[1] == "publishes"
    (package / "trace.py").write_text(TRACER.replace("PUBLISHES", str(publishes)))
    sys.path.insert(0, folder)
    import ddtrace.trace  # noqa: F401
    from ddtrace import trace  # noqa: F401

otelctx.publish()
from truth import show  # noqa: E402

show(messages=messages)
