"""Runs programs that publish, and reads them from outside with the command `otelctx`."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
COMMAND = os.environ.get("OTELCTX") or HERE.parents[2] / "target" / "debug" / "otelctx"
#: An interpreter that its own dynamic linker starts has another path than `sys.executable`.
PYTHON = os.environ.get("PYTHON") or sys.executable
#: Seconds after which a program or the command is given up. On an overloaded machine, each lock that a free-threaded
#: interpreter waits for takes it 40 turns of the scheduler, and its imports minutes.
TIMEOUT = 600 if sysconfig.get_config_var("Py_GIL_DISABLED") else 120
#: How often a process is dumped while one of its threads gets no CPU time to stop in.
ATTEMPTS = 10


class Program:
    """A running program. It prints lines of JSON, and goes on after each line that it is sent."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**without_opentelemetry(), **environment},
        )

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        """The next line that the program prints."""
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait(TIMEOUT)}"
        return json.loads(line)

    def resume(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def dump(self, *arguments):
        return dump(self.pid, *arguments)

    def contexts(self):
        """The context of each thread, by thread ID."""
        return {thread["tid"]: thread.get("context") for thread in self.dump()["threads"]}

    def end(self):
        self.process.kill()
        self.process.communicate()


def without_opentelemetry():
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL")}


def dump(pid, *arguments):
    """What `otelctx dump` shows of a process."""
    # It takes longer than the default of 2 s if the machine is overloaded.
    limit = ["--deadline", str(TIMEOUT // 2)]
    command = [COMMAND, "dump", "--json", *limit, *arguments, str(pid)]
    for _ in range(ATTEMPTS):
        shown = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT)
        if b"did not stop within" not in shown.stdout:
            break
    assert shown.returncode == 0, shown.stdout
    return json.loads(shown.stdout)


@pytest.fixture
def run():
    """Runs a command; ends it after the test."""
    programs = []

    def run(*command, **environment):
        programs.append(Program(*command, **environment))
        return programs[-1]

    yield run
    for program in programs:
        program.end()


@pytest.fixture
def start(run):
    """Starts a program of `tests/programs`; ends it after the test."""

    def start(name, *arguments, **environment):
        return run(PYTHON, PROGRAMS / f"{name}.py", *arguments, **environment)

    return start
