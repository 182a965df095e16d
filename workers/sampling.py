"""Measures this node's devices every second: memory by owner, with the time of the measurement."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.utils import timezone

from pool.models import Node
from pool.ports import DeviceFacts, DeviceInventory, DeviceProcess, EngineProcess
from pool.services.nodes import store_devices, store_memory
from workers.devices import add_processes, list_devices

INVENTORY_EVERY = timedelta(seconds=10)
SUM_EVERY_S = 5.0
"""The kernel walks a process' pages to sum its proportional memory: 5 to 10 ms for an engine."""


@dataclass
class HostDevices:
    """The devices of this host; on `cpu` with the proportional memory of this installation's engines."""

    our_pids: Callable[[], frozenset[int]]
    processes: tuple[DeviceProcess, ...] = ()
    summed_at: float = -math.inf

    def list_devices(self) -> tuple[DeviceFacts, ...]:
        found = list_devices()
        if len(found) != 1 or found[0].kind != "cpu":
            return found
        if time.monotonic() - self.summed_at >= SUM_EVERY_S:
            self.processes = add_processes(found[0], sorted(self.our_pids())).processes
            self.summed_at = time.monotonic()
        return (replace(found[0], processes=self.processes),)


@dataclass
class Sampler:
    node: Node
    inventory: DeviceInventory
    our_pids: Callable[[], frozenset[int]]
    newest: tuple[DeviceFacts, ...] = ()
    stored_at: datetime | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run_pass(self, now: datetime) -> dict[str, object]:
        devices = self.measure()
        if self.stored_at is None or now - self.stored_at >= INVENTORY_EVERY:
            store_devices(self.node, devices)
            self.stored_at = now
        store_memory(self.node, devices, ours=self.our_pids(), now=timezone.now())
        return {}

    def measure(self) -> tuple[DeviceFacts, ...]:
        with self.lock:
            self.newest = self.inventory.list_devices()
            return self.newest

    def memory_is_back(self, engine: EngineProcess) -> bool:
        """No process of the engine holds memory of a device any more."""
        if engine.running:
            return False
        members = set(engine.members) | ({engine.pid} if engine.pid is not None else set())
        return not any(
            process.pid in members and device.kind != "cpu"
            for device in self.measure()
            for process in device.processes
        )
