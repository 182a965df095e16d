"""From a replica's row to a running engine: specification, checks right before the start, launch, explanation."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from django.utils import timezone

from pool.domain.backoff import Failure, FailureKind
from pool.domain.errors import PoolError
from pool.domain.manifest import compare_sizes, manifest_from_json, require_whole
from pool.domain.profiles import parse_settings
from pool.domain.replica import Report
from pool.domain.signing import derive_engine_key
from pool.domain.startup import load_budget
from pool.domain.version_facts import facts_from_json
from pool.models import Node, PortReservation, Replica, VersionPresence
from pool.ports import EngineDriver, EngineHost, EngineLoad, EngineProcess, EngineSpec, RuntimeRef
from pool.queries.golden import list_hot_conversations
from pool.services.placing import pick_other_ports
from pool.services.replicas import Because, note, report, seen
from pool.weights import scan_folder
from workers.devices import CPU_UUID, DeviceBusy, lock_devices
from workers.warmup import WarmUpLane, WarmUpRecipe
from workers.watcher import Watcher, failure_from

EngineKey = tuple[str, int]
LOCK_EVERY_S = 0.5
MOST_HOT = 20
"""Conversations that a warm-up replays: with the lanes' prompts as many as it may send."""


class StartRefused(PoolError):
    """The start was not tried, or ended before a process existed."""

    code: ClassVar[str] = "start_refused"

    def __init__(self, code: str, message: str, *, permanent: bool, **details: object) -> None:
        super().__init__(message, **details)
        self.reason_code = code
        self.kind = FailureKind.PERMANENT if permanent else FailureKind.TRANSIENT

    @property
    def failure(self) -> Failure:
        return Failure(self.kind, self.reason_code, self.message)


_PERMANENT_CODES = frozenset({"remote_code", "profile_conflicts", "missing_runtime", "files_broken"})


@dataclass(frozen=True)
class Folders:
    """Where a node keeps what belongs to engines. `compile_dir` is in the cache folder: kept across installations."""

    engines: Path
    compile: Path
    roots: tuple[Path, ...] = ()


@dataclass
class EngineStarter:
    node: Node
    host: EngineHost
    drivers: Mapping[str, EngineDriver]
    runtimes: Mapping[str, RuntimeRef]
    folders: Folders
    secret: str
    on_load: Callable[[EngineSpec, EngineLoad], object] = lambda spec, load: None
    live_load: Callable[[EngineSpec], EngineLoad | None] = lambda spec: None
    locks: dict[EngineKey, ExitStack] = field(default_factory=dict)

    def start(self, row: Replica) -> EngineProcess:
        """Idempotent: the keeper returns what it knows of this generation. Raises StartRefused."""
        spec = self._settle_ports(row)
        driver = self.drivers[spec.runtime.kind]
        try:
            self._lock_devices(row, spec)
            caches_are_warm = driver.prepare(spec)
            process = self.host.spawn(spec, command=driver.build_command(spec))
        except StartRefused:
            raise
        except (PoolError, OSError) as exc:
            raise _refusal(exc) from exc
        weights = self._weight_bytes(row)
        report(
            seen(row),
            Report.PROCESS_STARTED,
            because=Because("process_started", "The engine's process runs; it loads."),
            now=timezone.now(),
            engine="running",
            pid=process.pid,
            pid_started_ticks=process.started_ticks,
            started_at=timezone.now(),
            budget_s=int(load_budget(weights).total_seconds()),
            figures=row.figures | {"caches_warm": caches_are_warm},
        )
        return process

    def _settle_ports(self, row: Replica) -> EngineSpec:
        """With ports that nobody holds: those of strangers are passed over, and the start goes on (FC-32)."""
        busy: set[int] = set()
        while True:
            spec = self.make_spec(row)
            found = find_busy_ports(spec)
            if not found:
                return spec
            busy |= found
            if not pick_other_ports(seen(row), busy=frozenset(busy)):
                raise StartRefused(
                    "port_in_use",
                    f"Port {min(found)} is held by another process, and no other port of this node is free. "
                    "SLUICE_ENGINE_PORTS sets the range.",
                    permanent=False,
                )
            row.refresh_from_db(fields=["address", "port"])

    def _lock_devices(self, row: Replica, spec: EngineSpec) -> None:
        """The host's own lock per GPU until its memory is profiled: another installation may start there too.

        Waits for it as long as the start is wished; waiting is progress. Raises StartRefused when it is not.
        """
        uuids = [uuid for uuid in spec.device_uuids if uuid != CPU_UUID]
        held = self.locks.setdefault((spec.replica_id, spec.generation), ExitStack())
        while True:
            try:
                held.enter_context(lock_devices(uuids))
                return
            except DeviceBusy:
                values = {"progress_at": timezone.now(), "stage": "waiting for another start on the device"}
                if not Replica.objects.filter(
                    pk=row.pk, generation=row.generation, phase="starting"
                ).exists():
                    raise StartRefused(
                        "withdrawn",
                        "The start was withdrawn while it waited for its device.",
                        permanent=False,
                    ) from None
                note(seen(row), **values)
                time.sleep(LOCK_EVERY_S)

    def release_locks(self, *, starting: frozenset[EngineKey]) -> None:
        """Of every engine that is no longer between launch and its first answer."""
        for key in [key for key in self.locks if key not in starting]:
            self.locks.pop(key).close()

    def make_spec(self, row: Replica) -> EngineSpec:
        """Raises StartRefused when something that the placement relied on is not there."""
        runtime = self.runtimes.get(row.release.runtime)
        if runtime is None:
            raise StartRefused(
                "missing_runtime",
                f"This node has no runtime '{row.release.runtime}' any more.",
                permanent=True,
            )
        use = row.release.profiles.select_related("profile").filter(lane__in=[row.lane, ""]).first()
        if use is None:
            raise StartRefused(
                "no_profile", f"The release has no profile for lane '{row.lane}'.", permanent=True
            )
        version = row.release.version
        return EngineSpec(
            replica_id=row.pk,
            generation=row.generation,
            runtime=runtime,
            model_path=self._model_path(row),
            served_model_name=row.release.model.name,
            settings=use.profile.settings,
            address=row.address,
            engines_dir=str(self.folders.engines),
            compile_dir=str(self.folders.compile / runtime.name / f"{version.pk}-{use.profile.digest[:12]}"),
            engine_key=derive_engine_key(self.secret, replica_id=row.pk, generation=row.generation),
            device_uuids=tuple(row.device_uuids),
            internal_ports=tuple(
                PortReservation.objects.filter(replica=row, generation=row.generation, purpose="internal")
                .order_by("port")
                .values_list("port", flat=True)
            ),
            remote_code_approved=version.remote_code_approved,
        )

    def _model_path(self, row: Replica) -> str:
        """The folder, its files compared by size and time once more right before the start (FC-76)."""
        version = row.release.version
        presence = VersionPresence.objects.filter(node=self.node, version=version).first()
        if self.runtimes[row.release.runtime].kind == "sim":
            return presence.path if presence is not None else ""
        if presence is None or presence.phase != "present" or version.manifest is None:
            text = f"Version '{version.name}' is not verified on node '{self.node.name}' any more."
            raise StartRefused("missing_file", text, permanent=False)
        try:
            require_whole(
                compare_sizes(
                    manifest_from_json(version.manifest),
                    scan_folder(Path(presence.path), roots=self.folders.roots),
                )
            )
        except (PoolError, OSError) as exc:
            raise _refusal(exc) from exc
        return presence.path

    def _weight_bytes(self, row: Replica) -> int:
        facts = row.release.version.facts
        return (facts_from_json(facts).weight_bytes or 0) if facts else 0

    def watch(self, row: Replica, process: EngineProcess) -> Watcher:
        spec = self.make_spec(row)
        return Watcher(
            spec=spec,
            process=process,
            driver=self.drivers[spec.runtime.kind],
            recipe=self._recipe(row, spec),
            release=row.release.number,
            lane=row.lane,
            on_load=self.on_load,
            live_load=self.live_load,
        )

    def _recipe(self, row: Replica, spec: EngineSpec) -> WarmUpRecipe:
        settings = parse_settings(spec.settings)
        facts = row.release.version.facts or {}
        lanes = row.release.model.lanes.order_by("position")
        if row.lane:
            lanes = lanes.filter(name=row.lane)
        # A version whose config brings no template cannot chat; it may still be served for completions.
        routes = ("chat", "completions") if facts.get("has_chat_template", True) else ("completions",)
        return WarmUpRecipe(
            lanes=tuple(WarmUpLane(lane.name, lane.max_prompt_tokens) for lane in lanes),
            routes=routes,
            per_lane=settings.warm_up_per_lane,
            budget_s=float(settings.warm_up_budget_s),
            hot=list_hot_conversations(row.release.model_id, most=MOST_HOT)
            if settings.enable_prefix_caching
            else (),
        )

    def explain_end(self, row: Replica, process: EngineProcess, log: str) -> Failure:
        """Why the engine ended, in one sentence with the figures that it printed and what to change."""
        runtime = self.runtimes.get(row.release.runtime)
        if runtime is None:
            return Failure(
                FailureKind.PERMANENT, "missing_runtime", "This node has no such runtime any more."
            )
        found = self.drivers[runtime.kind].classify_failure(
            log, exit_code=process.exit_code, signal=process.signal
        )
        failure = failure_from(found)
        if row.phase == "ready":
            # What ran for a while does not fail for a setting: it is tried again.
            return Failure(FailureKind.TRANSIENT, failure.code, failure.message)
        return failure


def find_busy_ports(spec: EngineSpec) -> frozenset[int]:
    """Those of its reserved ports that another process holds: each is bound for a moment."""
    parts = urlsplit(spec.address)
    wanted = [*spec.internal_ports] + ([parts.port] if parts.scheme == "http" and parts.port else [])
    host = parts.hostname or "127.0.0.1"
    return frozenset(port for port in wanted if not _can_bind(host, port))


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As engines do: connections of the past that still linger are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                return False
            raise StartRefused(
                "bad_address",
                f"This host cannot listen on {host}:{port}: {exc.strerror}. SLUICE_NODE_ADDRESS sets the address.",
                permanent=True,
            ) from exc
    return True


def _refusal(exc: PoolError | OSError) -> StartRefused:
    if isinstance(exc, PoolError):
        code = str(exc.details.get("reason", exc.code))
        return StartRefused(code, exc.message, permanent=exc.code in _PERMANENT_CODES)
    return StartRefused("host_error", f"The host refused: {exc.strerror or exc}.", permanent=False)
