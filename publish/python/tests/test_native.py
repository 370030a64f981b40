"""Programs and libraries in C that call Python."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from conftest import PROGRAMS, TIMEOUT

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")


def compile(source, to, *flags):
    command = ["gcc", "-O2", PROGRAMS / source, *flags, "-o", to]
    subprocess.run(command, timeout=TIMEOUT, check=True)
    return to


def test_each_call_of_a_native_thread_starts_without_a_context(start, tmp_path):
    library = compile("native_thread.c", tmp_path / "library.so", "-shared", "-fPIC", "-pthread")
    program = start("native_thread", library)
    for number in range(3):
        for expected in (None, f"{number + 1:016x}"):
            line = program.line()
            assert line["call"] == number
            context = program.contexts()[line["tid"]]
            assert (context and context["span_id"]) == expected
            program.resume()
    assert program.line() == {"error": 0}


IMPORT = """
import contextvars, otelctx
otelctx.attach(otelctx.Context(1, 2))
assert contextvars.copy_context().run(otelctx.current).span_id == f"{2:016x}"
"""
# The first interpreter's functions and variable would be used.
RUN = """
import contextvars
for _ in range(1000):
    assert contextvars.copy_context().run(len, "four") == 4
"""
IMPORT_AGAIN = """
try:
    import otelctx
except ImportError as error:
    assert "after the interpreter ended" in str(error), error
else:
    raise AssertionError
"""


@pytest.mark.parametrize("later", [RUN, IMPORT_AGAIN])
def test_an_interpreter_that_is_started_again_works(tmp_path, later):
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    library = Path(sysconfig.get_config_var("LIBDIR") or "", library)
    if library.suffix != ".so" or not library.is_file():
        pytest.skip("the interpreter is no library")
    flags = [library, f"-Wl,-rpath,{library.parent}"]
    program = compile("restarts.c", tmp_path / "restarts", *flags)
    done = subprocess.run([program, IMPORT, later, later], env=os.environ, timeout=TIMEOUT)
    assert done.returncode == 0
