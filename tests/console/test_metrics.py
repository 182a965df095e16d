from __future__ import annotations

import asyncio

import pytest
from django.contrib.auth.models import User
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries

from console.loop_lag import LoopLag
from tests.factories import make_token

pytestmark = pytest.mark.django_db
PROXIED = {"HTTP_X_FORWARDED_FOR": "10.0.0.1"}


def test_this_host_is_answered_without_the_database(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(0):
        answer = Client().get("/metrics")

    families = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}
    assert answer.status_code == 200
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6


@pytest.mark.parametrize("from_where", [{"REMOTE_ADDR": "10.0.0.1"}, PROXIED])
def test_others_need_a_token_of_who_may_view(
    from_where: dict[str, str], viewer: User, stranger: User
) -> None:
    client = Client(**from_where)  # type: ignore[arg-type]
    tokens = ["", "wrong", make_token(stranger), make_token(viewer)]

    statuses = [
        client.get("/metrics", headers={"Authorization": f"Bearer {token}"} if token else {}).status_code
        for token in tokens
    ]

    assert statuses == [401, 401, 401, 200]


def test_a_session_alone_is_not_enough_for_a_page_that_no_browser_needs(viewer: User) -> None:
    client = Client(REMOTE_ADDR="10.0.0.1")
    client.force_login(viewer, backend="django.contrib.auth.backends.ModelBackend")

    assert client.get("/metrics").status_code == 401


def test_the_lag_of_a_loop_is_the_longest_of_its_last_readings() -> None:
    lag = LoopLag()

    async def run() -> None:
        task = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.6)
        task.cancel()

    before = lag.longest_s
    asyncio.run(run())

    assert before is None
    assert lag.longest_s is not None
    assert lag.longest_s >= 0
