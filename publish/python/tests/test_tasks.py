"""What `otelctx dump --tasks` shows of suspended tasks: the context that no thread has."""

import sysconfig

import pytest

TASKS = 20
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    pytest.skip("tasks of free-threaded builds are not known", allow_module_level=True)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "rloop"])
def test_each_suspended_task_shows_its_own_context(start, loop):
    pytest.importorskip(loop)
    program = start("tasks", str(TASKS), loop)
    expected = dict(program.line())
    assert len(expected) == TASKS + 5
    dump = program.dump("--tasks")
    assert {task["id"]: task["context"] for task in dump["tasks"]["cpython"]} == expected
    assert "tasks_missing" not in dump
    # Without the option, nothing is stopped, and no tasks are read.
    assert "tasks" not in program.dump()


def test_opentelemetry_spans_of_suspended_tasks_are_shown(start):
    pytest.importorskip("opentelemetry.sdk")
    program = start("task_spans", OTEL_PYTHON_CONTEXT="otelctx")
    expected = dict(program.line())
    assert len(expected) == 3
    tasks = program.dump("--tasks")["tasks"]["cpython"]
    shown = {task["id"]: task["context"] for task in tasks}
    ids = {
        task: context and [context["trace_id"], context["span_id"]]
        for task, context in shown.items()
    }
    assert ids == expected
