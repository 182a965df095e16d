"""Finds places for a candidate's replicas, and the fewest others that must stop for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from pool.domain.placement import DeviceView, Need, NodeView, NoPlace, Placement, choose_place

Key = tuple[str, str]
"""Node and device."""
Held = Mapping[Key, int | None]
"""What a replica holds of each of its devices, in bytes; None: not measured."""
_UNTOLD = {"not_measured", "size_unknown"}


class Role(IntEnum):
    """What stopping a replica costs; the cheaper first."""

    LEAVING = 0
    """Told to end already."""
    IDLE = 1
    """Serves nobody: no weight, no pin, nothing runs on it."""
    STABLE = 2
    """Of the release that a rollback goes to."""
    OTHER = 3
    """Serves somebody else: never stopped for a rollout."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    replica: str
    model: str
    release: int
    lane: str
    role: Role
    is_ready: bool
    places: Held

    @property
    def node(self) -> str:
        return next((node for node, _ in self.places), "")

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device for _, device in self.places)

    @property
    def known_bytes(self) -> int:
        return sum(size or 0 for size in self.places.values())


@dataclass(frozen=True)
class NoRoom:
    """`is_unknown`: only a measurement or a fact stands between."""

    reason: str
    is_unknown: bool


@dataclass
class Ledger:
    """What this rollout would take and give back, by device."""

    taken: dict[Key, int] = field(default_factory=dict)
    freed: dict[Key, int] = field(default_factory=dict)
    added: dict[Key, int] = field(default_factory=dict)
    removed: dict[Key, int] = field(default_factory=dict)
    on_node: dict[tuple[str, str], int] = field(default_factory=dict)
    """Replicas of the candidate by (node, lane)."""
    nodes: set[str] = field(default_factory=set)
    """Names of those that are not as they were."""

    @property
    def touched(self) -> list[Key]:
        return list(dict.fromkeys([*self.taken, *self.freed]))

    def take(self, found: Placement, lane: str) -> None:
        self.nodes.add(found.node)
        for device in found.devices:
            key = (found.node, device)
            self.taken[key] = self.taken.get(key, 0) + found.bytes_per_device
            self.added[key] = self.added.get(key, 0) + 1
        self.on_node[found.node, lane] = self.on_node.get((found.node, lane), 0) + 1

    def give(self, holder: Holder) -> None:
        self.nodes.add(holder.node)
        for key, size in holder.places.items():
            self.freed[key] = self.freed.get(key, 0) + (size or 0)
            self.removed[key] = self.removed.get(key, 0) + 1

    def view(self, node: NodeView, lane: str, stopped: Sequence[Holder] = ()) -> NodeView:
        """The node as it would be, with `stopped` gone as well."""
        if not stopped and node.name not in self.nodes:
            return node
        devices = tuple(self._device(node.name, device, stopped) for device in node.devices)
        mine = self.on_node.get((node.name, lane), 0)
        return replace(node, devices=devices, replicas_of_release=node.replicas_of_release + mine)

    def _device(self, node: str, device: DeviceView, stopped: Sequence[Holder]) -> DeviceView:
        key = (node, device.id)
        gone = [holder for holder in stopped if key in holder.places]
        free = device.free_bytes
        if free is not None:
            free += self.freed.get(key, 0) - self.taken.get(key, 0)
            free += sum(holder.places[key] or 0 for holder in gone)
        replicas = device.replicas + self.added.get(key, 0) - self.removed.get(key, 0) - len(gone)
        return replace(device, free_bytes=free, replicas=max(0, replicas))


Way = tuple[Placement, list[Holder]]


class Search:
    """Places one replica after the other; `stopped` grows by those that have to go."""

    def __init__(self, holders: Sequence[Holder], ledger: Ledger) -> None:
        self._by_node: dict[str, list[Holder]] = {}
        for holder in holders:
            self._by_node.setdefault(holder.node, []).append(holder)
        self._ledger = ledger
        self._ways: dict[tuple[str, str, Role], Way | None] = {}
        """What was found for (node, lane, role): it holds until the node changes."""
        self.stopped: list[Holder] = []

    def place(self, need: Need, nodes: Sequence[NodeView], lane: str) -> Placement | NoRoom:
        found = choose_place(need, [self._ledger.view(node, lane) for node in nodes])
        if isinstance(found, NoPlace):
            return self._make_room(need, nodes, lane)
        self._take(found, lane)
        return found

    def unserved_lanes(self) -> tuple[str, ...]:
        """Lanes in which stable has replicas now and none once these have stopped; "" is all lanes."""
        remaining = [one for here in self._by_node.values() for one in here]
        left = {one.lane for one in remaining if _serves(one)}
        if "" in left:
            return ()
        return tuple(sorted({one.lane for one in self.stopped if _serves(one)} - left))

    def _make_room(self, need: Need, nodes: Sequence[NodeView], lane: str) -> Placement | NoRoom:
        for most in (Role.LEAVING, Role.IDLE, Role.STABLE):
            ways = [way for node in nodes if (way := self._find_way(need, node, lane, most)) is not None]
            if ways:
                found, victims = min(ways, key=_cost)
                for holder in victims:
                    self._ledger.give(holder)
                    self._by_node[holder.node].remove(holder)
                    self.stopped.append(holder)
                self._take(found, lane)
                return found
        return self._refusal(need, nodes, lane)

    def _take(self, found: Placement, lane: str) -> None:
        self._ledger.take(found, lane)
        for key in [key for key in self._ways if key[0] == found.node]:
            del self._ways[key]

    def _find_way(self, need: Need, node: NodeView, lane: str, most: Role) -> Way | None:
        key = (node.name, lane, most)
        if key not in self._ways:
            self._ways[key] = self._way(need, node, lane, most)
        return self._ways[key]

    def _way(self, need: Need, node: NodeView, lane: str, most: Role) -> Way | None:
        """The fewest on this node whose end makes room; the dearest are the first to be spared. Without one of role
        `most` there is no other way than what failed before."""
        chosen = self._stoppable(node.name, most)
        if not any(one.role is most for one in chosen):
            return None
        found = self._try(need, node, lane, chosen)
        if found is None:
            return None
        for holder in sorted(chosen, key=lambda one: (-one.role, one.known_bytes, one.replica)):
            fewer = [one for one in chosen if one is not holder]
            spared = self._try(need, node, lane, fewer)
            if spared is not None:
                chosen, found = fewer, spared
        return found, chosen

    def _stoppable(self, node: str, most: Role) -> list[Holder]:
        return [one for one in self._by_node.get(node, ()) if one.role <= most]

    def _try(self, need: Need, node: NodeView, lane: str, stopped: Sequence[Holder]) -> Placement | None:
        found = choose_place(need, [self._ledger.view(node, lane, stopped)])
        return found if isinstance(found, Placement) else None

    def _refusal(self, need: Need, nodes: Sequence[NodeView], lane: str) -> NoRoom:
        """With all gone that may go: what is still missing."""
        stoppable = {node.name: self._stoppable(node.name, Role.STABLE) for node in nodes}
        views = [self._ledger.view(node, lane, stoppable[node.name]) for node in nodes]
        found = choose_place(need, views)
        assert isinstance(found, NoPlace)
        if any(rejection.code in _UNTOLD for rejection in found.rejections):
            return NoRoom(found.reason, is_unknown=True)
        unmeasured = [one.replica for one in sum(stoppable.values(), []) if None in one.places.values()]
        if unmeasured and any(rejection.code == "too_full" for rejection in found.rejections):
            text = f"What {', '.join(unmeasured)} holds is not measured, so what its end gives back is not known."
            return NoRoom(f"{found.reason}. {text}", is_unknown=True)
        return NoRoom(found.reason, is_unknown=False)


def _serves(holder: Holder) -> bool:
    return holder.role is Role.STABLE and holder.is_ready


def _cost(way: Way) -> tuple[int, int, int, int, str]:
    found, victims = way
    return (
        sum(one.role is Role.STABLE for one in victims),
        sum(one.role is Role.IDLE for one in victims),
        len(victims),
        sum(one.known_bytes for one in victims),
        found.node,
    )
