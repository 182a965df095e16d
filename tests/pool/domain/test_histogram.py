import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.histogram import LAST_BUCKET, LOWEST_S, Histogram, bucket_of, value_of

times = st.floats(min_value=1e-4, max_value=3600, allow_nan=False)
samples = st.lists(times, min_size=1, max_size=300)


@given(times)
def test_every_value_is_kept_within_one_percent(value: float) -> None:
    assert abs(value_of(bucket_of(value)) - value) <= 0.01 * value


@given(samples, st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_quantiles_agree_with_brute_force(values: list[float], share: float) -> None:
    exact = sorted(values)[min(len(values) - 1, max(0, math.ceil(share * len(values)) - 1))]

    estimate = Histogram.of(values).quantile(share)

    assert estimate is not None
    assert abs(estimate - exact) <= 0.0101 * exact


@given(samples, samples)
def test_merging_is_the_same_as_adding_all(left: list[float], right: list[float]) -> None:
    merged = Histogram.of(left).merge(Histogram.of(right))

    assert merged.counts == Histogram.of(left + right).counts
    assert merged.subtract(Histogram.of(right)).counts == Histogram.of(left).counts


@given(samples)
def test_bytes_bring_everything_back(values: list[float]) -> None:
    before = Histogram.of(values)

    after = Histogram.from_bytes(before.to_bytes())

    assert after.counts == before.counts
    assert after.sum_s == pytest.approx(before.sum_s, abs=1e-6)


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram.from_bytes(Histogram().to_bytes()).count == 0


def test_values_outside_the_range_land_in_the_outer_buckets() -> None:
    assert bucket_of(0) == bucket_of(LOWEST_S) == 0
    assert bucket_of(1e9) == LAST_BUCKET


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no length of time"):
        Histogram().add(value)


def test_subtracting_what_was_never_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no former state"):
        Histogram.of([1.0]).subtract(Histogram.of([2.0]))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02",
        b"\x01" + bytes(8),
        b"\x02" + bytes(8) + b"\x01",
        b"\x02" + bytes(8) + b"\xff\x7f\x01\x00\x00\x00",
    ],
)
def test_foreign_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="histogram|beyond"):
        Histogram.from_bytes(content)


def test_slow_replica_shows_in_the_merged_p99_fc30() -> None:
    fast, slow = Histogram(), Histogram()
    fast.add(0.05, times=980)
    slow.add(5.0, times=20)

    assert fast.merge(slow).quantile(0.99) == pytest.approx(5.0, rel=0.01)
