"""Driver faults (Xid) of this host's GPUs, as NVML's events tell them. Makes no CUDA context."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

# Xids after which a device serves nothing until its driver or host is restarted (NVIDIA's Xid catalogue): 48
# double-bit ECC, 64 row remapping failed, 74 NVLink, 79 off the bus, 95 uncontained ECC, 119 and 120 GSP.
FATAL_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120})
# Events that wait are taken in one poll; a device in trouble sends a handful.
MOST_EVENTS = 64


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """What the driver said of a device, by UUID."""

    uuid: str
    xid: int
    text: str = ""


class FaultWatch:
    """Keeps NVML open and its events registered; remembers fatal ones for as long as the worker lives.

    What happened before is seen by other signs: ECC counters, pending remapping, a device that is lost.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._faults: dict[str, DeviceFault] = {}

    def poll(self) -> tuple[DeviceFault, ...]:
        """All fatal faults so far. Does not wait."""
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = self._register()
            for _ in range(MOST_EVENTS):
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                self._note(event)
        except nvml.NVMLError:
            # No event waits, or this driver has none to give.
            pass
        return tuple(self._faults.values())

    def _register(self) -> Any:
        nvml = self._nvml
        nvml.nvmlInit()
        events = nvml.nvmlEventSetCreate()
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _note(self, event: Any) -> None:
        xid = int(event.eventData)
        if xid not in FATAL_XIDS:
            return
        uuid = self._nvml.nvmlDeviceGetUUID(event.device)
        uuid = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        self._faults[uuid] = DeviceFault(uuid, xid)
