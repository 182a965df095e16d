"""Holds the newest good routing table, on disk too, and what serving needs of it in the shape that it needs.

A table is taken only if its signature fits, it is of this installation, and its (epoch, version) is higher.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pool.domain.affinity import PrefixIndex
from pool.domain.breaker import link_breakers
from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.retries import RetryBudget
from pool.domain.routing_table import (
    KeyRoute,
    LaneRoute,
    ModelRoute,
    PlanRoute,
    ReplicaRoute,
    RestrictionRoute,
    RoutingTable,
    TableInvalid,
    from_bytes,
)
from pool.domain.token_estimate import Correction
from pool.gateway.admission import Gate
from pool.gateway.choice import make_pick
from pool.gateway.config import Config
from pool.gateway.reading.jobs import Pair
from pool.gateway.replicas import LiveReplica

logger = logging.getLogger(__name__)

# Control waits for a replica's in-flight 0 after it left the table, so that figure must stay visible.
_KEEP_UNLISTED_S = 60.0
# What a model without lanes calls its only one.
ONLY_LANE = "default"


_LANELESS = LaneRoute(ONLY_LANE, None)


@dataclass(slots=True)
class ModelView:
    """Of one table; gates and budget outlive it."""

    name: str
    lanes: tuple[LaneRoute, ...]
    """At least one."""
    plan: PlanRoute | None
    settings: ModelSettings
    gates: dict[int, Gate]
    """By release number."""
    indexes: dict[int, PrefixIndex]
    """What each release's replicas probably have in their prefix caches."""
    budget: RetryBudget
    correction: Correction
    """Of guesses of prompt tokens, while there is no tokenizer."""
    tokenizer: Pair | None
    """Digests of tokenizer and chat template of the heaviest release that has both known."""
    replicas: dict[int, tuple[LiveReplica, ...]]
    starting: int
    max_model_len: int | None
    """Of the replica that holds most."""
    edges: tuple[int, ...]
    """Bounds between lanes, in prompt tokens."""
    lane_settings: dict[str, LaneSettings]
    has_choice: bool
    """Prefixes may decide between replicas."""
    restrictions: tuple[RestrictionRoute, ...]

    def weights(self, lane: str) -> dict[int, int]:
        if self.plan is None:
            return {}
        return self.plan.lanes.get(lane) or self.plan.weights

    def find_lane(self, prompt_tokens: int) -> str:
        for lane in self.lanes:
            if lane.max_prompt_tokens is None or prompt_tokens < lane.max_prompt_tokens:
                return lane.name
        return self.lanes[-1].name


class Routes:
    """Callers hold no reference into it across an await: a new table replaces `models` and `keys` whole."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.installation = config.installation
        self.order: tuple[int, int] | None = None
        self.applied_at = 0.0
        """Seconds since 1970; 0 = never."""
        self.models: dict[str, ModelView] = {}
        self.keys: dict[str, KeyRoute] = {}
        self._replicas: dict[tuple[str, int], LiveReplica] = {}
        self._gates: dict[tuple[str, int], Gate] = {}
        self._linked: dict[Gate, tuple[tuple[str, ...], tuple[LiveReplica, ...]]] = {}
        """Lanes and replicas whose breakers know of each other."""
        self._indexes: dict[tuple[str, int], PrefixIndex] = {}
        self._budgets: dict[str, RetryBudget] = {}
        self._corrections: dict[str, Correction] = {}
        self.on_table: list[Callable[[RoutingTable], None]] = []
        """Told of each table that has come into force."""
        self.process_count = 1
        """Gateway processes that share the replicas, this one included."""

    @property
    def replicas(self) -> Iterator[LiveReplica]:
        """Listed ones, and those that left the table lately."""
        return iter(self._replicas.values())

    def list_gates(self) -> Iterator[tuple[str, Gate]]:
        """By release and model."""
        for (model, release), gate in self._gates.items():
            yield f"{release} {model}", gate

    def offer(self, content: bytes, *, now_s: float) -> bool:
        """True if this table is now in force. A bad, older or foreign one changes nothing."""
        table = self.read(content)
        return table is not None and self.apply(table, now_s=now_s)

    def read(self, content: bytes) -> RoutingTable | None:
        """None if it is bad. Touches nothing, so a thread may do it: a large table takes milliseconds."""
        try:
            return from_bytes(content, self._config.secret)
        except TableInvalid as exc:
            logger.warning("routing table refused", extra={"code": exc.code, "error": exc.message})
            return None

    def apply(self, table: RoutingTable, *, now_s: float) -> bool:
        """True if this table is now in force."""
        if self.installation is not None and table.installation != self.installation:
            logger.warning("routing table of another installation refused")
            return False
        if self.order is not None and table.order <= self.order:
            return False
        self._apply(table, now_s)
        return True

    def load_from_disk(self, *, now_s: float) -> bool:
        """The newest good table that any gateway process of this host left."""
        files = self._config.state_dir.glob("table-*.bin")
        found = [self.offer(content, now_s=now_s) for content in map(_read_file, files) if content]
        return any(found)

    def store_on_disk(self, content: bytes) -> None:
        path = self._config.state_dir / f"table-{self._config.worker}.bin"
        try:
            _write_atomically(path, content)
        except OSError as exc:
            # A full disk must not stop traffic; the table is in force from memory.
            logger.warning("routing table not stored", extra={"path": str(path), "error": str(exc)})

    def forget_old(self, now_s: float) -> None:
        """Drops replicas that left the table a while ago and serve nothing any more."""
        for key, replica in list(self._replicas.items()):
            old = not replica.listed and replica.unlisted_at_s < now_s - _KEEP_UNLISTED_S
            if old and not replica.in_flight:
                del self._replicas[key]
                for index in self._indexes.values():
                    if replica.cached is not None:
                        index.forget(replica.cached)

    def set_process_count(self, count: int, now_s: float) -> None:
        if count != self.process_count:
            self.process_count = count
            for model in self.models.values():
                self._configure(model, now_s)
            for gate in self._gates.values():
                gate.pump(now_s)

    def tell_prefixes(self, now_s: float) -> dict[str, list[Any]]:
        """For the other processes: what was sent where, by model and release."""
        told = ((key, index.read_notes(now_s)) for key, index in self._indexes.items())
        return {f"{release} {name}": notes for (name, release), notes in told if notes}

    def hear_prefixes(self, gateway_id: str, told: object) -> None:
        for key, notes in told.items() if isinstance(told, dict) else ():
            release, _, name = key.partition(" ")
            index = self._indexes.get((name, int(release))) if release.isdigit() else None
            if index is not None and isinstance(notes, list):
                index.absorb_notes(gateway_id, notes)

    def _apply(self, table: RoutingTable, now_s: float) -> None:
        named: set[tuple[str, int]] = set()
        models = {model.name: self._view(model, named) for model in table.models}
        for model in models.values():
            self._configure(model, now_s)
        self._gates = {
            (name, number): gate for name, one in models.items() for number, gate in one.gates.items()
        }
        self._indexes = {key: self._indexes[key] for key in self._gates}
        gates = set(self._gates.values())
        self._linked = {gate: linked for gate, linked in self._linked.items() if gate in gates}
        self._budgets = {name: model.budget for name, model in models.items()}
        self._corrections = {name: model.correction for name, model in models.items()}
        self.models = models
        self.keys = {key.digest: key for key in table.keys}
        for key, replica in self._replicas.items():
            if key not in named and replica.listed:
                replica.unlist(now_s)
        self.installation = table.installation
        self.order = table.order
        self.applied_at = time.time()
        for tell in self.on_table:
            tell(table)
        # Only now, since what waits may have left for another release.
        for gate in self._gates.values():
            gate.pump(now_s)

    def _configure(self, model: ModelView, now_s: float) -> None:
        model.budget.ratio = model.settings.retry_ratio
        model.budget.processes = self.process_count
        to_gate_s = now_s - time.time()
        held = [(one.kind, one.lane, one.value, one.until + to_gate_s) for one in model.restrictions]
        for number, gate in model.gates.items():
            replicas = model.replicas[number]
            names = tuple(lane.name for lane in model.lanes)
            if self._linked.get(gate) != (names, replicas):
                self._linked[gate] = (names, replicas)
                link_breakers([one.breaker for one in replicas if one.lane in (None, name)] for name in names)
            gate.configure(
                model.lanes, model.settings, replicas,
                process_count=self.process_count, restrictions=held, now_s=now_s, pumps=False,
            )  # fmt: skip

    def _view(self, model: ModelRoute, named: set[tuple[str, int]]) -> ModelView:
        lanes = model.lanes or (_LANELESS,)
        replicas: dict[int, tuple[LiveReplica, ...]] = {}
        for release in model.releases:
            named.update((route.id, route.generation) for route in release.replicas)
            index = self._index_of(model.name, release.number)
            replicas[release.number] = tuple(
                self._find_or_add(route, release.number, index) for route in release.replicas
            )
        lengths = [one.max_model_len for live in replicas.values() for one in live if one.max_model_len]
        return ModelView(
            name=model.name,
            lanes=lanes,
            plan=model.plan,
            settings=model.settings,
            gates={number: self._find_gate(model, number) for number in replicas},
            indexes={number: self._indexes[model.name, number] for number in replicas},
            budget=self._budgets.get(model.name) or RetryBudget(model.settings.retry_ratio),
            correction=self._corrections.get(model.name) or Correction(),
            tokenizer=_find_tokenizer(model),
            replicas=replicas,
            starting=model.starting,
            max_model_len=max(lengths, default=None),
            edges=tuple(lane.max_prompt_tokens for lane in lanes if lane.max_prompt_tokens is not None),
            lane_settings={lane.name: lane.settings for lane in lanes},
            has_choice=model.settings.affinity and any(len(live) > 1 for live in replicas.values()),
            restrictions=model.restrictions,
        )

    def _find_gate(self, model: ModelRoute, release: int) -> Gate:
        gate = self._gates.get((model.name, release))
        return gate or Gate(make_pick(self._index_of(model.name, release)))

    def _index_of(self, model: str, release: int) -> PrefixIndex:
        index = self._indexes.get((model, release))
        if index is None:
            index = self._indexes[model, release] = PrefixIndex()
        return index

    def _find_or_add(self, route: ReplicaRoute, release: int, index: PrefixIndex) -> LiveReplica:
        """The counts of a replica go on when it comes back into the table."""
        key = (route.id, route.generation)
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = LiveReplica(route, release=release, secret=self._config.secret)
        else:
            replica.update(route)
        replica.cached = index.add(route.id, route.generation, route.kv_tokens)
        return replica


def _find_tokenizer(model: ModelRoute) -> Pair | None:
    weights = model.plan.weights if model.plan is not None else {}
    known = [release for release in model.releases if release.tokenizer is not None]
    heaviest = max(known, key=lambda release: weights.get(release.number, 0), default=None)
    if heaviest is None or heaviest.tokenizer is None:
        return None
    return heaviest.tokenizer, heaviest.chat_template


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkstemp's file is 0600: the table holds digests of keys.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".table-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
