"""Partitions come and go while others write and read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from pool.models import RoutingState, SecondCell, Series, StreamPosition
from pool.services.routing import create_routing_state
from pool.telemetry import partitions
from pool.telemetry.maintenance import EVERY, keep_partitions
from pool.telemetry.partitions import PLANS, drop_old, ensure_partition, list_partitions, make_ahead, name_of

NOW = datetime(2031, 5, 4, 12, 30, tzinfo=UTC)
OLD = NOW - timedelta(hours=5)


def names(table: str = "pool_secondcell") -> list[str]:
    """Those of this test's year."""
    return [name for name, start, _ in list_partitions(table) if start.year == NOW.year]


def elsewhere(act: Callable[[], object], *, limit_s: float = 20.0) -> bool:
    """In another connection; True if it came to its end while this one stays as it is."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '5s'")
            act()
        except BaseException as exc:
            failures.append(exc)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(limit_s)
    if failures:
        raise failures[0]
    return not thread.is_alive()


@pytest.fixture
def _tidy() -> None:
    """Partitions outlive the truncation between tests, also those of other tests and years."""
    partitions.forget_known()
    with connection.cursor() as cursor:
        for table in PLANS:
            for name, _start, _end in list_partitions(table):
                cursor.execute(f"DROP TABLE {name}")


@pytest.mark.django_db
@pytest.mark.usefixtures("_tidy")
def test_partitions_are_made_ahead_and_twice_is_once() -> None:
    make_ahead(NOW)
    partitions.forget_known()
    make_ahead(NOW)

    assert names() == [name_of("pool_secondcell", NOW + timedelta(hours=h)) for h in range(4)]
    assert [name[-10:] for name in names("pool_requestrecord")] == ["2031050400", "2031050500"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_tidy")
def test_a_partition_is_attached_while_a_writer_and_a_reader_are_at_work() -> None:
    series = Series.objects.create(model="chatty")
    ensure_partition("pool_secondcell", NOW)
    with transaction.atomic():
        SecondCell.objects.create(series=series, at=NOW, requests=1)
        list(SecondCell.objects.all())
        came_to_its_end = elsewhere(lambda: ensure_partition("pool_secondcell", NOW + timedelta(hours=1)))
        SecondCell.objects.create(series=series, at=NOW + timedelta(hours=1), requests=1)

    assert came_to_its_end
    assert SecondCell.objects.count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_tidy")
def test_a_partition_is_dropped_with_its_rows_and_no_other() -> None:
    series = Series.objects.create(model="chatty")
    for at in (OLD, NOW):
        ensure_partition("pool_secondcell", at)
        SecondCell.objects.create(series=series, at=at, requests=1)

    outcome = drop_old(NOW, {})

    assert outcome["dropped"] >= 1
    assert [row.at for row in SecondCell.objects.all()] == [NOW]
    assert name_of("pool_secondcell", OLD) not in names()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_tidy")
def test_a_drop_that_a_reader_holds_up_blocks_no_writer_and_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "PATIENCE_MS", 300)
    series = Series.objects.create(model="chatty")
    for at in (OLD, NOW):
        ensure_partition("pool_secondcell", at)
    outcomes: list[dict[str, int]] = []
    with transaction.atomic():
        list(SecondCell.objects.all())  # a long report
        elsewhere(lambda: outcomes.append(drop_old(NOW, {})))
        wrote = elsewhere(lambda: SecondCell.objects.create(series=series, at=NOW, requests=1))
    outcomes.append(drop_old(NOW, {}))

    assert outcomes[0]["delayed"] == 1
    assert wrote
    assert (outcomes[1]["dropped"], outcomes[1]["delayed"]) == (1, 0)
    assert name_of("pool_secondcell", OLD) not in names()


@pytest.mark.django_db
@pytest.mark.usefixtures("_tidy")
def test_seconds_are_kept_until_the_cells_made_of_them_are_complete() -> None:
    ensure_partition("pool_secondcell", OLD)
    kept = drop_old(NOW, {10: OLD, 300: OLD})["dropped"], names()
    dropped = drop_old(NOW, {10: NOW, 300: NOW})["dropped"], names()

    assert kept == (0, [name_of("pool_secondcell", OLD)])
    assert dropped == (1, [])


@pytest.mark.django_db
@pytest.mark.usefixtures("_tidy")
def test_the_job_reads_how_far_telemetry_came_and_runs_once_per_period_fc67() -> None:
    RoutingState.objects.all().delete()
    create_routing_state("i-test")
    ensure_partition("pool_secondcell", OLD)
    for resolution_s, at in ((10, OLD), (300, OLD)):
        name = f"sluice:i-test:closed:{resolution_s}"
        StreamPosition.objects.create(pk=name, last_id=str(int(at.timestamp())), updated_at=NOW)
    first, second = keep_partitions(NOW), keep_partitions(NOW + timedelta(seconds=1))
    StreamPosition.objects.update(last_id=str(int(NOW.timestamp())))
    third = keep_partitions(NOW + EVERY)

    assert (first["dropped"], second, third["dropped"]) == (0, {}, 1)
    assert name_of("pool_tensecondcell", NOW.replace(hour=0)) in names("pool_tensecondcell")
