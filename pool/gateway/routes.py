"""Holds the newest good routing table, on disk too, and what serving needs of it in the shape that it needs.

A table is taken only if its signature fits, it is of this installation, and its (epoch, version) is higher.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pool.domain.routing_table import (
    KeyRoute,
    LaneRoute,
    ModelRoute,
    PlanRoute,
    ReplicaRoute,
    RoutingTable,
    TableInvalid,
    from_bytes,
)
from pool.gateway.config import Config
from pool.gateway.replicas import LiveReplica

logger = logging.getLogger(__name__)

# Control waits for a replica's in-flight 0 after it left the table, so that figure must stay visible.
_KEEP_UNLISTED_S = 60.0
# What a model without lanes calls its only one.
ONLY_LANE = "default"


@dataclass(frozen=True, slots=True)
class ModelView:
    name: str
    lanes: tuple[LaneRoute, ...]
    plan: PlanRoute | None
    replicas: dict[int, dict[str, tuple[LiveReplica, ...]]]
    """Release number → lane → replicas that serve it."""
    starting: int
    max_model_len: int | None

    def weights(self, lane: str) -> dict[int, int]:
        if self.plan is None:
            return {}
        return self.plan.lanes.get(lane) or self.plan.weights

    def sole_release(self, lane: str) -> int | None:
        """The release that has all the weight; None if several share it."""
        weights = self.weights(lane)
        return next(iter(weights)) if len(weights) == 1 and 100 in weights.values() else None

    def find_lane(self, prompt_tokens: int) -> str:
        for lane in self.lanes:
            if lane.max_prompt_tokens is None or prompt_tokens < lane.max_prompt_tokens:
                return lane.name
        return self.lanes[-1].name if self.lanes else ONLY_LANE

    def list_replicas(self, release: int, lane: str) -> tuple[LiveReplica, ...]:
        return self.replicas.get(release, {}).get(lane, ())


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

    @property
    def replicas(self) -> Iterator[LiveReplica]:
        """Listed ones, and those that left the table lately."""
        return iter(self._replicas.values())

    def offer(self, content: bytes, *, now_s: float) -> bool:
        """True if this table is now in force. A bad, older or foreign one changes nothing."""
        try:
            table = from_bytes(content, self._config.secret)
        except TableInvalid as exc:
            logger.warning("routing table refused", extra={"code": exc.code, "error": exc.message})
            return False
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

    def _apply(self, table: RoutingTable, now_s: float) -> None:
        named: set[tuple[str, int]] = set()
        self.models = {model.name: self._view(model, named) for model in table.models}
        self.keys = {key.digest: key for key in table.keys}
        for key, replica in self._replicas.items():
            if key not in named and replica.listed:
                replica.unlist(now_s)
        self.installation = table.installation
        self.order = table.order
        self.applied_at = time.time()

    def _view(self, model: ModelRoute, named: set[tuple[str, int]]) -> ModelView:
        lanes = [lane.name for lane in model.lanes] or [ONLY_LANE]
        views: dict[int, dict[str, tuple[LiveReplica, ...]]] = {}
        lengths: list[int] = []
        for release in model.releases:
            live = []
            for route in release.replicas:
                named.add((route.id, route.generation))
                live.append(self._find_or_add(route, release.number))
                lengths += [route.max_model_len] if route.max_model_len else []
            views[release.number] = {
                lane: tuple(replica for replica in live if replica.lane in (None, lane)) for lane in lanes
            }
        longest = max(lengths, default=None)
        return ModelView(model.name, model.lanes, model.plan, views, model.starting, longest)

    def _find_or_add(self, route: ReplicaRoute, release: int) -> LiveReplica:
        """The counts of a replica go on when it comes back into the table."""
        key = (route.id, route.generation)
        replica = self._replicas.get(key)
        if replica is None:
            timeout_s = self._config.connect_timeout_s
            replica = LiveReplica(
                route, release=release, secret=self._config.secret, connect_timeout_s=timeout_s
            )
            self._replicas[key] = replica
        elif not replica.listed:
            replica.relist()
        return replica


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
