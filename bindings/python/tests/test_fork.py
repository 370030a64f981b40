"""Forked processes publish a process context of their own."""

import http.client
import json
import re
import signal
import socket
import time

import pytest
from conftest import PROGRAMS, PYTHON, TIMEOUT, Program, dump

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


def request(path, route):
    """Sends a request as soon as the server listens."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(str(path))
            connection.request("GET", route)
            return json.loads(connection.getresponse().read())
        except (FileNotFoundError, ConnectionError):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        finally:
            connection.close()


def test_each_worker_of_gunicorn_shows_itself_and_its_request(gunicorn):
    program, path = gunicorn
    answer = request(path, "/cart")
    with open(f"/proc/{program.pid}/task/{program.pid}/children") as children:
        workers = [int(pid) for pid in children.read().split()]
    assert answer["pid"] in workers
    resources = [resource(pid) for pid in workers]
    assert [each["process.pid"] for each in resources] == workers
    assert {each["service.name"] for each in resources} == {"shop"}
    instances = {each["service.instance.id"] for each in [*resources, resource(program.pid)]}
    assert len(instances) == len(workers) + 1
    contexts = [thread.get("context") for thread in dump(answer["pid"])["threads"]]
    assert answer["published"] in contexts
    assert answer["published"]["attributes"] == {"http.route": "/cart"}
