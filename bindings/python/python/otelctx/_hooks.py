"""Makes other modules report what the interpreter does not."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, Callable

from . import _otelctx

#: The attributes of OpenTelemetry's spans that are published with the thread context.
SPAN_ATTRIBUTES = [
    name.strip()
    for name in os.environ.get("OTELCTX_SPAN_ATTRIBUTES", "http.route").split(",")
    if name.strip()
]


def install(watched: bool) -> None:
    """Patch modules now, or when they are imported. ``watched``: Python reports context switches."""
    when_imported("greenlet", lambda _: trace_greenlets())
    if not watched:
        when_imported("asyncio.tasks", _patch_eager_tasks)
        when_imported("uvloop", _patch_uvloop)


class _Finder(importlib.abc.MetaPathFinder):
    """Calls functions after modules were imported for the first time."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        # Without the hook, this finder is passed over.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.hooks[name] = hook
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def when_imported(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Call ``hook`` with a module now, or after it is imported."""
    if name in sys.modules:
        hook(sys.modules[name])
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.hooks[name] = hook


def trace_greenlets() -> None:
    """Publish the greenlet's context whenever the calling thread switches to another greenlet."""
    import greenlet

    if _otelctx.trace_greenlets():
        return
    previous = greenlet.gettrace()
    if previous is None:
        greenlet.settrace(_otelctx.greenlets_switched)
        return

    def trace(event: str, greenlets: Any) -> None:
        _otelctx.greenlets_switched(event, greenlets)
        previous(event, greenlets)

    greenlet.settrace(trace)


def _patch_eager_tasks(tasks: ModuleType) -> None:
    # A task that starts eagerly enters its context in C.
    import asyncio
    from contextvars import copy_context

    create = getattr(tasks, "create_eager_task_factory", None)
    if create is None:
        return

    def create_eager_task_factory(custom_task_constructor: Callable[..., Any]) -> Any:
        start = create(custom_task_constructor)

        def factory(loop: Any, coro: Any, *, context: Any = None, **options: Any) -> Any:
            if context is None:
                context = copy_context()
            return _otelctx.run_entered(context, start, loop, coro, context=context, **options)

        return factory

    factory = create_eager_task_factory(tasks.Task)
    for module in (tasks, asyncio):
        module.create_eager_task_factory = create_eager_task_factory  # type: ignore[attr-defined]
        module.eager_task_factory = factory  # type: ignore[attr-defined]


def _patch_uvloop(uvloop: ModuleType) -> None:
    # Its callbacks enter their contexts in C.
    run_forever = uvloop.Loop.run_forever

    def run_unseen(self: Any) -> None:
        _otelctx.run_unseen(run_forever, self)

    uvloop.Loop.run_forever = run_unseen
