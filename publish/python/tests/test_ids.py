"""Which IDs a context takes."""

import copy
import pickle

import pytest

TRACE, SPAN = f"{1:032x}", f"{2:016x}"


@pytest.mark.parametrize("trace", [1, TRACE, (1).to_bytes(16, "big")])
@pytest.mark.parametrize("span", [2, SPAN, (2).to_bytes(8, "big")])
def test_ids_are_numbers_digits_or_bytes(trace, span):
    import otelctx

    context = otelctx.Context(trace, span)
    assert (context.trace_id, context.span_id) == (TRACE, SPAN)
    child = context.child(span)
    assert (child.trace_id, child.span_id) == (TRACE, SPAN)


def test_without_ids_only_attributes_are_published():
    import otelctx

    context = otelctx.Context(attributes={"http.route": "/cart"})
    with otelctx.scope(context):
        published = otelctx.visible_to_readers()
    assert int(published["trace_id"], 16) == int(published["span_id"], 16) == 0
    assert published["attributes"] == {"http.route": "/cart"}
    with pytest.raises(ValueError, match="the context has no trace"):
        context.child(2)


@pytest.mark.parametrize("zero_trace", [0, "0" * 32, bytes(16)])
@pytest.mark.parametrize("zero_span", [0, "0" * 16, bytes(8)])
def test_zero_is_no_id(zero_trace, zero_span):
    import otelctx

    with pytest.raises(ValueError, match="trace_id: zero"):
        otelctx.Context(zero_trace, 2)
    with pytest.raises(ValueError, match="span_id: zero"):
        otelctx.Context(1, zero_span)
    with pytest.raises(ValueError, match="span_id: zero"):
        otelctx.Context(1, 2).child(zero_span)
    with pytest.raises(ValueError, match="zero"):
        otelctx.Context(zero_trace, zero_span)


def test_an_id_without_the_other_is_refused():
    import otelctx

    for arguments in [{"trace_id": 1}, {"span_id": 2}]:
        with pytest.raises(ValueError, match="or neither"):
            otelctx.Context(**arguments)


@pytest.mark.parametrize("wrong", [-1, 1 << 128, "1", "g" * 32, b"1", 1.5])
def test_other_values_are_refused(wrong):
    import otelctx

    with pytest.raises(ValueError, match="trace_id: give an int below"):
        otelctx.Context(wrong, 2)


@pytest.mark.parametrize("ids", [(1, 2), (None, None)])
def test_a_context_can_be_copied_and_pickled(ids):
    import otelctx

    context = otelctx.Context(*ids, trace_flags=1, attributes={"http.route": "/cart"})
    for other in (copy.copy(context), copy.deepcopy(context), pickle.loads(pickle.dumps(context))):
        for name in ("trace_id", "span_id", "trace_flags", "attributes"):
            assert getattr(other, name) == getattr(context, name)
