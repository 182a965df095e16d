"""Usage totals are booked exactly once, whatever is lost or sent again (FC-57)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
import redis
from django.db import OperationalError

from pool.models import KeyUsage, UsagePosition
from pool.services.retention import KEEP_ENDED_RUNS, drop_old_rows
from pool.telemetry import usage
from pool.telemetry.usage import Booker

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NAME = "sluice:i-test:usage"
KEY = "ab" * 32

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(os.environ["SLUICE_REDIS_URL"])
    found.delete(NAME)
    yield found
    found.delete(NAME)


def send(
    client: redis.Redis, requests: int, *, run: str = "g1-100", model: str = "chatty", day: str = "2026-11-30"
) -> None:
    totals = {"requests": requests, "prompt_tokens": 10 * requests, "output_tokens": 5 * requests}
    client.hset(NAME, f"{run}|{day}|{KEY}|{model}", json.dumps(totals))


def booked(model: str = "chatty") -> tuple[int, int, int, int]:
    row = KeyUsage.objects.get(model=model)
    return row.requests, row.prompt_tokens, row.cached_tokens, row.output_tokens


def test_what_grew_is_added_and_what_did_not_is_not(client: redis.Redis) -> None:
    booker = Booker(client)
    send(client, 3)
    first = booker.book("i-test", now=NOW)
    second = booker.book("i-test", now=NOW)
    send(client, 5)
    third = booker.book("i-test", now=NOW)

    assert (first, second, third) == (1, 0, 1)
    assert booked() == (5, 50, 0, 25)


def test_a_new_process_adds_nothing_twice_fc57(client: redis.Redis) -> None:
    for requests in (3, 3, 4):
        send(client, requests)
        Booker(client).book("i-test", now=NOW)

    assert booked() == (4, 40, 0, 20)


def test_a_booking_that_failed_is_made_up_for_once_fc57(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    booker = Booker(client)
    send(client, 3)
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise OperationalError("PostgreSQL is away")

        patch.setattr(usage, "book_totals", fail)
        with pytest.raises(OperationalError):
            booker.book("i-test", now=NOW)
    send(client, 7)
    booker.book("i-test", now=NOW)

    assert booked() == (7, 70, 0, 35)


def test_runs_of_several_gateways_add_up(client: redis.Redis) -> None:
    send(client, 3, run="g1-100")
    send(client, 4, run="g2-100")
    send(client, 2, run="g1-200")
    Booker(client).book("i-test", now=NOW)

    assert booked() == (9, 90, 0, 45)


def test_a_total_that_fell_takes_nothing_back(client: redis.Redis) -> None:
    for requests in (5, 2, 6):
        send(client, requests)
        Booker(client).book("i-test", now=NOW)

    assert booked() == (6, 60, 0, 30)


def test_a_redis_that_lost_everything_changes_nothing(client: redis.Redis) -> None:
    booker = Booker(client)
    send(client, 5)
    booker.book("i-test", now=NOW)
    client.delete(NAME)
    booker.book("i-test", now=NOW)
    send(client, 6)
    booker.book("i-test", now=NOW)

    assert booked() == (6, 60, 0, 30)


def test_a_run_that_is_over_leaves_redis_once_it_is_booked(client: redis.Redis) -> None:
    send(client, 5)
    send(client, 1, run="g2-100")
    client.hset(NAME, "g1-100", "ended")
    Booker(client).book("i-test", now=NOW)

    assert sorted(client.hkeys(NAME)) == [f"g2-100|2026-11-30|{KEY}|chatty".encode()]
    assert booked() == (6, 60, 0, 30)
    assert UsagePosition.objects.count() == 2


def test_only_positions_of_runs_that_are_over_are_dropped(client: redis.Redis) -> None:
    send(client, 5)
    send(client, 1, run="g2-100")
    client.hset(NAME, "g1-100", "ended")
    Booker(client).book("i-test", now=NOW)
    drop_old_rows(NOW + KEEP_ENDED_RUNS + timedelta(days=1))

    assert [row.run for row in UsagePosition.objects.all()] == ["g2-100"]


def test_a_model_may_be_named_with_the_separator_and_days_stay_apart(client: redis.Redis) -> None:
    send(client, 1, model="a|b")
    send(client, 2, model="a|b", day="2026-11-29")
    client.hset(NAME, "nonsense|x", "{}")
    booker = Booker(client)
    booker.book("i-test", now=NOW)

    rows = {row.day: (row.model, row.requests) for row in KeyUsage.objects.all()}
    assert rows == {date(2026, 11, 29): ("a|b", 2), date(2026, 11, 30): ("a|b", 1)}
    assert booker.unreadable == 1


def test_more_totals_than_one_transaction_takes(client: redis.Redis) -> None:
    for number in range(usage.CHUNK + 20):
        send(client, 1, model=f"m{number}")

    assert Booker(client).book("i-test", now=NOW) == usage.CHUNK + 20
    assert KeyUsage.objects.count() == usage.CHUNK + 20
