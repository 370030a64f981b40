"""Threads that publish at the same time, without a GIL where the interpreter has none."""

import mmap
import subprocess
import sysconfig
import time

import pytest
from conftest import COMMAND, TIMEOUT

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
THREADS = 6
SHARED = 1 << 60
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def steps(tmp_path):
    """The file that the program maps, too."""
    path = tmp_path / "steps"
    path.write_bytes(bytes(2 * 8 * THREADS))
    with path.open("r+b") as file:
        return path, memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")


def is_right(context, threads, begun, ended):
    """Whether one of these threads has published this, in a step after `ended` and up to `begun`."""
    span = int(context["span_id"], 16)
    route, user = (context["attributes"].get(name) for name in ("http.route", "user.id"))
    if span == SHARED:
        expected = {"trace_id": TRACE, "span_id": f"{SHARED:016x}", "trace_flags": 1}
        expected["attributes"] = {"http.route": user, "user.id": user}
        return context == expected and route.startswith("/shared")
    thread, number = span >> 40, span & (1 << 40) - 1
    expected = {
        "trace_id": TRACE,
        "span_id": f"{span:016x}",
        "trace_flags": number % 2,
        "attributes": {"http.route": f"/{thread}", "user.id": str(number)},
    }
    if context != expected or thread not in threads:
        return False
    return thread == THREADS or ended[thread] < number <= begun[thread]


def test_threads_that_publish_at_once_show_their_own_contexts_and_frames(start, steps):
    path, steps = steps
    program = start("parallel", str(path))
    line = program.line()
    assert line["gil"] is not FREE_THREADED
    threads = {int(tid): thread for tid, thread in line["threads"].items()}
    assert len(threads) == THREADS
    # The GIL leaves little that could go wrong.
    deadline = time.monotonic() + (4 if FREE_THREADED else 1)
    seen = dict.fromkeys([*range(THREADS), SHARED], 0)
    read, errors = 0, []
    # The share of errors is of enough threads, also on a busy machine.
    while time.monotonic() < deadline or min(seen.values()) == 0 or read < 200:
        assert time.monotonic() < deadline + TIMEOUT, seen
        ended = list(steps[THREADS:])
        dump = program.dump()
        begun = list(steps[:THREADS])
        for shown in dump["threads"]:
            thread = threads.get(shown["tid"])
            context = shown.get("context")
            if context:
                # Threads that come and go have one in the place of their own.
                own = {THREADS} if thread is None else {thread}
                assert is_right(context, own, begun, ended), (shown, begun, ended)
                span = int(context["span_id"], 16)
                if thread is not None:
                    seen[SHARED if span == SHARED else thread] += 1
            if thread is not None:
                python = shown["cpython"]
                read += 1
                if "error" in python:
                    # The interpreter's list changes all the time: several readings may find it so.
                    errors.append(python["error"])
                    continue
                names = [frame["function"] for frame in python["frames"]]
                own = [name for name in names if name.startswith("number_")]
                assert own == [f"number_{thread}"], names
                assert ("attached" in python, "holds_gil" in python) == (
                    FREE_THREADED,
                    not FREE_THREADED,
                )
    assert len(errors) * 50 <= read, (read, errors)
    program.resume()
    line = program.line()
    assert line["first_wrong"] == []
    assert all(right > 0 and wrong == 0 for right, wrong in line["counts"]), line["counts"]


def test_samples_of_threads_that_publish_at_once_have_their_own_context(start, steps, tmp_path):
    path, _ = steps
    program = start("parallel", str(path))
    program.line()
    folded = tmp_path / "a.folded"
    threads = set()
    # On a busy machine, few threads get CPU time within a second.
    for seconds in ("1", "5", "20"):
        command = [COMMAND, "record", "-p", str(program.pid), "-d", seconds, "-F", "499", "--by"]
        command += ["http.route", "--no-symbols", "-o", str(folded)]
        subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True)
        for line in folded.read_text().splitlines():
            route, *names = line.rsplit(" ", 1)[0].split(";")
            own = [name for name in names if name.startswith("number_")]
            # Threads that come and go have a route, and none of the functions.
            if own and route.startswith("/") and not route.startswith("/shared"):
                assert own == [route.replace("/", "number_")], line
                threads.add(route)
        if len(threads) >= THREADS // 2:
            break
    assert len(threads) >= THREADS // 2
