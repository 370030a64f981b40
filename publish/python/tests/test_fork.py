"""Forked processes publish a process context of their own."""

import http.client
import json
import os
import re
import signal
import socket
import time

import pytest
from conftest import PROGRAMS, PYTHON, TIMEOUT, Program, dump

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
UUID = "[0-9a-f-]{36}"


def resource(pid):
    return dump(pid)["process_context"]["resource"]


@pytest.mark.parametrize("how", ["fork", "multiprocessing", "sdk"])
def test_a_child_shows_its_own_process_and_its_parents_context(start, how):
    environment = {}
    if how == "sdk":
        pytest.importorskip("opentelemetry.sdk")
        environment = {"OTEL_PYTHON_CONTEXT": "otelctx"}
    program = start("forks", how, OTEL_SERVICE_NAME="shop", **environment)
    line = program.line()
    child, parent = resource(line["pid"]), resource(program.pid)
    assert (child.pop("process.pid"), parent.pop("process.pid")) == (line["pid"], program.pid)
    ids = [each.pop("service.instance.id") for each in (child, parent)]
    assert ids[0] != ids[1]
    assert all(re.fullmatch(UUID, each) for each in ids)
    assert child == parent
    assert child["service.name"] == ("sdk" if how == "sdk" else "shop")
    assert line["published"]["attributes"] == {"http.route": "/parent"}
    [thread] = dump(line["pid"])["threads"]
    assert thread["context"] == line["published"]
    # The child registers a key that the parent does not have.
    program.resume()
    program.line()
    [thread] = dump(line["pid"])["threads"]
    assert thread["context"]["span_id"] == f"{3:016x}"
    assert thread["context"]["attributes"] == {"new.key": "x"}
    program.resume()
    program.line()
    [thread] = dump(program.pid)["threads"]
    assert thread["context"]["attributes"] == {"http.route": "/parent"}


@pytest.mark.parametrize("how", ["fork", "sdk"])
def test_a_malformed_variable_is_warned_of_once(start, how, capfd):
    environment = {"OTEL_RESOURCE_ATTRIBUTES": "host.name=shop-1,malformed"}
    if how == "sdk":
        pytest.importorskip("opentelemetry.sdk")
        environment["OTEL_PYTHON_CONTEXT"] = "otelctx"
    program = start("forks", how, **environment)
    child = program.line()["pid"]
    assert resource(child)["process.pid"] == child
    program.end()
    lines = capfd.readouterr().err.splitlines()
    warnings = [line for line in lines if line.startswith("otelctx")]
    assert warnings == [
        "otelctx: OTEL_RESOURCE_ATTRIBUTES is ignored: it is no list of at most 4096 key=value pairs "
        "separated by commas"
    ]


@pytest.fixture
def gunicorn(tmp_path):
    pytest.importorskip("gunicorn")
    path = tmp_path / "socket"
    arguments = ["--preload", "-w", "2", "-b", f"unix:{path}", "--chdir", str(PROGRAMS)]
    arguments += ["--worker-tmp-dir", str(tmp_path), "gunicorn_app:app"]
    program = Program(PYTHON, "-m", "gunicorn", *arguments, OTEL_SERVICE_NAME="shop")
    yield program, path
    # The master ends its workers.
    program.process.send_signal(signal.SIGTERM)
    program.process.communicate(timeout=TIMEOUT)


class Request:
    """A request that a worker handles until it is ended."""

    def __init__(self, path, span, route):
        self.context = {
            "trace_id": TRACE,
            "span_id": f"{span:016x}",
            "trace_flags": 1,
            "attributes": {"http.route": route},
        }
        self.socket = connect(path)
        connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT)
        # It is closed when the response says that the server will close it.
        connection.sock = self.socket.dup()
        connection.putrequest("POST", f"{route}?{span}")
        connection.putheader("Content-Length", "1")
        connection.endheaders()
        self.response = connection.getresponse()
        #: The worker.
        self.pid = json.loads(self.response.readline())["pid"]

    def end(self):
        self.socket.sendall(b"x")
        assert self.response.read() == b"x"
        self.socket.close()


def connect(path):
    """As soon as the server listens."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(TIMEOUT)
        try:
            connected.connect(str(path))
            return connected
        except (FileNotFoundError, ConnectionError):
            connected.close()
            assert time.monotonic() < deadline
            time.sleep(0.01)


def published(pid):
    """When a process has published its context, in nanoseconds of CLOCK_BOOTTIME, and its resource."""
    context = dump(pid)["process_context"]
    return int(context["monotonic_published_at_ns"]), context["resource"]


def started(pid):
    """When a process was started, in nanoseconds of CLOCK_BOOTTIME, rounded down."""
    with open(f"/proc/{pid}/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def contexts(pid):
    """The contexts of the threads of a process that have one."""
    shown = [thread.get("context") for thread in dump(pid)["threads"]]
    return [context for context in shown if context]


def test_each_worker_of_gunicorn_shows_itself_and_its_requests(gunicorn):
    program, path = gunicorn
    workers = set()
    for first in (1, 3, 5):
        # A worker handles one at a time.
        requests = [Request(path, first, f"/cart/{first}"), Request(path, first + 1, "/pay")]
        assert len({request.pid for request in requests}) == 2
        workers |= {request.pid for request in requests}
        for request in requests:
            assert contexts(request.pid) == [request.context]
        requests[0].end()
        assert contexts(requests[0].pid) == []
        assert contexts(requests[1].pid) == [requests[1].context]
        requests[1].end()
    assert len(workers) == 2
    # The application was loaded before they were forked, in the master, which handles no requests.
    assert contexts(program.pid) == []
    at, resource = published(program.pid)
    assert resource.pop("process.pid") == program.pid
    assert resource["service.name"] == "shop"
    instances = {resource.pop("service.instance.id")}
    for pid in workers:
        later, own = published(pid)
        assert later >= started(pid)
        assert later > at
        assert own.pop("process.pid") == pid
        instances.add(own.pop("service.instance.id"))
        assert own == resource
    assert len(instances) == 3
    assert all(re.fullmatch(UUID, each) for each in instances)
