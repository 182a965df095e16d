"""Memory bandwidth of a GPU by NVML's GPM counters (Hopper and later): two samples and what lies between them."""

from __future__ import annotations

from typing import Any


class BandwidthMeter:
    """One per device. `read` raises NVMLError where the device, driver or container has no GPM."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[Any] = []
        self._has_first = False

    def read(self) -> dict[str, float]:
        """Since the last call, as part of what the memory can do; nothing at the first one."""
        nvml = self._nvml
        if not self._samples:
            self._prepare()
        earlier, later = self._samples
        nvml.nvmlGpmSampleGet(self._handle, later)
        self._samples.reverse()
        if not self._has_first:
            self._has_first = True
            return {}
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = 1
        query.sample1, query.sample2 = earlier, later
        query.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        nvml.nvmlGpmMetricsGet(query)
        metric = query.metrics[0]
        return {} if metric.nvmlReturn else {"bandwidth_ratio": metric.value / 100}

    def _prepare(self) -> None:
        nvml = self._nvml
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
