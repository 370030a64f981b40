"""OpenTelemetry's runtime context: ``OTEL_PYTHON_CONTEXT=otelctx`` selects it.

Whatever span is the current one of a thread or task is published, with its trace, its flags and
some of its attributes. Once a tracer provider is set, its resource is the process context.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from types import ModuleType
from typing import Any

from opentelemetry.context.context import Context, _RuntimeContext

from . import _otelctx, publish
from ._hooks import SPAN_ATTRIBUTES, run_hook, warn, when_imported

_SDK = "opentelemetry.sdk.trace"
_PATCHING = threading.Lock()


class RuntimeContext(_RuntimeContext):
    """Attaches contexts as ``ContextVarsRuntimeContext`` does, and publishes the span in them."""

    attach = staticmethod(_otelctx.opentelemetry_attach)
    get_current = staticmethod(_otelctx.opentelemetry_current)
    detach = staticmethod(_otelctx.detach)

    def __init__(self) -> None:
        _otelctx.opentelemetry_use(Context(), _new_context)
        sdk = sys.modules.get(_SDK)
        if sdk is not None and _is_initializing(sdk):
            # The SDK is importing the API. The SDK asks for the current context before it starts
            # the first span.
            self.get_current = self._get_current_and_patch  # type: ignore[method-assign]
        else:
            when_imported(_SDK, _patch_sdk)

    def _get_current_and_patch(self) -> Context:
        sdk = sys.modules[_SDK]
        if not _is_initializing(sdk):
            with _PATCHING:
                # Another thread may have done it.
                if "get_current" in vars(self):
                    run_hook(_patch_sdk, sdk)
                    del self.get_current
        return _otelctx.opentelemetry_current()


# What runs methods of the program's objects does so here, and not in the extension module: the interpreter may end a
# daemon thread there, which no module of Rust survives.


def _new_context(span: Any) -> _otelctx.Context | None:
    """Create the thread context of a span that the SDK did not start."""
    try:
        return _otelctx.new_context(span, span.get_span_context(), None, {})
    except Exception:  # The program goes on without it.
        return None


def _published(attributes: Any) -> dict[str, str]:
    """Return the attributes of a span that are published."""
    published = {}
    for name in SPAN_ATTRIBUTES:
        value = attributes.get(name)
        if value is not None:
            published[name] = str(value)
    return published


def _note_attributes(span: Any, attributes: Any) -> None:
    """Publish attributes of a span that were set."""
    published = _published(attributes)
    if published:
        context = span._otelctx or _new_context(span)
        if context is not None:
            context.update(published)


def _is_initializing(module: ModuleType) -> bool:
    return getattr(module.__spec__, "_initializing", False)


def _patch_sdk(sdk: ModuleType) -> None:
    span = sdk.Span
    # Spans without a context of ours find this one.
    span._otelctx = None
    start, set_attribute, set_attributes = span.start, span.set_attribute, span.set_attributes

    @functools.wraps(start)
    def start_and_note(self: Any, start_time: Any = None, parent_context: Any = None) -> None:
        start(self, start_time, parent_context)
        if parent_context is None:
            parent_context = _otelctx.opentelemetry_current()
        attributes = self.attributes
        published = _published(attributes) if attributes else {}
        _otelctx.new_context(self, self.get_span_context(), parent_context, published)

    @functools.wraps(set_attribute)
    def set_attribute_and_note(self: Any, key: str, value: Any) -> None:
        set_attribute(self, key, value)
        if key in SPAN_ATTRIBUTES:
            _note_attributes(self, {key: value})

    @functools.wraps(set_attributes)
    def set_attributes_and_note(self: Any, attributes: Any) -> None:
        set_attributes(self, attributes)
        _note_attributes(self, attributes)

    span.start = start_and_note
    span.set_attribute = set_attribute_and_note
    span.set_attributes = set_attributes_and_note
    _follow_provider(sys.modules["opentelemetry.trace"])


def _follow_provider(trace: Any) -> None:
    set_provider = trace._set_tracer_provider

    def follow(provider: Any) -> None:
        if hasattr(provider, "resource"):
            _publish_resource(provider)
            # The SDK gives a forked child a resource of its own, before this runs.
            os.register_at_fork(after_in_child=lambda: _publish_resource(provider))

    @functools.wraps(set_provider)
    def set_and_publish(provider: Any, log: bool) -> None:
        before = trace._TRACER_PROVIDER
        set_provider(provider, log)
        if trace._TRACER_PROVIDER is not before:
            follow(provider)

    trace._set_tracer_provider = set_and_publish
    if trace._TRACER_PROVIDER is not None:
        follow(trace._TRACER_PROVIDER)


def _publish_resource(provider: Any) -> None:
    try:
        publish(provider.resource.attributes)
    except Exception as error:  # Telemetry must not stop the program.
        warn("otelctx does not publish the resource: %s", error)
