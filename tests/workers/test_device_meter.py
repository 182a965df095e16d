"""Ten readings a second, folded; what a device refuses is absent and not asked again and again."""

from __future__ import annotations

from typing import Any

from pool.domain.gauges import GaugeCell
from pool.domain.prometheus import Page
from pool.ports import DeviceFacts, DeviceProcess
from tests.fakes.nvml import FakeNvml
from workers.device_meter import DeviceMeter

GIB = 2**30
H100 = {
    "uuid": "GPU-1", "memory": {"total": 80 * GIB, "used": 60 * GIB, "free": 20 * GIB}, "utilization": 97,
    "memory_activity": 40, "processes": [[7, 50 * GIB], [8, 9 * GIB]], "power": 650_000, "temperature": 71,
    "clocks": {"1": 1980, "2": 2619}, "throttle": 4, "pcie": [120_000, 80_000], "gpm_supported": 1, "bandwidth": 62.5,
}  # fmt: skip
PLAIN = {
    "uuid": "GPU-2",
    "memory": {"total": 24 * GIB, "used": GIB, "free": 23 * GIB},
    "utilization": 0,
    "throttle": 1,
}
"""As a consumer GPU in a container answers: no GPM, no PCIe counters, no processes; its clock is low as it idles."""
HOST = DeviceFacts(
    "cpu", "cpu", 0, "cpu", 1000, 400, 600, processes=(DeviceProcess(7, 150), DeviceProcess(9, 50))
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make_meter(
    *devices: dict[str, Any], nvml: FakeNvml | None = None, clock: Clock | None = None
) -> DeviceMeter:
    fake = nvml or (FakeNvml({"devices": [dict(one) for one in devices]}) if devices else None)
    return DeviceMeter(fake, our_pids=lambda: frozenset({7}), read_host=lambda: HOST, clock=clock or Clock())


def run_seconds(
    meter: DeviceMeter, clock: Clock, seconds: float, *, every_s: float = 0.1
) -> list[dict[str, GaugeCell]]:
    for _ in range(round(seconds / every_s) + 1):
        meter.read_once()
        clock.now += every_s
    return [cells for _, cells, _ in meter.take_seconds()]


def test_a_second_holds_low_mean_and_high_of_ten_readings() -> None:
    clock = Clock()
    nvml = FakeNvml({"devices": [dict(H100)]})
    meter = make_meter(nvml=nvml, clock=clock)
    for value in (10, 100, 40):
        nvml._recording["devices"][0]["utilization"] = value
        meter.read_once()
        clock.now += 0.4

    (second,) = run_seconds(meter, clock, 0)

    found = second["GPU-1"].gauges["utilization_ratio"]
    assert (found.low, found.high, found.count, round(found.mean, 3)) == (0.1, 1.0, 3, 0.5)


def test_all_that_a_server_gpu_tells() -> None:
    clock = Clock()

    seconds = run_seconds(make_meter(H100, clock=clock), clock, 2.5)

    cell = seconds[1]["GPU-1"]
    told = {name: round(one.mean, 4) for name, one in cell.gauges.items()}
    assert told == {
        "utilization_ratio": 0.97, "memory_activity_ratio": 0.4, "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 60 * GIB, "memory_free_bytes": 20 * GIB, "memory_ours_bytes": 50 * GIB,
        "memory_foreign_bytes": 9 * GIB, "throttled": 1.0, "power_w": 650.0, "sm_clock_hz": 1.98e9,
        "memory_clock_hz": 2.619e9, "temperature_c": 71.0, "pcie_tx_bytes_per_s": 1.2e8, "pcie_rx_bytes_per_s": 8e7,
        "bandwidth_ratio": 0.625,
    }  # fmt: skip
    assert cell.gauges["utilization_ratio"].count in (10, 11)
    assert cell.gauges["pcie_tx_bytes_per_s"].count == 2


def test_what_a_device_refuses_is_absent_and_asked_again_after_a_minute() -> None:
    clock = Clock()
    meter = make_meter(PLAIN, clock=clock)

    seconds = run_seconds(meter, clock, 2.5)

    assert set(seconds[0]["GPU-2"].gauges) == {
        "utilization_ratio", "memory_activity_ratio", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes",
        "throttled",
    }  # fmt: skip
    assert meter._devices is not None
    assert {one.refusals for one in meter._devices[0].questions} == {0, 1}
    clock.now += 60
    run_seconds(meter, clock, 1.1)
    assert {one.refusals for one in meter._devices[0].questions} == {0, 2}


def test_an_idle_clock_is_not_throttled() -> None:
    clock = Clock()

    seconds = run_seconds(make_meter(PLAIN, clock=clock), clock, 1.2)

    assert seconds[0]["GPU-2"].gauges["throttled"].high == 0


def test_a_process_without_its_memory_makes_no_sum() -> None:
    clock = Clock()
    device = {**H100, "processes": [[7, 50 * GIB], [8, None]]}

    seconds = run_seconds(make_meter(device, clock=clock), clock, 1.2)

    assert "memory_foreign_bytes" not in seconds[0]["GPU-1"].gauges


def test_a_slow_call_is_asked_once_a_second_and_told() -> None:
    clock = Clock()

    class Slow(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
            clock.now += 0.08
            return super().nvmlDeviceGetMemoryInfo(handle)

    meter = make_meter(nvml=Slow({"devices": [dict(H100)]}), clock=clock)

    seconds = run_seconds(meter, clock, 2.5)

    assert [second["GPU-1"].gauges["memory_used_bytes"].count for second in seconds] == [1, 1]
    assert 0.079 < meter.newest_slowest["GPU-1"] < 0.081


def test_without_nvml_the_hosts_memory_is_told() -> None:
    clock = Clock()

    seconds = run_seconds(make_meter(clock=clock), clock, 2, every_s=1.0)

    assert {name: one.mean for name, one in seconds[0]["cpu"].gauges.items()} == {
        "memory_total_bytes": 1000, "memory_used_bytes": 400, "memory_free_bytes": 600, "memory_ours_bytes": 150,
        "memory_foreign_bytes": 250,
    }  # fmt: skip


def test_a_driver_that_is_not_loaded_is_tried_again() -> None:
    clock = Clock()
    nvml = FakeNvml({"init_error": True, "devices": [dict(H100)]})
    meter = make_meter(nvml=nvml, clock=clock)
    before = run_seconds(meter, clock, 2, every_s=1.0)
    nvml._recording["init_error"] = False
    clock.now += 60

    after = run_seconds(meter, clock, 2.0)

    assert set(before[0]) == {"cpu"}
    assert set(after[-1]) == {"GPU-1"}


def test_seconds_that_nobody_takes_are_bounded() -> None:
    clock = Clock()
    meter = make_meter(clock=clock)

    seconds = run_seconds(meter, clock, 100, every_s=1.0)

    assert len(seconds) == 30


def test_the_newest_second_is_on_the_page() -> None:
    clock = Clock()
    meter = make_meter(H100, clock=clock)
    run_seconds(meter, clock, 2.5)
    page = Page()

    meter.fill(page, node="n1")

    lines = page.render().splitlines()
    assert 'sluice_device_utilization_ratio{node="n1",device="GPU-1"} 0.97' in lines
    assert 'sluice_device_throttled_ratio{node="n1",device="GPU-1"} 1' in lines
    assert not any("nan" in line.lower() for line in lines)
