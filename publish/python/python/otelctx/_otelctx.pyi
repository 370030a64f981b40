from types import TracebackType
from typing import Any, Callable, Sequence, final


@final
class Context:
    """A trace, a span and attributes: what a thread is working on.

    IDs are ints, strings of hexadecimal digits, or bytes; for attributes alone, give neither.
    ValueError if one is missing or zero. Values of attributes are cut to 255 bytes of UTF-8. A
    context has room for 612 bytes of attributes, and a process for 256 names.
    """

    def __new__(
        cls,
        trace_id: int | str | bytes | None = None,
        span_id: int | str | bytes | None = None,
        trace_flags: int = 0,
        attributes: dict[str, Any] | None = None,
    ) -> Context: ...
    def child(
        self, span_id: int | str | bytes, attributes: dict[str, Any] | None = None
    ) -> Context:
        """Create a context with the same trace, flags and attributes, for a child span.

        Raises ValueError if this context has no trace."""
    def update(self, attributes: dict[str, Any]) -> None:
        """Set attributes. Readers see them at once if the context is attached in this thread, and
        in other threads when they next switch to it."""
    @property
    def trace_id(self) -> str: ...
    @property
    def span_id(self) -> str: ...
    @property
    def trace_flags(self) -> int: ...
    @property
    def attributes(self) -> dict[str, str]: ...
    @property
    def is_truncated(self) -> bool:
        """Whether an attribute was cut or omitted."""

@final
class Scope:
    """The result of :func:`scope`. Several threads and tasks may be in it at the same time."""

    def __enter__(self) -> Context: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Token:
    """The result of :func:`attach`, for :func:`detach`.

    From Python 3.14 on, it is also a context manager, which detaches at the end of the block. Up to
    3.13, ``contextvars.Token`` takes its place.
    """

    def __enter__(self) -> Token: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def attach(context: Context, /) -> Token:
    """Make ``context`` what the calling thread or asyncio task is working on.

    It belongs to the current ``contextvars`` context, like the value of a context variable.
    """

def detach(token: Token, /) -> None:
    """Restore what was attached before the call of :func:`attach` that returned this token."""

def scope(context: Context) -> Scope:
    """Attach ``context`` for the duration of a ``with`` block."""

def current() -> Context | None:
    """Return the attached context."""

def visible_to_readers() -> dict[str, Any] | None:
    """Return what readers see of the calling thread, in the form of ``otelctx dump --json``.

    It is the attached context, or None where a switch to another one would not be seen.
    """

def update(attributes: dict[str, Any]) -> bool:
    """Set attributes of the attached context. Return whether there is one."""

# For the package's own use.
def publish(attributes: dict[str, Any]) -> None: ...
def register_keys(names: Sequence[str]) -> None: ...
def watch() -> bool: ...
def watch_eager_tasks(task: type[Any]) -> None: ...
def watch_libraries() -> None: ...
def is_watched(module: Any) -> bool: ...
def suspend() -> int: ...
def resume(outer: int) -> None: ...
def value_was_set() -> None: ...
def find_other() -> str | None: ...
def use_greenlets(
    get_trace: Callable[[], Any], tracer: Callable[..., None], chained: type[Any]
) -> None: ...
def greenlets_switched(event: str, _greenlets: tuple[Any, Any]) -> None: ...
def opentelemetry_use(empty: Any, new_context: Callable[[Any], Context | None]) -> None: ...
def opentelemetry_attach(context: Any, /) -> Token: ...
def opentelemetry_current() -> Any: ...
def new_context(
    span: Any, span_context: Any, parent: Any, attributes: dict[str, str]
) -> Context | None: ...
