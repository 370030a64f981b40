"""Publish OpenTelemetry process and thread context for profilers, debuggers and security agents.

Importing this package publishes the process context: the resource that ``OTEL_SERVICE_NAME`` and
``OTEL_RESOURCE_ATTRIBUTES`` describe. ``otelctx dump PID`` shows it.
"""

from __future__ import annotations

import sys
from typing import Mapping, Sequence, Union

try:
    from ._otelctx import (
        Context,
        Scope,
        Token,
        attach,
        current,
        detach,
        scope,
        update,
        visible_to_readers,
    )
except ModuleNotFoundError as error:
    raise ImportError(
        "otelctx was not built for this Python, or is in a zip file, from which Python loads no "
        f"extension modules; it supports CPython, and this is {sys.implementation.name} "
        + ".".join(map(str, sys.version_info[:3]))
    ) from error
from . import _hooks, _otelctx

__all__ = [
    "Context",
    "Scope",
    "Token",
    "attach",
    "current",
    "detach",
    "publish",
    "scope",
    "update",
    "visible_to_readers",
]

Value = Union[str, bool, int, float, bytes, Sequence["Value"]]


def publish(attributes: Mapping[str, Value] | None = None) -> None:
    """Replace the process context by what the environment says and these resource attributes.

    They take precedence over the environment. Each forked child publishes the context again, with
    its own ``process.pid`` and ``service.instance.id``.

    Raises ``OSError`` if the context cannot be published; the previous one is kept then.
    """
    detected = {
        "telemetry.sdk.language": "python",
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": ".".join(map(str, sys.version_info[:3])),
        "process.runtime.description": sys.version,
    }
    _otelctx.publish({**detected, **(attributes or {})})


def _start() -> None:
    try:
        _hooks.install(_otelctx.watch())
    except Exception as error:  # The program works without this.
        _hooks.warn("otelctx publishes no thread contexts: %s", error)
    _otelctx.register_keys(_hooks.SPAN_ATTRIBUTES)
    try:
        publish()
    except OSError as error:
        _hooks.warn("otelctx publishes no process context: %s", error)


_start()
