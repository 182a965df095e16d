"""A module with pynvml's names that answers from a recording: `FakeNvml(json)`. None in it means not supported."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml raises it for everything that a device does not tell."""


class FakeNvml:
    """`recording`: {"devices": [{...}], "links": [[0, 1], ...]} or {"init_error": true}."""

    NVMLError = NVMLError
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self, recording: dict[str, Any]) -> None:
        self._recording = recording
        self._samples = 0
        self.open = 0

    nvmlEventTypeXidCriticalError = 8

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, handle: int, _kind: int, events: list[int]) -> None:
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[int], _timeout_ms: int) -> Any:
        waiting = self._recording.get("xids", [])
        if not waiting or waiting[0][0] not in events:
            raise NVMLError("timeout")
        handle, xid = waiting.pop(0)
        return SimpleNamespace(device=handle, eventData=xid)

    def nvmlInit(self) -> None:
        if self._recording.get("init_error"):
            raise NVMLError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._recording["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self._recording["devices"][index].get("lost"):
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetP2PStatus(self, left: int, right: int, _kind: int) -> int:
        return 0 if [left, right] in self._recording.get("links", []) else 5

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(**self._field(handle, "memory"))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        activity = self._recording["devices"][handle].get("memory_activity", 0)
        return SimpleNamespace(gpu=self._field(handle, "utilization"), memory=activity)

    def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> Any:
        return self._field(handle, "pcie")[counter]

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> Any:
        return self._field(handle, "clocks")[str(clock)]

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=self._field(handle, "gpm_supported"))

    def nvmlGpmSampleAlloc(self) -> Any:
        return SimpleNamespace(taken=0)

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> Any:
        self._samples += 1
        sample.taken = self._samples
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metric = SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=[metric])

    def nvmlGpmMetricsGet(self, query: Any) -> Any:
        """The recorded bandwidth, if the samples stand in the order in which they were taken."""
        if query.sample1.taken + 1 != query.sample2.taken:
            raise NVMLError("invalid argument")
        query.metrics[0].value = self._recording["devices"][0]["bandwidth"]
        return query

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._field(handle, "processes")
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:
        return []

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        major, minor = self._field(handle, "capability")
        return major, minor

    def nvmlDeviceGetTotalEccErrors(self, handle: int, _kind: int, _counter: int) -> Any:
        return self._field(handle, "ecc")

    def nvmlDeviceGetTemperature(self, handle: int, _sensor: int) -> Any:
        return self._field(handle, "temperature")

    def __getattr__(self, name: str) -> Callable[[int], Any]:
        fields = {
            "nvmlDeviceGetUUID": "uuid",
            "nvmlDeviceGetName": "name",
            "nvmlDeviceGetPowerUsage": "power",
            "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle",
            "nvmlDeviceGetRetiredPagesPendingStatus": "retired_pending",
            "nvmlDeviceGetRemappedRows": "remapped",
        }
        if name not in fields:
            raise AttributeError(name)
        return lambda handle: self._field(handle, fields[name])

    def _field(self, handle: int, name: str) -> Any:
        value = self._recording["devices"][handle].get(name)
        if value is None:
            raise NVMLError("not supported")
        return value
