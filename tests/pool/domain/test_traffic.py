"""The sticky choice of a release and where a request may spill."""

from collections import Counter

import pytest

from pool.domain.traffic import choose_release, choose_spill

KEYS = [f"conversation-{number}".encode() for number in range(4000)]


@pytest.mark.parametrize("weights", [{1: 95, 2: 5}, {1: 50, 2: 50}, {1: 20, 2: 30, 3: 50}])
def test_fc45_shares_follow_the_weights(weights: dict[int, int]) -> None:
    counts = Counter(choose_release(weights, key) for key in KEYS)

    for release, percent in weights.items():
        share = percent / 100
        four_sigma = 4 * (share * (1 - share) * len(KEYS)) ** 0.5
        assert abs(counts[release] - share * len(KEYS)) < four_sigma


def test_fc45_the_same_key_keeps_its_release() -> None:
    first = [choose_release({1: 70, 2: 30}, key) for key in KEYS]

    assert first == [choose_release({2: 30, 1: 70}, key) for key in KEYS]


def test_fc45_growing_a_weight_moves_only_what_it_must() -> None:
    before = {key: choose_release({1: 90, 2: 10}, key) for key in KEYS}

    after = {key: choose_release({1: 80, 2: 20}, key) for key in KEYS}

    assert all(after[key] == 2 for key in KEYS if before[key] == 2)
    moved = sum(before[key] != after[key] for key in KEYS)
    assert 0.07 < moved / len(KEYS) < 0.13


def test_fc45_weight_zero_gets_nothing() -> None:
    assert {choose_release({1: 0, 2: 100, 3: 0}, key) for key in KEYS} == {2}
    assert {choose_release({1: 0, 2: 60, 3: 40}, key) for key in KEYS} == {2, 3}


@pytest.mark.parametrize("weights", [{}, {1: 0}])
def test_without_weight_there_is_no_release(weights: dict[int, int]) -> None:
    assert choose_release(weights, b"key") is None


@pytest.mark.parametrize(
    ("weights", "with_capacity", "expected"),
    [
        ({1: 90, 2: 10}, {1, 2}, 1),
        ({1: 90, 2: 10}, {2}, 2),
        ({2: 50, 1: 50}, {1, 2}, 1),
        ({1: 100, 2: 0}, {2}, None),
        ({1: 100}, set(), None),
        ({}, {1}, None),
    ],
)
def test_spill_goes_to_the_heaviest_release_with_capacity(
    weights: dict[int, int], with_capacity: set[int], expected: int | None
) -> None:
    assert choose_spill(weights, with_capacity.__contains__) == expected
