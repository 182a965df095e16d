"""Reads the GPUs of this host ten times a second and folds the readings to low, mean and high of each second.

What a device, driver or container refuses is asked again once a minute only, and is absent meanwhile. On a host
without NVML it is the memory of the `cpu` device, once a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.domain.gauges import GaugeCell
from pool.domain.prometheus import Page
from pool.ports import DeviceFacts
from workers.gpm import BandwidthMeter

logger = logging.getLogger(__name__)

EVERY_S = 0.1
"""10 Hz. What NVML renews less often (utilisation: 1/6 to 1 s) is read as often as it is of use."""
SLOW_EVERY = 5
"""Readings of the dear and lazy values: every fifth, so twice a second. PCIe counters take 20 ms a call."""
AGAIN_S = 60.0
SLOW_CALL_S = 0.05
"""A call beyond this is asked for once a second only: it must not crowd out the others."""
KEPT_SECONDS = 30
LEAVES_AFTER_S = 10.0
_HELD_BACK = 4 | 8 | 32 | 64 | 128
"""Software power cap, hardware slowdown, thermal slowdowns, power brake (nvml.h, ClocksEventReasons). An idle GPU's low
clock (1) and what an operator set are no throttling."""
SERIES = {
    "utilization_ratio": "sluice_device_utilization_ratio",
    "memory_activity_ratio": "sluice_device_memory_activity_ratio",
    "memory_total_bytes": "sluice_device_memory_total_bytes",
    "memory_used_bytes": "sluice_device_memory_used_bytes",
    "memory_ours_bytes": "sluice_device_memory_ours_bytes",
    "memory_foreign_bytes": "sluice_device_memory_foreign_bytes",
    "pcie_tx_bytes_per_s": "sluice_device_pcie_tx_bytes_per_second",
    "pcie_rx_bytes_per_s": "sluice_device_pcie_rx_bytes_per_second",
    "sm_clock_hz": "sluice_device_sm_clock_hertz",
    "memory_clock_hz": "sluice_device_memory_clock_hertz",
    "temperature_c": "sluice_device_temperature_celsius",
    "power_w": "sluice_device_power_watts",
    "throttled": "sluice_device_throttled_ratio",
    "bandwidth_ratio": "sluice_device_bandwidth_ratio",
}
"""Name among DEVICE_GAUGES → series of `/metrics`."""

Second = tuple[float, dict[str, GaugeCell], dict[str, float]]
"""Its middle on the monotonic clock; readings by UUID; the slowest call of it in seconds by UUID."""


@dataclass
class Question:
    """One call of NVML for one device: how dear it is and when it is asked again after a refusal."""

    ask: Callable[[], Mapping[str, float]]
    every: int = 1
    slowest_s: float = 0.0
    refused_until: float = 0.0
    refusals: int = 0


@dataclass
class Watched:
    uuid: str
    questions: list[Question]


class DeviceMeter(threading.Thread):
    """`nvml` None, or without devices: only the host's memory. `our_pids`: processes of this installation's engines."""

    def __init__(
        self,
        nvml: Any,
        *,
        our_pids: Callable[[], frozenset[int]],
        read_host: Callable[[], DeviceFacts | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="device-meter", daemon=True)
        self._nvml = nvml
        self._our_pids = our_pids
        self._read_host = read_host
        self._clock = clock
        self._seconds: deque[Second] = deque(maxlen=KEPT_SECONDS)
        self._open: dict[str, GaugeCell] = {}
        self._slowest: dict[str, float] = {}
        self._open_since = clock()
        self._lock = threading.Lock()
        self._devices: list[Watched] | None = None
        self._retry_at = 0.0
        self._reading = 0
        self.newest: dict[str, GaugeCell] = {}
        self.newest_at = 0.0
        self.newest_slowest: dict[str, float] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        due = self._clock()
        while not self.stopping.is_set():
            try:
                self.read_once()
            except Exception:
                # A loop edge: whatever a driver does at one reading, the next is tried.
                logger.exception("devices were not read")
                self.stopping.wait(1.0)
            due = max(due + (EVERY_S if self._devices else 1.0), self._clock())
            self.stopping.wait(max(0.0, due - self._clock()))

    def stop(self) -> None:
        self.stopping.set()

    def take_seconds(self) -> list[Second]:
        """The seconds that are over since the last call, oldest first; each is given out once."""
        with self._lock:
            taken = list(self._seconds)
            self._seconds.clear()
        return taken

    def fill(self, page: Page, *, node: str) -> None:
        """The newest whole second, unless it is over for long: then the devices are not read any more."""
        if self._clock() - self.newest_at > LEAVES_AFTER_S:
            return
        for uuid, cell in sorted(self.newest.items()):
            for name, metric in SERIES.items():
                found = cell.gauges.get(name)
                page.set(metric, None if found is None else found.mean, node=node, device=uuid)
            page.set("sluice_device_read_seconds", self.newest_slowest.get(uuid), node=node, device=uuid)

    def read_once(self) -> None:
        now = self._clock()
        if self._devices is None or (not self._devices and now >= self._retry_at):
            self._devices = self._find_devices()
            self._retry_at = now + AGAIN_S
        if now - self._open_since >= 1.0:
            self._close_second(now)
        if not self._devices:
            self._note(self._host())
            return
        for device in self._devices:
            self._ask_device(device)
        self._reading += 1

    def _close_second(self, now: float) -> None:
        closed, self._open = self._open, {}
        slowest, self._slowest = self._slowest, {}
        if closed:
            with self._lock:
                self._seconds.append(((self._open_since + now) / 2, closed, slowest))
            self.newest, self.newest_slowest, self.newest_at = closed, slowest, now
        self._open_since = now

    def _ask_device(self, device: Watched) -> None:
        found: dict[str, float] = {}
        for question in device.questions:
            every = max(question.every, 10 if question.slowest_s > SLOW_CALL_S else 1)
            if self._reading % every or self._clock() < question.refused_until:
                continue
            before = self._clock()
            try:
                found.update(question.ask())
            except self._nvml.NVMLError:
                question.refusals += 1
                question.refused_until = before + AGAIN_S
            took = self._clock() - before
            question.slowest_s = max(question.slowest_s * 0.9, took)
            self._slowest[device.uuid] = max(self._slowest.get(device.uuid, 0.0), took)
        self._note({device.uuid: found})

    def _note(self, readings: Mapping[str, Mapping[str, float]]) -> None:
        for uuid, values in readings.items():
            cell = self._open.setdefault(uuid, GaugeCell())
            for name, value in values.items():
                cell.note(name, value)

    def _host(self) -> dict[str, dict[str, float]]:
        facts = self._read_host()
        return {facts.uuid: _memory_of(facts, self._our_pids())} if facts is not None else {}

    def _find_devices(self) -> list[Watched]:
        nvml = self._nvml
        if nvml is None:
            return []
        try:
            nvml.nvmlInit()
            return [made for index in range(nvml.nvmlDeviceGetCount()) if (made := self._watch(index))]
        except nvml.NVMLError:
            return []

    def _watch(self, index: int) -> Watched | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError:
            return None
        uuid = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        return Watched(uuid, GpuQuestions(nvml, handle, self._our_pids).make())


@dataclass
class GpuQuestions:
    """What is asked of one GPU; each answer under the names of `DEVICE_GAUGES`."""

    nvml: Any
    handle: Any
    our_pids: Callable[[], frozenset[int]]
    bandwidth: BandwidthMeter = field(init=False)

    def __post_init__(self) -> None:
        self.bandwidth = BandwidthMeter(self.nvml, self.handle)

    def make(self) -> list[Question]:
        return [
            Question(self.ask_utilization),
            Question(self.ask_memory),
            Question(self.ask_throttling),
            Question(self.ask_power),
            Question(self.ask_sm_clock),
            Question(self.ask_memory_clock, SLOW_EVERY),
            Question(self.ask_temperature, SLOW_EVERY),
            Question(self.ask_processes, SLOW_EVERY),
            Question(self.ask_pcie_sent, SLOW_EVERY),
            Question(self.ask_pcie_received, SLOW_EVERY),
            Question(self.bandwidth.read, 10),
        ]

    def ask_utilization(self) -> dict[str, float]:
        rates = self.nvml.nvmlDeviceGetUtilizationRates(self.handle)
        return {"utilization_ratio": rates.gpu / 100, "memory_activity_ratio": rates.memory / 100}

    def ask_memory(self) -> dict[str, float]:
        memory = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        return {
            "memory_total_bytes": memory.total,
            "memory_used_bytes": memory.used,
            "memory_free_bytes": memory.free,
        }

    def ask_processes(self) -> dict[str, float]:
        """Nothing when a process does not tell its memory (a container's view): a part is no sum."""
        held = {
            process.pid: process.usedGpuMemory
            for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        }
        if any(used is None for used in held.values()):
            return {}
        ours = self.our_pids()
        mine = sum(used for pid, used in held.items() if pid in ours)
        return {"memory_ours_bytes": mine, "memory_foreign_bytes": sum(held.values()) - mine}

    def ask_throttling(self) -> dict[str, float]:
        reasons = self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle)
        return {"throttled": float(bool(reasons & _HELD_BACK))}

    def ask_power(self) -> dict[str, float]:
        return {"power_w": self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000}

    def ask_temperature(self) -> dict[str, float]:
        return {"temperature_c": float(self.nvml.nvmlDeviceGetTemperature(self.handle, 0))}

    def ask_sm_clock(self) -> dict[str, float]:
        return {"sm_clock_hz": self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM) * 1e6}

    def ask_memory_clock(self) -> dict[str, float]:
        return {
            "memory_clock_hz": self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_MEM) * 1e6
        }

    def ask_pcie_sent(self) -> dict[str, float]:
        """NVML counts KB over the last 20 ms."""
        kilobytes = self.nvml.nvmlDeviceGetPcieThroughput(self.handle, self.nvml.NVML_PCIE_UTIL_TX_BYTES)
        return {"pcie_tx_bytes_per_s": kilobytes * 1000.0}

    def ask_pcie_received(self) -> dict[str, float]:
        kilobytes = self.nvml.nvmlDeviceGetPcieThroughput(self.handle, self.nvml.NVML_PCIE_UTIL_RX_BYTES)
        return {"pcie_rx_bytes_per_s": kilobytes * 1000.0}


def _memory_of(facts: DeviceFacts, our_pids: frozenset[int]) -> dict[str, float]:
    found = {
        "memory_total_bytes": facts.memory_total_bytes,
        "memory_used_bytes": facts.memory_used_bytes,
        "memory_free_bytes": facts.memory_free_bytes,
    }
    ours = sum(one.used_bytes or 0 for one in facts.processes if one.pid in our_pids)
    if facts.processes:
        found["memory_ours_bytes"] = ours
        if facts.memory_used_bytes is not None:
            found["memory_foreign_bytes"] = max(0, facts.memory_used_bytes - ours)
    return {name: float(value) for name, value in found.items() if value is not None}
