"""The store benchmark on a small day: its figures that no machine changes are within their limits."""

from __future__ import annotations

import pytest

from bench import _telemetry_day as day
from bench.telemetry import QUANTILE_LIMIT
from pool.telemetry import partitions

RECORDS = 2 * len(day.SERIES) * day.STEPS
"""Two in each cell."""


@pytest.mark.django_db(transaction=True)
def test_a_day_is_made_compared_with_all_raw_values_and_dropped_fc30() -> None:
    partitions.forget_known()
    values = day.make(RECORDS)
    error, missing = day.compare_quantiles(values)
    made = day.count_records()
    dropped = day.drop_while_writing()

    assert (made, len(values), missing) == (RECORDS, RECORDS, 0)
    assert error <= QUANTILE_LIMIT
    assert dropped.drop_ms > 0
    start = day.start_of_day()
    assert [at for _, at, _ in partitions.list_partitions("pool_requestrecord") if at == start] == []
    assert day.count_records() > 0, "the writer's records of today stay"
