"""Started and stopped over and over: nothing of what a life takes is kept."""

from __future__ import annotations

import os

from launcher.identity import find_parent, is_zombie, list_pids
from pool.models import Device, DeviceClaim, Intent, PortReservation, Replica
from tests.life.box import Box, is_alive

CYCLES, ENGINES = 10, 3


def test_thirty_lives_leave_no_zombie_no_port_and_no_claim_fc49(box: Box) -> None:
    keeper = int(box.host.read_status()["pid"])
    Device.objects.bulk_create(
        Device(node=box.node, index=index, uuid=f"cpu-{index}", kind="cpu") for index in range(1, ENGINES)
    )
    ended: list[int] = []
    for _ in range(CYCLES):
        box.scale(ENGINES)
        ended += [row.pid or 0 for row in box.run_until_ready(ENGINES)]
        box.scale(0)
        box.run_until(lambda: not Replica.objects.exclude(phase="stopped").exists())

    assert len(set(ended)) == CYCLES * ENGINES
    assert not any(is_alive(pid) for pid in ended)
    assert [pid for pid in list_pids() if find_parent(pid) in (keeper, os.getpid()) and is_zombie(pid)] == []
    assert not PortReservation.objects.exists()
    assert not DeviceClaim.objects.exists()
    assert not Intent.objects.filter(phase__in=["pending", "claimed"]).exists()
    box.run_until(lambda: not box.host.list_engines())
    assert list((box.folder / "engines").glob("r*")) == []
    assert box.host.read_status()["engines"] == 0
