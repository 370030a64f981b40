"""Switches contexts in a subinterpreter, in which otelctx is not imported."""

import otelctx
from truth import Counts, context

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

SCRIPT = """
from contextvars import ContextVar, copy_context
variable, other = ContextVar("variable"), copy_context()
other.run(variable.set, 3)
for _ in range(100):
    assert other.run(variable.get) == 3
"""

counts = Counts()
interpreter = interpreters.create()
with otelctx.scope(context(1)):
    assert interpreters.run_string(interpreter, SCRIPT) is None
    counts.check(1)
counts.check(None)
counts.show()
