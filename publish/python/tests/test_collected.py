"""Objects of the package are released with what they refer to."""

import pytest


@pytest.mark.parametrize("name", ["scope", "task", "token"])
def test_a_cycle_through_a_context_is_collected(start, name):
    assert start("collected", name).line() == {"before": True, "after": False}


def test_a_cycle_through_a_context_of_opentelemetry_is_collected(start):
    pytest.importorskip("opentelemetry.sdk")
    line = start("collected", "opentelemetry", OTEL_PYTHON_CONTEXT="otelctx").line()
    assert line == {"before": True, "after": False}


def test_a_detached_context_is_released_at_once(start):
    pytest.importorskip("opentelemetry.sdk")
    line = start("collected", "detached", OTEL_PYTHON_CONTEXT="otelctx").line()
    assert line == {"before": False, "after": False}


def test_a_token_is_only_made_by_attach():
    import otelctx

    with pytest.raises(TypeError, match="cannot create 'otelctx.Token' instances"):
        otelctx.Token()
