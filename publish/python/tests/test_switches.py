"""Another task's context is never published, however the interpreter switches."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import PROGRAMS, PYTHON, TIMEOUT, without_opentelemetry

#: From this version on, the interpreter reports all switches.
REPORTED = sys.version_info >= (3, 14)


def counts(start, name, program="switches"):
    line = start(program, name).line()
    assert line["wrong"] == 0, line["first_wrong"]
    return line


@pytest.mark.parametrize("name", ["asyncio", "direct", "eager", "gevent", "uvloop", "rloop"])
def test_every_step_shows_its_own_context(start, name):
    if name == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with Python 3.12")
    if name in ("gevent", "uvloop", "rloop"):
        pytest.importorskip(name)
    line = counts(start, name)
    assert line["missing"] == 0
    assert line["right"] > 1000


@pytest.mark.parametrize("name", ["thread by a switch", "tracer replaced", "tracer fails"])
def test_greenlets_are_traced_in_every_thread_that_publishes(start, name):
    pytest.importorskip("greenlet")
    line = counts(start, name, program="greenlets")
    assert line["missing"] == 0
    assert line["right"] > 2


def test_native_code_that_switches_never_leaves_another_context_published(start):
    line = counts(start, "native")
    # The switches to no context are right in any case.
    assert (line["right"], line["missing"]) == ((900, 0) if REPORTED else (200, 500))


@pytest.mark.parametrize("api", ["otelctx", "opentelemetry"])
def test_what_asgiref_restores_is_published_at_once(start, api):
    pytest.importorskip("asgiref")
    environment = {}
    if api == "opentelemetry":
        pytest.importorskip("opentelemetry.sdk")
        environment = {"OTEL_PYTHON_CONTEXT": "otelctx"}
    line = start("restored", api, **environment).line()
    assert (line["wrong"], line["missing"]) == (0, 0), line["first_wrong"]
    assert line["right"] == 8 * 9 + 3


@pytest.mark.parametrize("api", ["otelctx", "opentelemetry"])
@pytest.mark.skipif(not REPORTED, reason="tokens are no context managers")
def test_every_way_to_use_a_token_ends_what_is_published(start, api):
    environment = {}
    if api == "opentelemetry":
        pytest.importorskip("opentelemetry.sdk")
        environment = {"OTEL_PYTHON_CONTEXT": "otelctx"}
    line = start("tokens", api, **environment).line()
    assert (line["wrong"], line["missing"]) == (0, 0), line["first_wrong"]
    assert line["right"] == 33


@pytest.mark.skipif(not REPORTED, reason="there are no context watchers")
def test_nothing_is_published_if_there_is_no_room_for_a_watcher(start, capfd):
    line = start("watchers").line()
    # All of them: importing the package takes none.
    assert line == {"added": 8, "shown": [None] * 4, "current": None}
    assert capfd.readouterr().err.count("otelctx publishes no contexts: the interpreter has no room") == 1


@pytest.mark.parametrize("inherit", ["0", "1"])
def test_a_thread_starts_with_the_context_that_it_inherits(start, inherit):
    # From 3.14 on; before, a thread never inherits one.
    program = start("switches", "threads", PYTHON_THREAD_INHERIT_CONTEXT=inherit)
    line = program.line()
    assert (line["wrong"], line["missing"]) == (0, 0), line["first_wrong"]
    assert line["right"] > 1000


def test_nothing_is_published_in_an_event_loop_whose_switches_are_not_seen(start, capfd):
    pytest.importorskip("uvloop")
    line = counts(start, "other uvloop")
    assert line["right"] > 1000
    warnings = capfd.readouterr().err.count("otelctx does not publish some contexts")
    if REPORTED:
        assert (line["missing"], warnings) == (0, 0)
    else:
        assert line["missing"] > 1000
        assert warnings == 1


def test_a_subinterpreter_leaves_the_context_alone(start):
    line = counts(start, "subinterpreter", program="subinterpreter")
    assert (line["right"], line["missing"]) == (2, 0)


#: How linkers build a library: the addresses of functions are writable, or read-only.
LAZY, FULL = ["-Wl,-z,lazy"], ["-Wl,-z,relro,-z,now"]
#: It is loaded at a lower address than it is linked for, as libraries can be that `prelink` has changed.
HIGH = [f"-Wl,-Ttext-segment={1 << 47:#x}"]
LIBRARIES = [
    ("program", LAZY),
    ("program", FULL),
    ("program", ["-fno-plt", *FULL]),
    ("program", [*HIGH, *FULL]),
    ("import", LAZY),
    ("import", FULL),
]


@pytest.mark.parametrize("loader,flags", LIBRARIES)
@pytest.mark.skipif(REPORTED, reason="the interpreter reports the switches")
def test_a_library_that_switches_is_seen_by_its_tables(start, tmp_path, loader, flags):
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file() or not shutil.which("gcc"):
        pytest.skip(f"no gcc, or no {include}/Python.h")
    library = tmp_path / "package" / "native_library.so"
    library.parent.mkdir()
    source = PROGRAMS / "native_library.c"
    command = ["gcc", "-shared", "-fPIC", "-O2", f"-I{include}", *flags, "-o", library]
    subprocess.run([*command, source], timeout=TIMEOUT, check=True)
    line = start("native_library", str(tmp_path), "package.native_library", loader).line()
    assert (line["wrong"], line["missing"]) == (0, 0), line["first_wrong"]
    assert line["right"] == 1600


@pytest.mark.parametrize("kind", ["run", "span", "task"])
def test_the_interpreter_ends_while_daemon_threads_are_in_a_context(kind):
    if kind == "task" and sys.version_info < (3, 12):
        pytest.skip("no eager tasks")
    if kind == "span":
        pytest.importorskip("opentelemetry.sdk")
    environment = {**without_opentelemetry(), "OTEL_PYTHON_CONTEXT": "otelctx"}
    command = [PYTHON, PROGRAMS / "daemons.py", kind]
    # Most runs of a program that fails may succeed.
    for _ in range(4):
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=TIMEOUT)
        assert (done.returncode, done.stdout) == (0, b"ended\n")
