from dataclasses import replace

import pytest
from django.utils import timezone

from pool.models import Device, DeviceMemory
from pool.ports import DeviceFacts, DeviceProcess, EngineProcess
from tests.pool.services.world import GIB, make_node
from workers.sampling import Sampler

pytestmark = pytest.mark.django_db
GPU = DeviceFacts(
    uuid="GPU-1",
    kind="cuda",
    index=0,
    name="Test GPU",
    memory_total_bytes=80 * GIB,
    memory_used_bytes=60 * GIB,
    memory_free_bytes=20 * GIB,
    processes=(DeviceProcess(7, 50 * GIB, "engine"), DeviceProcess(8, 10 * GIB, "somebody")),
    compute_capability=(9, 0),
    link_group=0,
)
ENGINE = EngineProcess(
    replica_id="r1",
    generation=1,
    pid=7,
    started_ticks=1,
    running=False,
    exit_code=0,
    signal=None,
    forked=False,
    created_at=0.0,
    ended_at=1.0,
    log_path="",
    address="",
    members=(7,),
)


class Inventory:
    def __init__(self, *devices: DeviceFacts) -> None:
        self.devices = devices

    def list_devices(self) -> tuple[DeviceFacts, ...]:
        return self.devices


def make_sampler(*devices: DeviceFacts) -> Sampler:
    return Sampler(make_node(), Inventory(*devices), lambda: frozenset({7}))


def test_memory_is_told_by_owner_fc34() -> None:
    make_sampler(GPU).run_pass(timezone.now())

    memory = DeviceMemory.objects.get(device__uuid="GPU-1")
    assert (memory.ours_bytes, memory.foreign_bytes, memory.free_bytes) == (50 * GIB, 10 * GIB, 20 * GIB)
    assert [process["ours"] for process in memory.processes] == [True, False]


def test_a_device_that_is_not_listed_any_more_is_unusable() -> None:
    sampler = make_sampler(GPU)
    sampler.run_pass(timezone.now())
    sampler.inventory = Inventory()
    sampler.stored_at = None

    sampler.run_pass(timezone.now())

    gone = Device.objects.get(uuid="GPU-1")
    assert (gone.usable, gone.reason_code) == (False, "device_gone")


def test_a_fault_marks_a_device_with_its_reason() -> None:
    make_sampler(replace(GPU, usable=False, reason="Xid 79: fell off the bus")).run_pass(timezone.now())

    device = Device.objects.get(uuid="GPU-1")
    assert (device.usable, device.reason_text) == (False, "Xid 79: fell off the bus")


def test_a_device_without_a_measurement_stores_none() -> None:
    make_sampler(replace(GPU, memory_free_bytes=None)).run_pass(timezone.now())

    assert not DeviceMemory.objects.filter(device__uuid="GPU-1").exists()


def test_memory_is_back_when_no_process_of_the_engine_holds_any_fc03() -> None:
    sampler = make_sampler(GPU)
    assert not sampler.memory_is_back(ENGINE)

    sampler.inventory = Inventory(replace(GPU, processes=(DeviceProcess(8, 10 * GIB, "somebody"),)))
    assert sampler.memory_is_back(ENGINE)
    assert not sampler.memory_is_back(replace(ENGINE, running=True))
