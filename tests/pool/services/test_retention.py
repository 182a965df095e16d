"""Old rows go in pieces, by a job that runs once per period."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from pool.models import KeyUsage, LoopLease
from pool.queries.overview import load_overview
from pool.services.retention import KEEP_USAGE, drop_old_rows, drop_old_rows_once
from pool.services.runs import claim_run

NOW = datetime(2026, 10, 25, 0, 59, tzinfo=UTC)
"""Two minutes before Central Europe sets its clocks back."""
MINUTE = timedelta(minutes=1)


@pytest.mark.django_db
def test_two_clocks_run_a_job_once_per_period_over_a_change_of_daylight_saving_fc67() -> None:
    runs = []
    for minute in range(180):
        for clock_off in (timedelta(0), timedelta(seconds=20)):
            now = NOW + minute * MINUTE + clock_off
            if claim_run("probe", every=MINUTE, now=now):
                runs.append(minute)

    assert runs == list(range(180))


@pytest.mark.django_db(transaction=True)
def test_of_many_at_the_same_time_one_runs_fc67() -> None:
    LoopLease.objects.create(name="job:probe", holder="0" * 32, until=NOW, beat_at=NOW)

    def claim(_: int) -> bool:
        try:
            return claim_run("probe", every=MINUTE, now=NOW)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(claim, range(8)))

    assert outcomes.count(True) == 1


@pytest.mark.django_db
def test_the_hourly_job_does_its_work_once() -> None:
    assert drop_old_rows_once(NOW) != {}
    assert drop_old_rows_once(NOW + MINUTE) == {}


@pytest.mark.django_db
@pytest.mark.usefixtures("routing_state")
def test_a_jobs_last_run_is_no_loop_that_stopped() -> None:
    claim_run("probe", every=MINUTE, now=NOW)

    assert [loop.name for loop in load_overview(now=NOW).loops] == []


@pytest.mark.django_db
def test_dropping_many_rows_takes_no_memory_fc68() -> None:
    """A twentieth of a million rows, in pieces."""
    day = (NOW - KEEP_USAGE).date() - timedelta(days=1)
    rows = 50_000
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pool_keyusage (day, key, model, requests, prompt_tokens, cached_tokens, output_tokens)"
            " SELECT %s, lpad(n::text, 64, '0'), 'chatty', 1, 1, 1, 1 FROM generate_series(1, %s) n",
            [day, rows],
        )
    KeyUsage.objects.create(day=NOW.date(), key="k", model="chatty")

    tracemalloc.start()
    dropped = drop_old_rows(NOW)["usage"]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert dropped == rows
    assert KeyUsage.objects.count() == 1
    assert peak_bytes < 4 << 20
