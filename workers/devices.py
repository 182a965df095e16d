"""The devices of this host as measured now: GPUs by NVML where there are any, else one `cpu` device.

Nothing here touches CUDA: NVML reads the driver (FC-69).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pool.domain.errors import PoolError
from pool.ports import DeviceFacts, DeviceProcess
from workers.device_faults import FATAL_XIDS, DeviceFault, FaultWatch

CPU_UUID = "cpu"
# Shared by all installations of a host; /run/lock is cleared at boot, /tmp is the fallback.
LOCK_FOLDERS = ("/run/lock", "/tmp")


class DeviceBusy(PoolError):
    """Another start, perhaps of another installation, measures its memory on this device right now."""

    code: ClassVar[str] = "device_busy"


def list_devices(*, nvml: Any = None, faults: Sequence[DeviceFault] = ()) -> tuple[DeviceFacts, ...]:
    """All GPUs, or the `cpu` device where NVML finds none. `nvml`: a module with pynvml's names."""
    module = nvml if nvml is not None else load_nvml()
    gpus = _list_gpus(module) if module is not None else ()
    if not gpus:
        return (read_cpu_device(),)
    found = {fault.uuid: fault for fault in faults if fault.xid in FATAL_XIDS}
    return tuple(_with_fault(gpu, found.get(gpu.uuid)) for gpu in gpus)


class Inventory:
    """Satisfies pool.ports.DeviceInventory. `nvml` None: this host has no driver of NVIDIA's."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._watch = FaultWatch(nvml) if nvml is not None else None

    def list_devices(self) -> tuple[DeviceFacts, ...]:
        """With the processes on each device; on `cpu` those of engines are added by who knows their pids."""
        if self._nvml is None:
            return (read_cpu_device(),)
        return list_devices(nvml=self._nvml, faults=self._watch.poll() if self._watch else ())


def find_inventory() -> Inventory:
    return Inventory(load_nvml())


@contextlib.contextmanager
def lock_devices(uuids: Sequence[str], *, folders: Sequence[str] = LOCK_FOLDERS) -> Iterator[None]:
    """Holds the start lock of each device of this host (load → profiled). Raises DeviceBusy at once.

    In sorted order, so that two starts on several devices cannot wait for each other.
    """
    held: list[int] = []
    try:
        for uuid in sorted(uuids):
            held.append(_take_lock(uuid, folders))
        yield
    finally:
        for descriptor in reversed(held):
            os.close(descriptor)


def read_cpu_device(*, proc: Path = Path("/proc"), system: Path = Path("/sys")) -> DeviceFacts:
    """Memory that engines can use: of the first allowed CPU's NUMA node (vLLM binds to it) and the cgroup."""
    total, free = _read_memory(proc / "meminfo")
    node = _read_memory(system / "devices/system/node/node0/meminfo")
    limit, used = _read_cgroup(system / "fs/cgroup")
    if node[0] is not None and total is not None and node[0] < total:
        total, free = node[0], min(free or 0, node[1] or 0)
    if limit is not None and total is not None and limit < total:
        total, free = limit, max(0, min(free or 0, limit - (used or 0)))
    return DeviceFacts(
        uuid=CPU_UUID,
        kind="cpu",
        index=0,
        name=_read_cpu_name(proc / "cpuinfo"),
        memory_total_bytes=total,
        memory_used_bytes=None if total is None or free is None else total - free,
        memory_free_bytes=free,
    )


def add_processes(device: DeviceFacts, pids: Sequence[int], *, proc: Path = Path("/proc")) -> DeviceFacts:
    """The `cpu` device with the proportional memory of `pids` (engines of this installation)."""
    found = [DeviceProcess(pid, read_pss(pid, proc=proc), _read_name(pid, proc)) for pid in pids]
    return replace(device, processes=tuple(one for one in found if one.used_bytes is not None))


def read_pss(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """Proportional set size in bytes; None when the process is gone or not ours to read."""
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def load_nvml() -> Any:
    """The bindings, None where they are not installed. Imported late: most hosts have no use for them."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _list_gpus(nvml: Any) -> tuple[DeviceFacts, ...]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        handles = [_find_handle(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        groups = _link_groups(nvml, handles)
        return tuple(
            _read_gpu(nvml, index, handle, groups.get(index)) for index, handle in enumerate(handles)
        )
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _find_handle(nvml: Any, index: int) -> Any:
    """None for a device that fell off the bus: it is listed, and not usable."""
    return _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)


def _read_gpu(nvml: Any, index: int, handle: Any, group: int | None) -> DeviceFacts:
    if handle is None:
        return _lost_gpu(index)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    usage = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    power = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    reason = _find_fault(nvml, handle, memory)
    return DeviceFacts(
        uuid=_text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)) or f"GPU-unknown-{index}",
        kind="cuda",
        index=index,
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)),
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_free_bytes=None if memory is None else int(memory.free),
        processes=_read_processes(nvml, handle),
        compute_capability=_ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle),
        link_group=group,
        usable=not reason,
        reason=reason,
        utilization_ratio=None if usage is None else usage.gpu / 100,
        temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, handle, 0),
        power_w=None if power is None else power / 1000,
    )


def _lost_gpu(index: int) -> DeviceFacts:
    return DeviceFacts(
        uuid=f"GPU-lost-{index}",
        kind="cuda",
        index=index,
        name="",
        memory_total_bytes=None,
        memory_used_bytes=None,
        memory_free_bytes=None,
        usable=False,
        reason="The driver does not reach this device (lost, or fallen off the bus). Restart the host.",
    )


def _find_fault(nvml: Any, handle: Any, memory: Any) -> str:
    """Empty when the device is sound. Counters that a device does not have are no fault."""
    if memory is None:
        return "The driver gives no memory figures for this device."
    pending = _ask(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    if pending:
        return "Memory pages wait for retirement. Restart the host or reset the device."
    remapped = _ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    if remapped is not None:
        _, _, waiting, failed = remapped
        if failed:
            return "A memory row could not be remapped. The device needs replacement."
        if waiting:
            return "A memory row waits for remapping. Reset the device."
    kind = getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1)
    counter = getattr(nvml, "NVML_VOLATILE_ECC", 0)
    errors = _ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)
    if errors:
        return f"{errors} uncorrected ECC errors since the driver was loaded. Reset the device."
    return ""


def _read_processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...]:
    found: dict[int, DeviceProcess] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _ask(nvml, ask, handle) or ():
            found[process.pid] = DeviceProcess(process.pid, process.usedGpuMemory, _read_name(process.pid))
    return tuple(found.values())


def _link_groups(nvml: Any, handles: Sequence[Any]) -> dict[int, int]:
    """Devices joined by NVLink, directly or over others, share the lowest index among them."""
    group = {index: index for index, handle in enumerate(handles) if handle is not None}
    joined: set[int] = set()
    status = getattr(nvml, "NVML_P2P_CAPS_INDEX_NVLINK", 2)
    for left in group:
        for right in group:
            if left < right and _are_linked(nvml, handles[left], handles[right], status):
                old, new = group[right], group[left]
                group.update({index: new for index, value in group.items() if value == old})
                joined |= {left, right}
    return {index: value for index, value in group.items() if index in joined}


def _are_linked(nvml: Any, left: Any, right: Any, status: int) -> bool:
    return bool(_ask(nvml, nvml.nvmlDeviceGetP2PStatus, left, right, status) == 0)


def _ask(nvml: Any, function: Any, *arguments: Any) -> Any:
    """None for what this device, driver or container does not tell."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    """Older bindings answer bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def _with_fault(device: DeviceFacts, fault: DeviceFault | None) -> DeviceFacts:
    if fault is None or not device.usable:
        return device
    words = f"The driver reported Xid {fault.xid}. {fault.text}".strip()
    return replace(device, usable=False, reason=words)


def _take_lock(uuid: str, folders: Sequence[str]) -> int:
    name = re.sub(r"[^A-Za-z0-9-]", "_", uuid)
    folder = next((one for one in folders if os.access(one, os.W_OK)), folders[-1])
    path = f"{folder}/sluice-start-{name}.lock"
    descriptor = _open_shared(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DeviceBusy("Another start holds this device; it is tried again.", device=uuid) from None
    return descriptor


def _open_shared(path: str) -> int:
    """A file that every user of the host may lock. The umask is the whole process's, so it is not touched.

    Opened without O_CREAT first: the kernel refuses O_CREAT on another user's file in a sticky folder.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
        return descriptor


def _read_memory(path: Path) -> tuple[int | None, int | None]:
    """Total and available bytes of a meminfo file; that of a NUMA node tells only what is free."""
    try:
        text = path.read_text()
    except OSError:
        return None, None
    fields = {name: int(value) * 1024 for name, value in re.findall(r"(\w+(?:\(\w+\))?):\s+(\d+) kB", text)}
    cached = fields.get("FilePages", 0) + fields.get("SReclaimable", 0) - fields.get("Shmem", 0)
    free = fields.get("MemAvailable", fields.get("MemFree", 0) + max(0, cached))
    return fields.get("MemTotal"), free


def _read_cgroup(folder: Path) -> tuple[int | None, int | None]:
    for limit_name, used_name in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "")):
        try:
            limit = int((folder / limit_name).read_text())
            used = int((folder / used_name).read_text()) if used_name else None
        except (OSError, ValueError):
            continue
        return limit, used
    return None, None


def _read_cpu_name(path: Path) -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
        if match:
            return match.group(1).strip()
    return "cpu"


def _read_name(pid: int, proc: Path = Path("/proc")) -> str:
    with contextlib.suppress(OSError):
        return (proc / str(pid) / "comm").read_text().strip()
    return ""
