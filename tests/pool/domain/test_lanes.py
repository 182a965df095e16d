from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.lanes import InvalidLanes, Lane, check_lanes, default_lanes, lane_of
from pool.domain.names import InvalidName

SHORT = Lane(name="short", max_prompt_tokens=10, concurrency=1, ttft_target_ms=300)
LONG = Lane(name="long", max_prompt_tokens=None, concurrency=1, ttft_target_ms=2000)


@pytest.mark.parametrize(
    ("context", "bounds"),
    [
        (None, [4096, 16384, None]),
        (131_072, [4096, 16384, None]),
        (8192, [512, 2048, None]),
        (64, [4, 16, None]),
        (63, [None]),
    ],
)
def test_default_lanes_are_clipped_to_the_context(context: int | None, bounds: list[int | None]) -> None:
    assert [lane.max_prompt_tokens for lane in default_lanes(context)] == bounds


@given(st.integers(1, 2**21))
def test_default_lanes_always_pass_the_check(context: int) -> None:
    assert check_lanes(default_lanes(context))


@given(st.integers(0, 30))
def test_a_prompt_belongs_to_the_first_lane_whose_bound_is_above_it(tokens: int) -> None:
    assert lane_of(tokens, (SHORT, LONG)).name == ("short" if tokens < 10 else "long")


@pytest.mark.parametrize(
    "lanes",
    [
        (),
        (SHORT,),
        (LONG, LONG),
        (LONG, replace(LONG, name="other")),
        (SHORT, replace(SHORT, name="mid"), LONG),
        (replace(SHORT, max_prompt_tokens=0), LONG),
        (replace(LONG, concurrency=0),),
    ],
)
def test_lanes_that_leave_a_gap_or_overlap_are_refused(lanes: tuple[Lane, ...]) -> None:
    with pytest.raises(InvalidLanes):
        check_lanes(lanes)


def test_lanes_have_plain_names() -> None:
    with pytest.raises(InvalidName):
        check_lanes((replace(LONG, name="a lane"),))
