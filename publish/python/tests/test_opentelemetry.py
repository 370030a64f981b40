"""Spans of `opentelemetry-sdk` publish themselves with `OTEL_PYTHON_CONTEXT=otelctx` alone."""

import subprocess

import pytest
from conftest import PROGRAMS, PYTHON, TIMEOUT, without_opentelemetry

pytest.importorskip("opentelemetry.sdk")


def spans(start, *arguments, **environment):
    """Yields for each span that the program holds what it is, and what is published of it."""
    arguments = arguments or ("API first",)
    program = start("spans", *arguments, OTEL_PYTHON_CONTEXT="otelctx", **environment)
    while "right" not in (line := program.line()):
        seen = program.contexts()[program.pid]
        attributes = seen.pop("attributes")
        assert seen == {name: line[name] for name in ("trace_id", "span_id", "trace_flags")}
        yield attributes
        program.resume()
    assert line["wrong"] == 0, line["first_wrong"]
    assert line["missing"] == 0
    assert line["right"] > 1000
    resource = program.dump()["process_context"]["resource"]
    assert resource["service.name"] == "sdk"
    assert resource["telemetry.sdk.name"] == "opentelemetry"
    assert resource["ports"] == [80, 443]


ROUTES = [
    {},
    {"http.route": "/at start"},
    # Children inherit.
    {"http.route": "/at start"},
    {"http.route": "/child"},
    {"http.route": "/late"},
    {"http.route": "/late"},
    {"http.route": "/later"},
    {"http.route": "/later"},
    {},
    {},
]


@pytest.mark.parametrize("first", ["API first", "sdk first"])
def test_the_current_span_is_published_with_its_route(start, first):
    assert list(spans(start, first)) == ROUTES


INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"


def test_a_program_that_opentelemetry_instruments_publishes_its_requests(run):
    pytest.importorskip("opentelemetry.instrumentation.flask")
    exporters = [f"--{each}_exporter=none" for each in ("traces", "metrics", "logs")]
    # As the command `opentelemetry-instrument`.
    instrument = [PYTHON, "-c", INSTRUMENT, "--service_name=shop", *exporters]
    command = [*instrument, PYTHON, PROGRAMS / "service.py"]
    program = run(*command, OTEL_PYTHON_CONTEXT="otelctx")
    request = program.line()
    seen = program.contexts()[request.pop("tid")]
    assert seen.pop("attributes") == {"http.route": "/orders/<number>"}
    assert seen == request
    resource = program.dump()["process_context"]["resource"]
    assert resource["service.name"] == "shop"
    assert resource["telemetry.auto.version"]
    program.resume()
    assert program.line() == {"answer": "order 7"}
    # The request has ended.
    assert set(program.contexts().values()) == {None}


def test_the_published_attributes_can_be_chosen(start):
    names = {"OTELCTX_SPAN_ATTRIBUTES": "http.method, other"}
    assert list(spans(start, **names))[:4] == [
        {},
        {"http.method": "GET"},
        {"http.method": "GET"},
        {"http.method": "GET", "other": "1"},
    ]


COPIES = """
import copy, pickle
from opentelemetry import context, trace
span = trace.NonRecordingSpan(trace.SpanContext(1, 2, True, trace.TraceFlags(1)))
with trace.use_span(span):
    pass
assert span._otelctx.span_id == f"{2:016x}"
for other in (copy.copy(span), copy.deepcopy(span), pickle.loads(pickle.dumps(span))):
    assert other.get_span_context() == span.get_span_context()
    assert other._otelctx.span_id == f"{2:016x}"
"""

INTERRUPTED = """
from opentelemetry import context, trace
class Span(trace.NonRecordingSpan):
    def get_span_context(self):
        raise self.error
span = Span(None)
parent = trace.set_span_in_context(span)
span.error = KeyError
context.detach(context.attach(parent))
span.error = KeyboardInterrupt
try:
    context._RUNTIME_CONTEXT.attach(parent)
except KeyboardInterrupt:
    assert context.get_current() == {}
else:
    raise AssertionError
"""


@pytest.mark.parametrize("program", [COPIES, INTERRUPTED])
def test_attaching_a_span_leaves_the_program_working(program):
    environment = {**without_opentelemetry(), "OTEL_PYTHON_CONTEXT": "otelctx"}
    subprocess.run([PYTHON, "-c", program], env=environment, timeout=TIMEOUT, check=True)
