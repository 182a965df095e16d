"""The console with Redis down: changes are saved and answered in time (FC-47)."""

from __future__ import annotations

import time
from functools import cache

import pytest
from django.contrib.auth.models import User

from pool.models import Key, RoutingState
from pool.services import routing
from pool.services.delivery import Deliverer
from tests import factories
from tests.console.api.conftest import client_of

ANSWER_LIMIT_S = 2.0


@pytest.fixture
def _no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        routing, "_deliverer", cache(lambda: Deliverer("unix:///nonexistent/valkey.sock?db=0"))
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_no_redis")
def test_without_redis_a_change_of_routing_is_saved_and_answered_in_time(admin: User) -> None:
    factories.make_routing_state()
    client = client_of(admin)

    started_at = time.monotonic()
    answer = client.post("/api/v1/keys/", {"name": "app"})
    took_s = time.monotonic() - started_at

    assert answer.status_code == 201
    assert took_s < ANSWER_LIMIT_S
    assert (Key.objects.count(), RoutingState.objects.get().version) == (1, 1)
