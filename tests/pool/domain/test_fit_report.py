from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pool.domain.fit_report import FitOutcome, FitReport, Pool, Timing, Wanted, plan_fit
from pool.domain.fit_search import Holder, Role
from pool.domain.memory import GIB
from pool.domain.placement import DeviceView, NodeView
from tests.pool.domain.test_placement import GPU, NEED, NODE

FULL = replace(GPU, free_bytes=8 * GIB, replicas=1)
START = Timing(40.0, 5, "release")
STOP = Timing(4.0, 3, "runtime")


def holder(name: str, role: Role, *keys: tuple[str, str], size: float | None = 70, **values: Any) -> Holder:
    held = None if size is None else round(size * GIB)
    places = dict.fromkeys(keys or (("a", "GPU-0"),), held)
    fields: dict[str, Any] = {"model": "m", "release": 1, "lane": "", "is_ready": True}
    return Holder(replica=name, role=role, places=places, **(fields | values))


def node(name: str, *devices: DeviceView) -> NodeView:
    return replace(NODE, name=name, zone=name, devices=devices)


def plan(
    *holders: Holder,
    nodes: tuple[NodeView, ...] = (node("a", FULL),),
    count: int = 1,
    start: Timing | None = START,
    stop: Timing | None = STOP,
    back: Timing | None = START,
    **wanted: Any,
) -> FitReport:
    fields: dict[str, Any] = {"lane": "", "count": count, "need": NEED, "nodes": nodes, "start": start}
    pool = Pool(holders=holders, indexes={}, ages_s={}, stop=stop, stable_start=back)
    return plan_fit([Wanted(**(fields | wanted))], pool, steps=2)


def used(report: FitReport, device: int = 0) -> dict[str, float | None]:
    stages = report.devices[device].stages
    return {one.stage: None if one.used_bytes is None else one.used_bytes / GIB for one in stages}


def test_a_free_device_takes_the_candidate_beside_stable() -> None:
    nodes = (node("a", FULL, replace(GPU, id="GPU-1")),)

    report = plan(holder("stable", Role.STABLE), nodes=nodes)

    assert report.outcome is FitOutcome.FITS_BESIDE
    assert [(place.node, place.devices) for place in report.places] == [("a", ("GPU-1",))]
    assert used(report) == {
        "before": 1, "loading": 69, "step 1": 69, "step 2": 69, "holding": 69, "after": 69,
    }  # fmt: skip
    assert used(report, 1)["before"] == used(report, 1)["holding"] == 72
    assert used(report, 1)["after"] == 2
    assert report.outage is None


def test_idle_replicas_are_named_where_their_end_makes_room() -> None:
    report = plan(holder("stable", Role.STABLE), holder("idle", Role.IDLE, model="other", release=7))

    assert report.outcome is FitOutcome.FITS_IF_STOPPED
    assert [(row.replica, row.size_bytes) for row in report.stop] == [("idle", 70 * GIB)]
    assert report.swap == ()
    assert "idle (other release 7)" in report.text
    assert used(report)["loading"] == 72 - 70 + 68


def test_no_more_replicas_stop_than_have_to() -> None:
    idle = [holder(f"idle-{number}", Role.IDLE, size=20) for number in range(2)]
    large = holder("large", Role.IDLE, size=65)

    report = plan(*idle, large)

    assert [row.replica for row in report.stop] == ["large"]


def test_fc_16_only_stable_in_the_way_is_a_swap_with_its_outage() -> None:
    report = plan(holder("stable", Role.STABLE))

    assert report.outcome is FitOutcome.SWAP_ONLY
    assert [row.replica for row in report.swap] == ["stable"]
    assert report.outage is not None
    assert (report.outage.seconds, report.outage.rollback_seconds) == (44.0, 44.0)
    assert (report.outage.is_full, report.outage.lanes) == (True, ("",))
    assert (
        "For about 44 s nobody serves (medians of 5 starts of its release and 3 stops of its runtime"
        in report.text
    )


@pytest.mark.parametrize(("start", "stop"), [(None, STOP), (START, None)])
def test_an_outage_that_was_never_measured_is_unknown(start: Timing | None, stop: Timing | None) -> None:
    report = plan(holder("stable", Role.STABLE), start=start, stop=stop, back=None)

    assert report.outage is not None
    assert (report.outage.seconds, report.outage.rollback_seconds) == (None, None)
    assert "How long nobody serves is unknown" in report.outage.text


def test_starts_on_one_device_follow_each_other() -> None:
    small = replace(NEED, settings=replace(NEED.settings, gpu_memory_utilization=0.4))

    report = plan(holder("stable", Role.STABLE), need=small, count=2)

    assert report.outage is not None
    assert report.outage.seconds == 84.0
    assert report.devices[0].candidate_replicas == 2


def test_a_swap_of_one_of_two_leaves_stable_serving() -> None:
    nodes = (node("a", FULL), node("b", replace(FULL, id="GPU-1")))

    report = plan(holder("one", Role.STABLE), holder("two", Role.STABLE, ("b", "GPU-1")), nodes=nodes)

    assert [row.replica for row in report.swap] == ["one"]
    assert report.outage is not None
    assert (report.outage.is_full, report.outage.lanes) == (False, ())
    assert "fewer replicas of stable serve" in report.text


def test_others_are_never_stopped_and_what_is_missing_is_said() -> None:
    report = plan(holder("other", Role.OTHER))

    assert report.outcome is FitOutcome.IMPOSSIBLE
    assert report.missing == ("node a: 60.00 GiB short on GPU-0: 8.00 GiB of 80.00 GiB free",)


def test_a_replica_that_leaves_is_waited_for() -> None:
    report = plan(holder("stable", Role.STABLE), holder("old", Role.LEAVING))

    assert report.outcome is FitOutcome.FITS_BESIDE
    assert report.waits_for == ("old",)
    assert "once old has left" in report.text


def test_a_size_that_nobody_measured_makes_no_room() -> None:
    report = plan(holder("stable", Role.STABLE, size=None))

    assert report.outcome is FitOutcome.UNKNOWN
    assert "What stable holds is not measured" in report.text


def test_a_device_that_nobody_measured_is_unknown_and_not_full() -> None:
    report = plan(nodes=(node("a", replace(GPU, free_bytes=None)),))

    assert report.outcome is FitOutcome.UNKNOWN
    assert "no fresh measurement" in report.text


def test_facts_that_are_not_known_are_no_place_and_no_refusal() -> None:
    report = plan(need=None, why="The facts of version 'v2' are not known yet.", is_unknown=True)

    assert report.outcome is FitOutcome.UNKNOWN
    assert report.unknown == ("The facts of version 'v2' are not known yet.",)


def test_a_runtime_that_no_node_has_is_impossible() -> None:
    report = plan(need=None, why="No node has a runtime 'x'.")

    assert report.outcome is FitOutcome.IMPOSSIBLE
    assert report.missing == ("No node has a runtime 'x'.",)


def test_what_nobody_told_leaves_the_memory_afterwards_open() -> None:
    nodes = (node("a", FULL, replace(GPU, id="GPU-1")),)

    report = plan(holder("stable", Role.STABLE, size=None), nodes=nodes)

    assert report.outcome is FitOutcome.FITS_BESIDE
    assert used(report, 1)["holding"] == 72
    assert used(report, 1)["after"] is None


def test_two_lanes_share_one_ledger() -> None:
    lanes = [Wanted(lane=lane, count=1, need=NEED, nodes=(node("a", GPU),)) for lane in ("short", "long")]

    report = plan_fit(lanes, Pool(holders=(), indexes={}, ages_s={}), steps=1)

    assert report.outcome is FitOutcome.IMPOSSIBLE
    assert [place.lane for place in report.places] == ["short"]
    assert report.as_json()["outcome"] == "impossible"
