from __future__ import annotations

from pool.domain.replica import Phase
from pool.domain.victims import Victim, pick_victims


def test_fc60_victims_go_from_failed_to_least_loaded() -> None:
    replicas = [
        Victim(id="unknown", phase=Phase.READY),
        Victim(id="busy", phase=Phase.READY, in_flight=9),
        Victim(id="light", phase=Phase.READY, in_flight=1),
        Victim(id="idle", phase=Phase.READY, in_flight=0),
        Victim(id="warming", phase=Phase.WARMING),
        Victim(id="loading", phase=Phase.LOADING),
        Victim(id="starting", phase=Phase.STARTING),
        Victim(id="pending", phase=Phase.PENDING),
        Victim(id="failed", phase=Phase.FAILED),
    ]

    order = pick_victims(replicas, count=9)

    expected = ["failed", "pending", "starting", "loading", "warming", "idle", "light", "busy", "unknown"]
    assert order == expected


def test_a_replica_that_already_leaves_is_no_victim() -> None:
    leaving = [Victim(id="a", phase=Phase.DRAINING), Victim(id="b", phase=Phase.STOPPED)]

    assert pick_victims(leaving, count=2) == []


def test_equal_victims_are_picked_in_a_fixed_order() -> None:
    replicas = [Victim(id=name, phase=Phase.PENDING) for name in ("c", "a", "b")]

    assert pick_victims(replicas, count=2) == ["a", "b"]
