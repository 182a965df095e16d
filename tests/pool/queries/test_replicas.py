from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.models import Replica
from pool.queries.replicas import find_replica, list_live_replicas, list_replica_status
from tests import factories
from tests.factories import T0

pytestmark = pytest.mark.django_db


def make_replicas(*phases: str) -> list[Replica]:
    release = factories.make_release(factories.make_model())
    node = factories.make_node()
    factories.make_runtime(node)
    return [factories.make_replica(release, node=node, phase=phase, id=f"r-{phase}"[:16]) for phase in phases]


def test_the_live_ones_include_what_failed_and_what_ended_lately() -> None:
    make_replicas("ready", "failed", "stopped", "pending")

    soon = {row.phase for row in list_live_replicas(now=T0 + timedelta(minutes=59))}
    later = {row.phase for row in list_live_replicas(now=T0 + timedelta(minutes=61))}

    assert soon == {"ready", "failed", "stopped", "pending"}
    assert later == {"ready", "failed", "pending"}


@pytest.mark.parametrize(
    ("phase", "kind", "next_retry_at", "retryable"),
    [
        ("failed", "", None, None),
        ("failed", "permanent", None, False),
        ("failed", "transient", T0, True),
        ("failed", "transient", None, False),
        ("loading", "transient", None, True),
        ("loading", "permanent", None, False),
    ],
)
def test_a_failure_says_whether_it_is_tried_again(
    phase: str, kind: str, next_retry_at: datetime | None, retryable: bool | None
) -> None:
    (replica,) = make_replicas(phase)
    Replica.objects.filter(pk=replica.pk).update(failure_kind=kind, next_retry_at=next_retry_at)

    assert list_live_replicas(now=T0)[0].retryable is retryable


def test_a_history_has_the_length_of_each_phase(django_assert_num_queries: Any) -> None:
    (replica,) = make_replicas("ready")
    for second, phase in enumerate(["pending", "starting", "loading", "warming", "ready"]):
        factories.make_phase_change(replica, phase, at=T0 + timedelta(seconds=second * second))

    with django_assert_num_queries(4):
        view = find_replica(replica.pk, now=T0)

    assert view is not None
    assert [step.lasted_s for step in view.history] == [1.0, 3.0, 5.0, 7.0, None]
    assert view.replica.engine_kind == "sim"


def test_a_replica_that_is_not_there_is_none() -> None:
    assert find_replica("none", now=T0) is None


def test_the_status_leaves_stopped_ones_out(django_assert_num_queries: Any) -> None:
    make_replicas("ready", "stopped")

    with django_assert_num_queries(1):
        status = list_replica_status()

    assert [replica.id for replica in status] == ["r-ready"]
