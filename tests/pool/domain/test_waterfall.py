from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.waterfall import lay_out

lengths = st.one_of(st.none(), st.floats(min_value=0, max_value=600))
NAMES = ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s")


def test_the_parts_follow_each_other_and_the_rest_is_not_explained() -> None:
    spans = lay_out({"queue_s": 0.2, "first_byte_s": 0.5, "decode_s": 1.0}, e2e_s=2.0)

    assert [(span.name, span.start_s, span.length_s) for span in spans] == [
        ("queue", 0.0, 0.2),
        ("first_byte", 0.2, 0.5),
        ("decode", pytest.approx(0.7), 1.0),
        ("other", pytest.approx(1.7), pytest.approx(0.3)),
    ]


def test_the_engines_times_explain_the_first_token() -> None:
    times = {"first_byte_s": 0.5, "decode_s": 1.0}
    engine = {"engine_queue_s": 0.1, "engine_prefill_s": 0.3, "engine_decode_s": 0.9}

    inner = [span for span in lay_out({**times, **engine}, e2e_s=1.5) if span.within]

    assert [(span.name, span.within, round(span.start_s, 3), round(span.length_s, 3)) for span in inner] == [
        ("engine_queue", "first_byte", 0.0, 0.1),
        ("engine_prefill", "first_byte", 0.1, 0.3),
        ("engine_gap", "first_byte", 0.4, 0.1),
        ("engine_decode", "decode", 0.5, 0.9),
    ]


def test_what_is_not_known_has_no_bar_fc29() -> None:
    assert lay_out({"queue_s": None}, e2e_s=None) == ()
    assert [span.name for span in lay_out({"first_byte_s": 0.5}, e2e_s=0.5)] == ["first_byte"]


@given(st.tuples(*[lengths] * len(NAMES)), lengths)
def test_the_gateways_bars_never_overlap(values: tuple[float | None, ...], e2e_s: float | None) -> None:
    spans = [span for span in lay_out(dict(zip(NAMES, values, strict=True)), e2e_s=e2e_s) if not span.within]

    for earlier, later in zip(spans, spans[1:], strict=False):
        assert later.start_s == pytest.approx(earlier.end_s)
    assert all(span.length_s > 0 for span in spans)
