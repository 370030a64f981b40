"""Measures what publishing adds to attaching contexts and to switching between them.

    python bench/contexts.py        # needs the packages otelctx and opentelemetry-sdk

Each line is the median of many short rounds, in which both sides alternate.
"""

import contextvars
import statistics
import sys
import timeit

ROUNDS = 151
CALLS = 2000


def nanoseconds(**statements):
    """The cost of one execution of each statement, as (name, median)."""
    timers = {
        name: timeit.Timer(statement, globals=globals()) for name, statement in statements.items()
    }
    times = {name: [] for name in timers}
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            times[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    return {name: statistics.median(each) for name, each in times.items()}


def row(what, ours, peer, bound, per=1):
    """Prints both sides, and the difference (of each of `per` operations) with its bound."""
    more = (ours - peer) / per
    holds = "ok" if more <= bound else "MISSED"
    print(
        f"{what:<44}{ours:>9.0f} ns{peer:>9.0f} ns{ours / peer:>8.2f}{more:>+9.1f} ns"
        f"   at most {bound:+.0f} ns: {holds}"
    )


def nothing():
    pass


variable = contextvars.ContextVar("variable")
idle = contextvars.copy_context()
before = nanoseconds(run="idle.run(nothing)")["run"]

import otelctx  # noqa: E402
from opentelemetry import context, trace  # noqa: E402
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from otelctx._opentelemetry import RuntimeContext  # noqa: E402

ours, peer = RuntimeContext(), ContextVarsRuntimeContext()
span = TracerProvider().get_tracer("bench").start_span("span", attributes={"http.route": "/cart"})
current = trace.set_span_in_context(span, context.Context())
attached = otelctx.Context(1, 2, attributes={"http.route": "/cart"})
reported = sys.version_info >= (3, 14)
unused = nanoseconds(run="idle.run(nothing)")["run"]
switched = contextvars.copy_context()
switched.run(otelctx.attach, attached)

print(f"Python {sys.version.split()[0]}")
print(f"{'':<44}{'otelctx':>12}{'peer':>12}{'ratio':>8}{'difference':>12}")
times = nanoseconds(
    ours="ours.detach(ours.attach(current))", peer="peer.detach(peer.attach(current))"
)
row("OpenTelemetry: attach + detach", times["ours"], times["peer"], 150)
times = nanoseconds(
    ours="otelctx.detach(otelctx.attach(attached))", peer="variable.reset(variable.set(1))"
)
row("attach + detach; ContextVar.set + reset", times["ours"], times["peer"], 120)
times = nanoseconds(idle="idle.run(nothing)", switched="switched.run(nothing)")
# Entering and leaving are a switch each.
row("a switch before anything is attached", unused, before, 3 if reported else 150, 2)
row("a switch, nothing attached in either", times["idle"], before, 20 if reported else 150, 2)
row("a switch, to a context and back", times["switched"], before, 20 if reported else 150, 2)
