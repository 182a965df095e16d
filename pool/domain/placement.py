"""Where a replica goes: node and devices, with the reason, and why each other node was passed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pool.domain.fit import decide_fit, footprint_bytes, gib
from pool.domain.memory import Device, Unknown
from pool.domain.node import NodePhase
from pool.domain.profiles import EngineSettings
from pool.domain.version_facts import ModelFacts

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class ForeignUse:
    """A process that is none of ours and holds memory of a device."""

    pid: int
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    id: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int | None
    """Measured, whoever holds the rest; None: no fresh measurement."""
    reserved_bytes: int = 0
    """Promised to replicas that are starting and not yet held by them."""
    foreign: tuple[ForeignUse, ...] = ()
    nvlink_group: str | None = None
    unusable_reason: str = ""
    """A driver fault or an operator's mark; empty: usable."""
    replicas: int = 0
    """Replicas of any release that are on it or about to be."""

    @property
    def available_bytes(self) -> int | None:
        return None if self.free_bytes is None else max(0, self.free_bytes - self.reserved_bytes)


@dataclass(frozen=True, kw_only=True)
class NodeView:
    name: str
    zone: str
    phase: NodePhase
    runtimes: frozenset[str]
    has_version: bool
    """The version's files are there and were verified."""
    devices: tuple[DeviceView, ...]
    replicas_of_release: int = 0
    """Of the same release and lane, in any phase that holds or will hold a device."""
    has_free_port: bool = True


@dataclass(frozen=True, kw_only=True)
class Need:
    runtime: str
    device_kind: DeviceKind
    settings: EngineSettings
    facts: ModelFacts
    simulated: bool = False
    """A simulated engine holds no weights and no cache: only the node matters."""
    avoid: frozenset[str] = frozenset()
    """Nodes where this replica failed lately; taken only when no other is left."""


@dataclass(frozen=True)
class Rejection:
    """Why a node was passed over. `code` is stable."""

    node: str
    code: str
    reason: str


@dataclass(frozen=True)
class Placement:
    node: str
    devices: tuple[str, ...]
    bytes_per_device: int
    reason: str
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class NoPlace:
    reason: str
    rejections: tuple[Rejection, ...]
    fits_nowhere: bool = False
    """No device that was looked at is large enough even when empty: waiting does not help."""


NODES_TOLD = 8
"""Nodes named in the sentence of a refusal; all are in its list."""
_OF_THE_NODE = {"node_not_ready", "runtime_missing", "files_missing", "no_free_port", "too_few_devices"}
_TOO_SMALL = {"no_room_for_weights", "context_too_large", "size_unknown"}


@dataclass(frozen=True)
class _Candidate:
    node: NodeView
    devices: tuple[DeviceView, ...]
    needed_bytes: int
    """On the device that needs most: shares of unequal devices differ."""
    left_over_bytes: int


def choose_place(need: Need, nodes: Sequence[NodeView]) -> Placement | NoPlace:
    """Spreads a release over zones, then nodes; then takes the emptiest devices that it fills best."""
    candidates: list[_Candidate] = []
    rejections: list[Rejection] = []
    sizes: Sizes = {}
    for node in nodes:
        found = _look_at(need, node, sizes)
        if isinstance(found, Rejection):
            rejections.append(found)
        else:
            candidates.append(found)
    if not candidates:
        return _no_place(rejections)
    in_zone = _replicas_by_zone(nodes)
    best = min(candidates, key=lambda candidate: _rank(candidate, need, in_zone))
    return _placement(best, in_zone[best.node.zone], rejections, others=len(candidates) - 1)


Sizes = dict[Device, "int | tuple[str, str]"]
"""What a share needs on a device as large as this, or the code and the reason why it does not fit: nodes are alike."""


def _look_at(need: Need, node: NodeView, sizes: Sizes) -> _Candidate | Rejection:
    unfit = _unfit_node(need, node)
    if unfit is not None:
        return unfit
    of_kind = [device for device in node.devices if device.kind == need.device_kind]
    if len(of_kind) < need.settings.devices:
        reason = f"has {len(of_kind)} {need.device_kind} devices, {need.settings.devices} are needed"
        return Rejection(node.name, "too_few_devices", reason)
    problems: dict[str, Rejection] = {}
    needed: dict[str, int] = {}
    for device in of_kind:
        found = _needed_on(need, node, device, sizes)
        if isinstance(found, Rejection):
            problems[device.id] = found
        else:
            needed[device.id] = found
    free = [device for device in of_kind if device.id in needed]
    taken = _pick_devices(free, of_kind, count=need.settings.devices)
    if taken is None:
        return _device_rejection(node, list(problems.values()))
    left_over = sum((device.available_bytes or 0) - needed[device.id] for device in taken)
    return _Candidate(node, taken, max(needed[device.id] for device in taken), left_over)


def _unfit_node(need: Need, node: NodeView) -> Rejection | None:
    if node.phase is not NodePhase.READY:
        return Rejection(node.name, "node_not_ready", f"is {node.phase}")
    if need.runtime not in node.runtimes:
        return Rejection(node.name, "runtime_missing", f"has no runtime {need.runtime}")
    if not node.has_version:
        return Rejection(node.name, "files_missing", "has no verified copy of the version's files")
    if not node.has_free_port:
        return Rejection(node.name, "no_free_port", "has no free port in its range")
    return None


def _needed_on(need: Need, node: NodeView, device: DeviceView, sizes: Sizes) -> int | Rejection:
    """Bytes that must be free on this device, or why it cannot take a share."""
    if device.unusable_reason:
        return Rejection(node.name, "device_unusable", f"{device.id} is unusable: {device.unusable_reason}")
    if need.simulated:
        return 0
    size = Device(kind=device.kind, total_bytes=device.total_bytes)
    if size not in sizes:
        sizes[size] = _size_of(need, size)
    needed = sizes[size]
    if isinstance(needed, tuple):
        return Rejection(node.name, needed[0], f"{device.id}: {needed[1]}")
    if device.available_bytes is None:
        return Rejection(node.name, "not_measured", f"{device.id} has no fresh measurement of its memory")
    if device.available_bytes < needed:
        return Rejection(node.name, "too_full", _shortage(device, needed - device.available_bytes))
    return needed


def _size_of(need: Need, device: Device) -> int | tuple[str, str]:
    fit = decide_fit(need.facts, need.settings, device=device)
    if not fit.ok:
        return fit.code.value, fit.message
    needed = footprint_bytes(need.facts, need.settings, device=device)
    return ("size_unknown", needed.reason) if isinstance(needed, Unknown) else needed


def _shortage(device: DeviceView, missing: int) -> str:
    free, total = gib(device.free_bytes or 0), gib(device.total_bytes)
    parts = [f"{gib(missing)} short on {device.id}: {free} of {total} free"]
    if device.reserved_bytes:
        parts.append(f"{gib(device.reserved_bytes)} reserved for replicas that are starting")
    parts += [
        f"foreign process pid {use.pid} ({use.name}) holds {gib(use.bytes)}"
        for use in sorted(device.foreign, key=lambda use: -use.bytes)
    ]
    return ", ".join(parts)


def _pick_devices(
    free: Sequence[DeviceView], all_of_kind: Sequence[DeviceView], *, count: int
) -> tuple[DeviceView, ...] | None:
    """The emptiest devices; several of them inside one NVLink group wherever a group is large enough."""
    if count == 1 or not any(len(group) >= count for group in _groups(all_of_kind)):
        return _emptiest(free, count)
    found = [picked for group in _groups(free) if (picked := _emptiest(group, count)) is not None]
    return min(found, key=_load, default=None)


def _groups(devices: Iterable[DeviceView]) -> list[list[DeviceView]]:
    groups: dict[str, list[DeviceView]] = defaultdict(list)
    for device in devices:
        if device.nvlink_group is not None:
            groups[device.nvlink_group].append(device)
    return [groups[name] for name in sorted(groups)]


def _emptiest(devices: Sequence[DeviceView], count: int) -> tuple[DeviceView, ...] | None:
    if len(devices) < count:
        return None
    ordered = sorted(devices, key=lambda device: (device.replicas, device.available_bytes or 0, device.id))
    return tuple(ordered[:count])


def _load(devices: Sequence[DeviceView]) -> tuple[int, int]:
    return sum(device.replicas for device in devices), sum(device.available_bytes or 0 for device in devices)


def _device_rejection(node: NodeView, problems: list[Rejection]) -> Rejection:
    code = problems[0].code if len({problem.code for problem in problems}) == 1 else "no_free_devices"
    return Rejection(node.name, code, "; ".join(problem.reason for problem in problems))


def _replicas_by_zone(nodes: Iterable[NodeView]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for node in nodes:
        counts[node.zone] += node.replicas_of_release
    return counts


def _rank(candidate: _Candidate, need: Need, in_zone: dict[str, int]) -> tuple[bool, int, int, int, int, str]:
    node = candidate.node
    return (
        node.name in need.avoid,
        in_zone[node.zone],
        node.replicas_of_release,
        sum(device.replicas for device in candidate.devices),
        candidate.left_over_bytes,
        node.name,
    )


def _placement(best: _Candidate, in_zone: int, rejections: list[Rejection], *, others: int) -> Placement:
    names = tuple(device.id for device in best.devices)
    reason = (
        f"node {best.node.name} (zone {best.node.zone or '-'}, {in_zone} of this release in it, "
        f"{best.node.replicas_of_release} on the node): {gib(best.needed_bytes)} on {', '.join(names)}"
    )
    if others:
        reason += f"; {others} other nodes would do"
    return Placement(best.node.name, names, best.needed_bytes, reason, tuple(rejections))


def _no_place(rejections: list[Rejection]) -> NoPlace:
    if not rejections:
        return NoPlace("The pool has no node.", ())
    told = [f"node {rejection.node}: {rejection.reason}" for rejection in rejections[:NODES_TOLD]]
    if len(rejections) > NODES_TOLD:
        told.append(f"and {len(rejections) - NODES_TOLD} more nodes")
    looked_at = [found for found in rejections if found.code not in _OF_THE_NODE]
    fits_nowhere = bool(looked_at) and all(found.code in _TOO_SMALL for found in looked_at)
    return NoPlace(" | ".join(told), tuple(rejections), fits_nowhere)
