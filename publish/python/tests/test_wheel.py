"""What the wheel contains, and which systems it runs on."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from shutil import which

import pytest
from conftest import COMMAND

#: Wheels for `manylinux2014` run with this glibc and later ones.
FLOOR = (2, 17)
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def module():
    [path] = (each for each in metadata.files("otelctx") if each.suffix == ".so")
    return path.locate()


def readelf(*options, path=None):
    if not which("readelf"):
        pytest.skip("no readelf")
    command = ["readelf", "--wide", *options, str(path or module())]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_readers_find_the_variable_by_its_descriptor():
    [symbol] = re.findall(r".* otel_thread_ctx_v1$", readelf("--dyn-syms"), re.MULTILINE)
    assert symbol.split()[2:4] == ["8", "TLS"]
    relocations = re.findall(r".* otel_thread_ctx_v1 \+ 0$", readelf("--relocs"), re.MULTILINE)
    [kind] = (each.split()[2] for each in relocations)
    assert kind.endswith("_TLSDESC")


@pytest.mark.parametrize("what", ["module", "command"])
def test_the_wheel_runs_with_the_glibc_that_it_names(what):
    if "manylinux2014" not in metadata.distribution("otelctx").read_text("WHEEL"):
        pytest.skip("the wheel was built without zig, for this machine's glibc")
    if what == "command" and os.environ.get("OTELCTX_TESTS") != "all":
        pytest.skip("the command: only in cargo xtask test --all")
    path = module() if what == "module" else COMMAND
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("--version-info", path=path))
    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= FLOOR


def test_pip_has_selected_the_wheel_for_this_interpreter():
    suffix = sysconfig.get_config_var("EXT_SUFFIX") if FREE_THREADED else ".abi3.so"
    assert module().name == f"_otelctx{suffix}"
    tags = re.findall("^Tag: (.*)$", metadata.distribution("otelctx").read_text("WHEEL"), re.M)
    version = "%d%d" % sys.version_info[:2]
    expected = f"cp{version}-cp{version}t-" if FREE_THREADED else "cp39-abi3-"
    assert tags
    assert all(tag.startswith(expected) for tag in tags), tags


def test_the_bill_of_materials_is_that_of_the_module():
    [bill] = (each for each in metadata.files("otelctx") if each.match("sboms/*.json"))
    components = json.loads(bill.read_text())["components"]
    [version] = {each["version"] for each in components if each["name"] == "pyo3"}
    # In the paths of its source files, which messages contain.
    assert set(re.findall(rb"/pyo3-([0-9.]+)/", module().read_bytes())) == {version.encode()}


def test_the_command_has_the_version_of_the_package():
    shown = subprocess.run([COMMAND, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert shown.stdout == f"otelctx {metadata.version('otelctx')}\n"


def test_type_checkers_know_every_name():
    import otelctx
    from otelctx import _otelctx

    stub = Path(otelctx.__file__).with_name("_otelctx.pyi").read_text()
    assert Path(otelctx.__file__).with_name("py.typed").is_file()
    named = set(re.findall(r"^(?:def|class) (\w+)", stub, re.MULTILINE))
    assert named == {name for name in dir(_otelctx) if not name.startswith("__")}
    assert set(otelctx.__all__) <= {*named, "publish"}
