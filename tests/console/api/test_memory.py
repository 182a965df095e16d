from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from pool.domain.gauges import Subject
from tests import factories
from tests.factories import GIB
from tests.memory_seed import make_cell, store_sample

pytestmark = pytest.mark.django_db
R1 = Subject("replica", "r1", node="node-a", model="chatty", release=1)


@pytest.fixture(autouse=True)
def _pool() -> None:
    node = factories.make_node()
    sizes: dict[str, Any] = {"free_bytes": 30 * GIB, "ours_bytes": 50 * GIB, "measured_at": timezone.now()}
    device = factories.make_device(node, **sizes)
    release = factories.make_release(factories.make_model("chatty"))
    factories.make_replica(release, node=node, id="r1", device_uuids=[device.uuid])
    gauges = {"weights_bytes": 10.0 * GIB, "kv_bytes": 40.0 * GIB}
    store_sample(R1, timezone.now(), make_cell(used=70, reusable=20, free=10, tail=0.25, gauges=gauges))


def test_the_pools_devices_add_up(as_viewer: APIClient) -> None:
    body = as_viewer.get("/api/v1/memory/").json()

    [device] = body["devices"]
    assert sum(part["size_bytes"] for part in device["parts"]) == device["total_bytes"] == 80 * GIB
    assert {part["owner"]: part["replica"] for part in device["parts"]} == {
        "weights": "r1", "kv_used": "r1", "kv_tail": "r1", "kv_reusable": "r1", "unused": "r1", "free": None,
    }  # fmt: skip
    assert (body["room"]["largest_fit_bytes"], body["room"]["moves"]) == (30 * GIB, [])


def test_a_models_replicas_tell_their_kv_caches(as_viewer: APIClient) -> None:
    [replica] = as_viewer.get("/api/v1/models/chatty/memory/").json()["replicas"]

    assert (replica["kv_used_blocks"], replica["kv_reusable_blocks"], replica["kv_free_blocks"]) == (
        70,
        20,
        10,
    )
    assert (replica["kv_tail_ratio"], replica["allocator_ratio"]) == (0.25, None)
    assert replica["measured"]["state"] == "measured"


def test_a_map_has_values_and_gaps(as_viewer: APIClient) -> None:
    body = as_viewer.get("/api/v1/memory/map/?kind=kv_tail&minutes=5&model=chatty").json()

    [row] = body["rows"]
    assert [mean for mean in row["means"] if mean is not None] == [0.25]
    assert (len(row["means"]), body["column_s"], row["replica"]) == (body["columns"], 1, "r1")


def test_a_map_takes_a_time_of_its_own(as_viewer: APIClient) -> None:
    start = timezone.now() - timedelta(hours=3)

    body = as_viewer.get(
        "/api/v1/memory/map/", {"from": start.isoformat(), "to": (start + timedelta(hours=2)).isoformat()}
    ).json()

    assert (body["rows"], body["column_s"], body["newest"]["state"]) == ([], 30, "absent")


@pytest.mark.parametrize(
    "query",
    [
        "kind=heat",
        "minutes=0",
        "from=yesterday",
        "from=2026-01-01T00:00:00Z",
        "from=2999-01-01T00:00:00Z",
        "to=0001-01-01T00:00:00Z",
        "to=9999-12-31T23:59:59Z",
    ],
)
def test_a_bad_query_is_refused(as_viewer: APIClient, query: str) -> None:
    answer = as_viewer.get(f"/api/v1/memory/map/?{query}")

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid"


def test_an_unknown_model_is_not_found(as_viewer: APIClient) -> None:
    assert as_viewer.get("/api/v1/models/nosuch/memory/").status_code == 404
