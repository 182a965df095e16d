from __future__ import annotations

import pytest

from pool.domain.lift import Trait, rank_lifts


def rank(*traits: Trait, chosen: int = 100, rest: int = 1000) -> list[tuple[str, str]]:
    return [(lift.attribute, lift.value) for lift in rank_lifts(traits, chosen=chosen, rest=rest)]


def test_lift_is_the_share_among_the_chosen_over_that_among_the_rest() -> None:
    (lift,) = rank_lifts([Trait("replica", "r1", 80, 200)], chosen=100, rest=1000)

    assert lift.lift == pytest.approx(4.0)
    assert lift.support == 80
    assert (lift.chosen_share, lift.rest_share) == (0.8, 0.2)
    assert lift.p_value < 1e-6


def test_what_nobody_else_has_comes_first() -> None:
    strong, only = Trait("replica", "r1", 80, 200), Trait("key", "aa", 30, 0)

    assert rank(strong, only) == [("key", "aa"), ("replica", "r1")]
    assert rank_lifts([only], chosen=100, rest=1000)[0].lift is None


@pytest.mark.parametrize(
    "trait",
    [
        Trait("lane", "short", 60, 600),  # as frequent as among the rest
        Trait("lane", "short", 10, 600),  # rarer
        Trait("key", "aa", 4, 0),  # too few requests
        Trait("key", "aa", 9, 60),  # may be chance
    ],
)
def test_what_is_not_unusual_is_left_out(trait: Trait) -> None:
    assert rank(trait) == []


def test_a_value_of_a_small_part_explains_too_little() -> None:
    assert rank(Trait("key", "aa", 40, 0), chosen=1000) == []


def test_the_more_values_are_looked_at_the_more_it_takes() -> None:
    lucky = Trait("key", "aa", 12, 50)
    others = [Trait("key", f"k{n}", 5, 50) for n in range(40)]

    assert rank(lucky) == [("key", "aa")]
    assert rank(lucky, *others) == []


@pytest.mark.parametrize(("chosen", "rest"), [(0, 10), (10, 0)])
def test_without_anything_to_compare_nothing_is_said(chosen: int, rest: int) -> None:
    assert rank_lifts([Trait("lane", "a", chosen, rest)], chosen=chosen, rest=rest) == []


def test_the_list_is_bounded_and_in_a_fixed_order() -> None:
    traits = [Trait("key", f"k{n:02}", 50, 10) for n in range(20)]

    assert rank(*traits) == [("key", f"k{n:02}") for n in range(8)]
