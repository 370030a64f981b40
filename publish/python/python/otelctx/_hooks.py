"""Makes other modules report what the interpreter does not."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Callable

from . import _otelctx


def install(watched: bool) -> None:
    """Patch modules now, or when they are imported. ``watched``: Python reports context switches."""
    when_imported("greenlet", lambda _: trace_greenlets())
    when_imported("asgiref.sync", _publish_restored)
    # It makes its tracer, which publishes.
    when_imported("ddtrace.trace", _warn_of_other)
    if not watched:
        if sys.version_info >= (3, 12):
            when_imported("asyncio.tasks", _watch_eager_tasks)
        _watch_extensions()
        # Other loaders than Python's may have loaded them.
        when_imported("granian._granian", lambda module: _watch_libraries(module.__name__))
        when_imported("rloop._rloop", lambda module: _watch_libraries(module.__name__))
        when_imported("uvloop", _suspend_in_uvloop)


def warn(message: str, *values: Any) -> None:
    """Log a warning of the package."""
    # Takes longer than importing this package.
    import logging

    logging.getLogger("otelctx").warning(message, *values)


def _span_attributes() -> list[str]:
    value = os.environ.get("OTELCTX_SPAN_ATTRIBUTES", "http.route")
    names = [name.strip() for name in value.split(",") if name.strip()]
    # Bytes of the environment that are not UTF-8 become surrogates, which no name can have.
    refused = [name for name in names if not _is_utf8(name)]
    if refused:
        warn("names in OTELCTX_SPAN_ATTRIBUTES are not UTF-8, and omitted: %a", refused)
    return [name for name in names if name not in refused]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


#: The attributes of OpenTelemetry's spans that are published with the thread context.
SPAN_ATTRIBUTES = _span_attributes()


# Not derived from the classes of `importlib.abc`, whose import takes as long.
class _Finder:
    """Calls functions after modules were imported for the first time."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.hooks:
            return None
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            if find is None:
                # Python up to 3.11 knows how to ask this finder. It goes on without the hook.
                return None
            spec = find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None

    def loaded(self, module: ModuleType) -> None:
        """Call the module's hook, unless it was called before."""
        hook = self.hooks.pop(module.__name__, None)
        if hook is not None:
            run_hook(hook, module)


class _Loader:
    """Loads a module with the loader that was found for it, then calls the module's hook.

    It belongs to one spec: what it wraps may load other modules too, as ``zipimporter`` does.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        create = getattr(self._loader, "create_module", None)
        return create and create(spec)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # The module looks as if there were no hook.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        if hasattr(self._loader, "exec_module"):
            self._loader.exec_module(module)
        else:
            # `zipimporter` of Python 3.9. It fills the module that `sys.modules` has already.
            self._loader.load_module(name)
        _FINDER.loaded(sys.modules.get(name, module))

    def __getattr__(self, name: str) -> Any:
        # The optional methods, for programs that ask for a spec and do not load it.
        if name == "_loader":
            # A copy that is being made has none yet.
            raise AttributeError(name)
        return getattr(self._loader, name)


_FINDER = _Finder()


def when_imported(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Call ``hook`` with a module now, or after it is imported."""
    module = sys.modules.get(name)
    # `None` makes an import fail.
    if module is not None:
        run_hook(hook, module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.hooks[name] = hook


def run_hook(hook: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Call ``hook`` with a module. The program goes on if it fails."""
    try:
        hook(module)
    except Exception as error:
        warn(
            "%s is not what this version of otelctx expects, so contexts may be missing: %r",
            module.__name__,
            error,
        )


def trace_greenlets() -> None:
    """Publish the greenlet's context whenever the calling thread switches to another greenlet."""
    import greenlet

    # Looked up first: nothing is noted if they are missing.
    get, set_trace = greenlet.gettrace, greenlet.settrace
    _otelctx.use_greenlets(get, _otelctx.greenlets_switched, _ChainedTracer)
    previous = get()
    if previous is None:
        set_trace(_otelctx.greenlets_switched)
    elif previous is not _otelctx.greenlets_switched and type(previous) is not _ChainedTracer:
        set_trace(_ChainedTracer(previous))


class _ChainedTracer:
    """Publishes the greenlet's context, then calls another tracer."""

    def __init__(self, previous: Callable[[str, Any], object]) -> None:
        self._previous: Callable[[str, Any], object] | None = previous

    def __call__(self, event: str, greenlets: Any) -> None:
        _otelctx.greenlets_switched(event, greenlets)
        if self._previous is None:
            return
        try:
            self._previous(event, greenlets)
        except Exception as error:
            # greenlet removes a tracer that fails, and this one would go with it. Not logged: a lock
            # of `logging` may switch greenlets itself.
            self._previous = None
            import traceback

            traceback.print_exception(type(error), error, error.__traceback__)


def _warn_of_other(module: ModuleType) -> None:
    mapping = _otelctx.find_other()
    if mapping is not None:
        name = module.__name__.partition(".")[0]
        warn(
            "%s has published a second process context (%s): readers use one of the two, and may "
            "not know the names of attributes; see the README of otelctx",
            name,
            mapping,
        )


def _publish_restored(sync: Any) -> None:
    """Publish what ``sync_to_async`` and ``async_to_sync`` set in the caller's context."""
    restore, value_was_set = sync._restore_context, _otelctx.value_was_set

    def restore_and_publish(context: Any) -> None:
        restore(context)
        value_was_set()

    # Its functions look it up with each call.
    sync._restore_context = restore_and_publish


def _watch_eager_tasks(tasks: ModuleType) -> None:
    # A task that starts eagerly enters its context in C. One that Python implements does not.
    if hasattr(tasks, "_CTask"):
        _otelctx.watch_eager_tasks(tasks._CTask)


def _watch_extensions() -> None:
    """Make libraries report the contexts that they enter, as event loops do."""
    # That of `importlib.machinery`, whose import takes time.
    loader = sys.modules["_frozen_importlib_external"].ExtensionFileLoader
    create = loader.create_module

    def create_module(self: Any, spec: Any) -> Any:
        module = create(self, spec)
        _watch_libraries(spec.name)
        return module

    loader.create_module = create_module
    _watch_libraries("a library")


def _watch_libraries(name: str) -> None:
    try:
        _otelctx.watch_libraries()
    except Exception as error:
        warn("contexts that %s enters may be missing: %r", name, error)


def _suspend_in_uvloop(uvloop: ModuleType) -> None:
    # Its callbacks enter their contexts in C.
    _watch_libraries("uvloop.loop")
    if _otelctx.is_watched(sys.modules["uvloop.loop"]):
        return
    # Publishing in it warns.
    run_forever = uvloop.Loop.run_forever

    def run_unseen(self: Any) -> None:
        outer = _otelctx.suspend()
        try:
            run_forever(self)
        finally:
            _otelctx.resume(outer)

    uvloop.Loop.run_forever = run_unseen
