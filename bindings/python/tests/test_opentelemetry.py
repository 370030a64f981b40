"""Spans of `opentelemetry-sdk` publish themselves with `OTEL_PYTHON_CONTEXT=otelctx` alone."""

import pytest

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


def test_the_published_attributes_can_be_chosen(start):
    names = {"OTELCTX_SPAN_ATTRIBUTES": "http.method, other"}
    assert list(spans(start, **names))[:4] == [
        {},
        {"http.method": "GET"},
        {"http.method": "GET"},
        {"http.method": "GET", "other": "1"},
    ]
