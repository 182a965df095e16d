"""Old rows go in pieces, by a job that runs once per period."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from pool.models import (
    Alert,
    AlertEvent,
    GoldenRun,
    KeyUsage,
    LoopLease,
    Notice,
    Restriction,
    Rollout,
    Webhook,
)
from pool.queries.overview import load_overview
from pool.services.retention import (
    GOLDEN_PER_ROLLOUT,
    KEEP_ALERTS,
    KEEP_GOLDEN,
    KEEP_NOTICES,
    KEEP_USAGE,
    drop_old_rows,
    drop_old_rows_once,
)
from pool.services.runs import claim_run
from tests.factories import make_model, make_node, make_release, make_replica

NOW = datetime(2026, 10, 25, 0, 59, tzinfo=UTC)
"""Two minutes before Central Europe sets its clocks back."""
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


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


def make_alert(subject: str, *, closed_at: datetime | None) -> Alert:
    return Alert.objects.create(
        source="slo", rule="ttft_p99", subject=subject, level="orange", peak="orange", opened_at=NOW - 500 * DAY,
        level_since=NOW - 500 * DAY, seen_at=NOW, closed_at=closed_at,
    )  # fmt: skip


@pytest.mark.django_db
def test_closed_alerts_stay_for_thirteen_months_and_open_ones_for_ever() -> None:
    model = make_model("chatty")
    for subject, closed_at in (
        ("open", None),
        ("new", NOW - KEEP_ALERTS + DAY),
        ("old", NOW - KEEP_ALERTS - DAY),
    ):
        alert = make_alert(subject, closed_at=closed_at)
        AlertEvent.objects.create(alert=alert, at=NOW, kind="raised")
        Restriction.objects.create(
            model=model,
            lane=subject,
            kind="shed_batch",
            until=NOW,
            alert=alert,
            made_by="slo",
            ended_at=closed_at,
        )

    dropped = drop_old_rows(NOW)

    assert (dropped["alerts"], dropped["restrictions"]) == (2, 1)
    assert set(Alert.objects.values_list("subject", flat=True)) == {"open", "new"}
    assert set(Restriction.objects.values_list("lane", flat=True)) == {"open", "new"}
    assert AlertEvent.objects.count() == 2


@pytest.mark.django_db
def test_sent_notices_stay_for_thirty_days_and_due_ones_until_they_are_sent() -> None:
    webhook = Webhook.objects.create(name="pager", url="https://example.com/")
    old, new = NOW - KEEP_NOTICES - DAY, NOW - KEEP_NOTICES + DAY
    for name, at, due_at in (("sent", old, None), ("lately", new, None), ("due", old, NOW)):
        Notice.objects.create(webhook=webhook, body={"name": name}, created_at=at, due_at=due_at)

    assert drop_old_rows(NOW)["notices"] == 1

    assert {row.body["name"] for row in Notice.objects.all()} == {"lately", "due"}


@pytest.mark.django_db
def test_golden_runs_go_by_age_and_number_but_not_under_a_rollout_that_goes_on() -> None:
    model = make_model("chatty")
    release = make_release(model)
    replica = make_replica(release, id="r1", node=make_node())
    stable = make_release(model, number=2)
    over, running = (
        Rollout.objects.create(
            id=phase,
            model=model,
            candidate=release,
            stable=stable,
            base_plan=1,
            steps=[],
            phase=phase,
            ended_at=ended_at,
        )
        for phase, ended_at in (("promoted", NOW), ("holding", None))
    )

    def ask(rollout: Rollout | None, count: int, *, ago: timedelta, phase: str = "done") -> None:
        GoldenRun.objects.bulk_create(
            GoldenRun(
                rollout=rollout, model=model, stage=f"step {number}", replica=replica, generation=1, questions=[],
                phase=phase, asked_at=NOW - ago,
            )
            for number in range(count)
        )  # fmt: skip

    ask(over, 3, ago=KEEP_GOLDEN + DAY)
    ask(over, GOLDEN_PER_ROLLOUT + 2, ago=DAY)
    ask(running, GOLDEN_PER_ROLLOUT + 2, ago=KEEP_GOLDEN + DAY)
    ask(None, GOLDEN_PER_ROLLOUT + 2, ago=DAY)
    ask(None, 1, ago=KEEP_GOLDEN + DAY, phase="waiting")

    assert drop_old_rows(NOW)["golden_runs"] == 3 + 2 + 2

    assert GoldenRun.objects.filter(rollout=over).count() == GOLDEN_PER_ROLLOUT
    assert GoldenRun.objects.filter(rollout=running).count() == GOLDEN_PER_ROLLOUT + 2
    assert GoldenRun.objects.filter(rollout=None).count() == GOLDEN_PER_ROLLOUT + 1
