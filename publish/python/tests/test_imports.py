"""Waiting for the import of other modules never changes what the program imports."""

import json
import os
import platform
import subprocess
import zipfile
from pathlib import Path

import otelctx
import pytest
from conftest import PYTHON, TIMEOUT

PACKAGE = {
    "zipped/__init__.py": "",
    "zipped/first.py": "NAME = __name__",
    "zipped/hooked.py": "from . import first\nVALUE = 7",
    "zipped/last.py": "NAME = __name__",
    "zipped/failing.py": "if not FAILED: raise KeyError('first')",
    # Without the functions that the package's own hook calls.
    "greenlet.py": "VALUE = 8",
}

START = """
import copy, importlib, importlib.util, json, sys
from otelctx import _hooks
import otelctx
hooked = []
def note(module):
    hooked.append([module.__name__, vars(module).get("VALUE")])
"""


def run(tmp_path, program):
    """The last line that a program prints, and its messages. It finds the package in an archive."""
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name, text in PACKAGE.items():
            file.writestr(name, text)
    program = f"{START}\nsys.path.insert(0, {str(archive)!r})\n{program}"
    done = subprocess.run(
        [PYTHON, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_only_the_module_of_an_archive_that_is_waited_for_is_hooked(tmp_path):
    shown, messages = run(
        tmp_path,
        """
_hooks.when_imported("zipped.hooked", note)
# A program that only asks.
spec = importlib.util.find_spec("zipped.hooked")
copy.copy(spec.loader).get_source("zipped.hooked")
import zipped.hooked, zipped.last
loaders = {type(each.__loader__).__name__ for each in (zipped.hooked, zipped.last)}
specs = {type(each.__spec__.loader).__name__ for each in (zipped.hooked, zipped.last)}
importlib.reload(zipped.hooked)
print(json.dumps([hooked, zipped.hooked.first.NAME, zipped.last.NAME, sorted(loaders | specs)]))
""",
    )
    loaders = ["zipimporter"]
    assert shown == [[["zipped.hooked", 7]], "zipped.first", "zipped.last", loaders]
    assert messages == ""


def test_a_module_that_fails_is_hooked_when_it_is_imported_again(tmp_path):
    shown, _ = run(
        tmp_path,
        """
import builtins
_hooks.when_imported("zipped.failing", note)
for builtins.FAILED in (False, True):
    try:
        import zipped.failing
    except KeyError as error:
        hooked.append(repr(error))
print(json.dumps(hooked))
""",
    )
    assert shown == ["KeyError('first')", ["zipped.failing", None]]


def test_an_import_works_if_the_module_is_not_what_the_hook_expects(tmp_path):
    shown, messages = run(
        tmp_path,
        """
import greenlet
with otelctx.scope(otelctx.Context(1, 2)):
    published = otelctx.visible_to_readers()["span_id"]
import zipped.first
_hooks.when_imported("zipped.first", lambda module: module.unknown)
print(json.dumps([greenlet.VALUE, published]))
""",
    )
    assert shown == [8, f"{2:016x}"]
    messages = messages.splitlines()
    assert ["greenlet is not", "zipped.first is"] == [each[:15].strip() for each in messages]
    assert "has no attribute 'gettrace'" in messages[0]


def test_a_module_that_is_blocked_keeps_no_other_from_being_hooked(tmp_path):
    shown, messages = run(
        tmp_path,
        """
sys.modules["zipped.first"] = None
_hooks.when_imported("zipped.first", note)
_hooks.when_imported("zipped.hooked", note)
del sys.modules["zipped.first"]
import zipped.hooked
print(json.dumps(hooked))
""",
    )
    assert shown == [["zipped.first", None], ["zipped.hooked", 7]]
    assert messages == ""


@pytest.mark.parametrize("blocked", ["greenlet", "uvloop", "asyncio.tasks"])
def test_a_blocked_module_leaves_the_package_working(blocked):
    program = f"""
import sys
sys.modules[{blocked!r}] = None
import otelctx
with otelctx.scope(otelctx.Context(1, 2)):
    print(otelctx.visible_to_readers()["span_id"])
"""
    done = subprocess.run(
        [PYTHON, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT
    )
    assert (done.stdout, done.stderr) == (b"%016x\n" % 2, b"")


def test_names_of_attributes_that_are_not_utf8_are_omitted_with_a_warning():
    program = "from otelctx import _hooks; print(_hooks.SPAN_ATTRIBUTES)"
    environment = {**os.environb, b"OTELCTX_SPAN_ATTRIBUTES": b"first, caf\xe9, last"}
    done = subprocess.run(
        [PYTHON, "-X", "utf8", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=TIMEOUT,
    )
    assert done.stdout == b"['first', 'last']\n"
    assert done.stderr.splitlines() == [
        rb"names in OTELCTX_SPAN_ATTRIBUTES are not UTF-8, and omitted: ['caf\udce9']"
    ]


def test_a_finder_that_asks_the_other_finders_is_asked(tmp_path):
    shown, messages = run(
        tmp_path,
        """
class Finder:
    busy = False
    def find_spec(self, name, path, target=None):
        if self.busy:
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False
_hooks.when_imported("zipped.hooked", note)
sys.meta_path.insert(1, Finder())
import zipped.hooked
print(json.dumps([hooked, type(zipped.hooked.__loader__).__name__]))
""",
    )
    assert shown == [[["zipped.hooked", 7]], "zipimporter"]
    assert messages == ""


def test_a_package_without_an_extension_module_for_this_python_says_so(tmp_path):
    archive = tmp_path / "application.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in Path(otelctx.__file__).parent.iterdir():
            if path.is_file():
                file.write(path, f"otelctx/{path.name}")
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import otelctx"
    failed = subprocess.run(
        [PYTHON, "-c", program], stderr=subprocess.PIPE, text=True, timeout=TIMEOUT
    )
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "ImportError: otelctx was not built for this Python, or is in a zip file, from which Python "
        "loads no extension modules; it supports CPython, and this is cpython "
        f"{platform.python_version().rstrip('+')}"
    )


def test_importing_the_package_imports_nothing_that_takes_long():
    def imported(program):
        program = f"import sys\n{program}\nprint(*sys.modules)"
        done = subprocess.run(
            [PYTHON, "-c", program], stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True
        )
        return set(done.stdout.split())

    more = imported("import otelctx") - imported("")
    assert "otelctx._hooks" in more
    assert more.isdisjoint({"asyncio", "importlib.abc", "inspect", "logging"})
