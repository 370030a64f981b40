"""What `otelctx dump` shows of a program that publishes."""

import platform
import re

import pytest

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_the_resource_is_that_of_the_environment_and_of_python(start):
    program = start(
        "resource",
        OTEL_SERVICE_NAME="shop",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=prod,service.version=1.2",
    )
    program.line()
    resource = program.dump()["process_context"]["resource"]
    assert re.fullmatch("[0-9a-f-]{36}", resource.pop("service.instance.id"))
    assert resource.pop("process.executable.path").endswith(resource.pop("process.executable.name"))
    assert resource.pop("process.runtime.description").startswith(platform.python_version())
    assert resource == {
        "service.name": "shop",
        "service.version": "1.2",
        "deployment.environment.name": "prod",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "otelctx",
        "telemetry.sdk.version": "0.1.0",
        "process.runtime.name": "cpython",
        "process.runtime.version": platform.python_version(),
        "process.pid": program.pid,
    }
    program.resume()
    program.line()
    resource = program.dump()["process_context"]["resource"]
    # Values keep their type, and what was given takes precedence over the environment.
    assert resource["service.name"] == "given"
    assert resource["ports"] == [80, 443]
    assert resource["ratio"] == 0.5
    assert resource["on"] is True


def test_each_thread_shows_its_own_context(start):
    program = start("threads")
    threads = {int(tid): index for tid, index in program.line()["threads"].items()}
    assert program.contexts() == {
        program.pid: None,
        **{
            tid: {
                "trace_id": TRACE,
                "span_id": f"{index + 1:016x}",
                "trace_flags": index % 2,
                "attributes": {"http.route": f"/{index}", "user.id": str(index)},
            }
            for tid, index in threads.items()
        },
    }
    program.resume()
    program.line()
    assert program.contexts() == {
        program.pid: None,
        **{
            tid: {
                "trace_id": TRACE,
                "span_id": f"{index + 0x10:016x}",
                "trace_flags": index % 2,
                # Cut to at most 255 bytes, at the end of a character.
                "attributes": {"http.route": "/child", "user.id": "é" * 127},
            }
            for tid, index in threads.items()
        },
    }
    program.resume()
    program.line()
    assert program.contexts() == {program.pid: None}


def test_a_greenlet_has_its_own_functions_in_its_own_calls(start):
    pytest.importorskip("greenlet")
    program = start("greenlet_stacks")
    expected = program.line()
    seen = set()
    for _ in range(5):
        (thread,) = program.dump("--stacks")["threads"]
        assert thread["stack"]["complete"], thread["stack"]
        frames = [frame.get("function", "") for frame in thread["stack"]["frames"]]
        # The library began it.
        assert "green" in frames[-1], frames
        python = [name for name in frames if name in ("compute", "innermost", "between")]
        # Between two calls, it is in none.
        assert python in (expected, expected[1:])
        seen.add(len(python))
    assert len(expected) in seen
