"""Devices from recorded NVML answers, and the `cpu` device from copies of /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml import FakeNvml
from workers.device_faults import DeviceFault
from workers.devices import (
    DeviceBusy,
    Inventory,
    add_processes,
    find_inventory,
    list_devices,
    lock_devices,
    read_cpu_device,
)

GIB = 2**30


def make_gpu(number: int, **changes: Any) -> dict[str, Any]:
    """An H100 as NVML describes it."""
    return {
        "uuid": f"GPU-{number:08d}",
        "name": "NVIDIA H100 80GB HBM3",
        "memory": {"total": 80 * GIB, "used": 20 * GIB, "free": 60 * GIB},
        "utilization": 37,
        "processes": [[4242, 19 * GIB]],
        "capability": [9, 0],
        "ecc": 0,
        "temperature": 45,
        "power": 312_000,
        "retired_pending": 0,
        "remapped": [0, 0, 0, 0],
        **changes,
    }


def list_recorded(*gpus: dict[str, Any], links: list[list[int]] | None = None, **fields: Any) -> Any:
    return list_devices(nvml=FakeNvml({"devices": list(gpus), "links": links or []}), **fields)


def test_a_gpu_is_listed_with_its_figures() -> None:
    (gpu,) = list_recorded(make_gpu(1))

    assert (gpu.uuid, gpu.kind, gpu.usable) == ("GPU-00000001", "cuda", True)
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes) == (80 * GIB, 60 * GIB)
    assert gpu.compute_capability == (9, 0)
    assert gpu.utilization_ratio == 0.37
    assert gpu.power_w == 312


def test_fc_34_foreign_processes_are_listed_with_their_memory() -> None:
    (gpu,) = list_recorded(make_gpu(1, processes=[[os.getpid(), 3 * GIB], [99999999, None]]))

    assert [(one.pid, one.used_bytes) for one in gpu.processes] == [(os.getpid(), 3 * GIB), (99999999, None)]
    assert gpu.processes[0].name


def test_devices_joined_by_nvlink_are_one_group() -> None:
    gpus = [make_gpu(number) for number in range(5)]

    found = list_recorded(*gpus, links=[[0, 1], [2, 3]])

    assert [gpu.link_group for gpu in found] == [0, 0, 2, 2, None]


def test_a_chain_of_links_is_one_group() -> None:
    found = list_recorded(*[make_gpu(number) for number in range(3)], links=[[0, 1], [1, 2]])

    assert [gpu.link_group for gpu in found] == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ecc": 2}, "2 uncorrected ECC errors"),
        ({"remapped": [0, 1, 1, 0]}, "waits for remapping"),
        ({"remapped": [0, 1, 0, 1]}, "needs replacement"),
        ({"retired_pending": 1}, "wait for retirement"),
        ({"memory": None}, "no memory figures"),
        ({"lost": True}, "does not reach this device"),
    ],
)
def test_a_faulty_device_is_not_usable_and_says_why(changes: dict[str, Any], words: str) -> None:
    sound, faulty = list_recorded(make_gpu(1), make_gpu(2, **changes))

    assert sound.usable
    assert not faulty.usable
    assert words in faulty.reason


def test_a_reported_xid_makes_a_device_unusable_if_it_is_fatal() -> None:
    faults = (DeviceFault("GPU-00000001", 79, "GPU has fallen off the bus."), DeviceFault("GPU-00000002", 13))

    first, second = list_recorded(make_gpu(1), make_gpu(2), faults=faults)

    assert first.reason == "The driver reported Xid 79. GPU has fallen off the bus."
    assert second.usable


def test_a_fatal_xid_event_is_remembered_and_another_is_not() -> None:
    nvml = FakeNvml({"devices": [make_gpu(1), make_gpu(2)], "xids": [[0, 13], [1, 79]]})
    inventory = Inventory(nvml)

    for _ in range(2):
        first, second = inventory.list_devices()

        assert first.usable
        assert second.reason == "The driver reported Xid 79."


def test_counters_that_a_device_lacks_are_no_fault() -> None:
    changes = dict.fromkeys(("ecc", "remapped", "retired_pending", "utilization", "power", "temperature"))

    (gpu,) = list_recorded(make_gpu(1, **changes))

    assert gpu.usable
    assert gpu.utilization_ratio is None
    assert gpu.power_w is None


def test_older_bindings_answer_bytes() -> None:
    (gpu,) = list_recorded(make_gpu(1, uuid=b"GPU-1", name=b"Tesla"))

    assert (gpu.uuid, gpu.name) == ("GPU-1", "Tesla")


def test_without_a_driver_there_is_one_cpu_device() -> None:
    (device,) = list_devices(nvml=FakeNvml({"init_error": True}))

    assert (device.uuid, device.kind, device.usable) == ("cpu", "cpu", True)
    assert device.memory_total_bytes


def test_nvml_is_closed_again() -> None:
    nvml = FakeNvml({"devices": [make_gpu(1)]})

    list_devices(nvml=nvml)

    assert nvml.open == 0


def test_the_inventory_lists_what_is_there_now() -> None:
    assert find_inventory().list_devices()


def write_host(folder: Path, *, node_kb: int = 0, limit: str = "") -> dict[str, Path]:
    proc, system = folder / "proc", folder / "sys"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n")
    (proc / "cpuinfo").write_text("model name\t: Test CPU\n")
    if node_kb:
        node = system / "devices/system/node/node0"
        node.mkdir(parents=True)
        (node / "meminfo").write_text(
            f"Node 0 MemTotal: {node_kb} kB\nNode 0 MemFree: 50 kB\nNode 0 FilePages: 30 kB\n"
        )
    if limit:
        (system / "fs/cgroup").mkdir(parents=True)
        (system / "fs/cgroup/memory.max").write_text(limit)
        (system / "fs/cgroup/memory.current").write_text(str(100 * 1024))
    return {"proc": proc, "system": system}


def test_the_cpu_device_takes_the_memory_of_the_host(tmp_path: Path) -> None:
    device = read_cpu_device(**write_host(tmp_path))

    assert (device.memory_total_bytes, device.memory_free_bytes) == (1000 * 1024, 600 * 1024)
    assert device.name == "Test CPU"


def test_the_cpu_device_ends_where_the_numa_node_of_the_engine_ends(tmp_path: Path) -> None:
    device = read_cpu_device(**write_host(tmp_path, node_kb=400))

    assert (device.memory_total_bytes, device.memory_free_bytes) == (400 * 1024, 80 * 1024)


def test_the_cpu_device_ends_where_the_cgroup_ends(tmp_path: Path) -> None:
    device = read_cpu_device(**write_host(tmp_path, limit=str(300 * 1024)))

    assert (device.memory_total_bytes, device.memory_free_bytes) == (300 * 1024, 200 * 1024)


def test_a_cgroup_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    assert read_cpu_device(**write_host(tmp_path, limit="max")).memory_total_bytes == 1000 * 1024


def test_a_host_that_tells_nothing_has_unknown_memory(tmp_path: Path) -> None:
    device = read_cpu_device(proc=tmp_path, system=tmp_path)

    assert device.memory_total_bytes is None
    assert device.memory_used_bytes is None


def test_engines_on_the_cpu_count_by_their_own_share(tmp_path: Path) -> None:
    device = add_processes(read_cpu_device(**write_host(tmp_path)), [os.getpid(), 99999999])

    assert [one.pid for one in device.processes] == [os.getpid()]
    assert device.processes[0].used_bytes


def test_fc_34_two_starts_on_one_device_do_not_overlap(tmp_path: Path) -> None:
    with (
        lock_devices(["GPU-1", "GPU-2"], folders=[str(tmp_path)]),
        pytest.raises(DeviceBusy),
        lock_devices(["GPU-2"], folders=[str(tmp_path)]),
    ):
        pass

    with lock_devices(["GPU-2"], folders=[str(tmp_path)]):
        pass


def test_a_lock_that_is_not_had_leaves_none_behind(tmp_path: Path) -> None:
    folders = [str(tmp_path)]
    with (
        lock_devices(["b"], folders=folders),
        pytest.raises(DeviceBusy),
        lock_devices(["a", "b"], folders=folders),
    ):
        pass

    with lock_devices(["a"], folders=folders):
        pass
