"""What the product asks of the outside: engines, the host that keeps them, devices. Values and Protocols.

Adapters live in `workers/`; fakes in `tests/fakes/`. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pool.domain.start_errors import StartFailure


@dataclass(frozen=True, slots=True)
class RuntimeRef:
    """One installed engine environment of a node. `platform` is `cpu` or `cuda`."""

    name: str
    kind: str
    interpreter: str
    pythonpath: tuple[str, ...] = ()
    platform: str = "cpu"


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What a probe of a runtime found out, in a process of that runtime. None means unknown."""

    name: str
    kind: str
    platform: str
    version: str
    python_version: str
    torch_version: str | None
    quantizations: tuple[str, ...]
    kv_cache_dtypes: tuple[str, ...]
    block_sizes: tuple[int, ...]
    default_block_size: int | None
    cpu_flags: tuple[str, ...] = ()
    fastest_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that a driver needs to build the command of one engine.

    `address` is `unix:/path.sock` or `http://host:port`, as in the routing table. `engines_dir` holds
    `<replica_id>.<generation>/` with the record and the log. `compile_dir` is kept per release and runtime.
    `remote_code_approved` is set only for a version whose code was approved by a person.
    """

    replica_id: str
    generation: int
    runtime: RuntimeRef
    model_path: str
    served_model_name: str
    settings: Mapping[str, object]
    address: str
    engines_dir: str
    compile_dir: str
    engine_key: str = field(repr=False)
    device_uuids: tuple[str, ...] = ()
    internal_ports: tuple[int, ...] = ()
    remote_code_approved: bool = False
    draft_model_path: str | None = None

    @property
    def directory(self) -> str:
        return f"{self.engines_dir}/{self.replica_id}.{self.generation}"


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """How the runtime's fork server may run this engine: `module.main()` after imports under `env`.

    Engines with equal plans share one fork server, so `env` holds nothing of a single engine and no secret.
    """

    interpreter: str
    module: str
    platform: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Command:
    """How to start one engine. `env` is complete (nothing is inherited); secrets are in `secret_env` only."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    fork: ForkPlan | None = None


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One engine as its keeper knows it. `started_ticks` is field 22 of /proc/<pid>/stat.

    While the runtime's fork server still imports, `running` is True and `pid` is None. `exit_code` and
    `signal` are None while it runs, and stay None when the keeper was not the one to reap it. `members` are
    the living processes of its session, leader first.
    """

    replica_id: str
    generation: int
    pid: int | None
    started_ticks: int | None
    running: bool
    exit_code: int | None
    signal: int | None
    forked: bool
    created_at: float
    ended_at: float | None
    log_path: str
    address: str
    members: tuple[int, ...] = ()

    @property
    def pgid(self) -> int | None:
        """Every engine leads a session and a process group of its own."""
        return self.pid


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`answers` says that the API answers 200. It proves nothing about completions."""

    answers: bool
    status: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Counters and gauges of one engine; None means that the engine did not say (never 0)."""

    running: int | None
    waiting: int | None
    kv_usage_ratio: float | None
    generation_tokens: float | None
    prompt_tokens: float | None
    finished_requests: float | None
    cache_queries_tokens: float | None = None
    cache_hits_tokens: float | None = None
    """Prompt tokens that were looked up in the prefix cache, and found there."""


@dataclass(frozen=True, slots=True)
class PrintedFigures:
    """What an engine printed at its start. None means not printed (yet)."""

    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = None
    kv_blocks: int | None = None
    block_size_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    model_memory_bytes: int | None = None
    load_s: float | None = None
    init_s: float | None = None
    compile_s: float | None = None
    dtype: str | None = None
    attention_backend: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """One process that holds memory of a device."""

    pid: int
    used_bytes: int | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device as measured. `usable` False carries the reason (driver fault, broken memory)."""

    uuid: str
    kind: str
    index: int
    name: str
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    memory_free_bytes: int | None
    processes: tuple[DeviceProcess, ...] = ()
    compute_capability: tuple[int, int] | None = None
    link_group: int | None = None
    usable: bool = True
    reason: str = ""
    utilization_ratio: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None


class EngineDriver(Protocol):
    """One kind of engine. Methods that talk to the engine raise EngineUnreachable when nobody answers."""

    kind: str

    def prepare(self, spec: EngineSpec) -> bool:
        """Makes folders and removes a stale socket. True when compile caches of this release are warm."""
        ...

    def build_command(self, spec: EngineSpec) -> Command: ...

    def read_health(self, address: str, *, engine_key: str, timeout_s: float = 1.0) -> EngineHealth: ...

    def read_load(self, address: str, *, engine_key: str, timeout_s: float = 1.0) -> EngineLoad: ...

    def read_figures(self, log_text: str) -> PrintedFigures: ...

    def read_stage(self, log_text: str) -> str: ...

    def classify_failure(
        self, log_text: str, *, exit_code: int | None, signal: int | None
    ) -> StartFailure: ...


class EngineHost(Protocol):
    """The keeper of the engines of one host (`workers.nodehost`). Everything is idempotent and fast."""

    def spawn(self, spec: EngineSpec, *, command: Command) -> EngineProcess:
        """Starts the engine, or returns what is known of this (replica, generation): it never runs twice."""
        ...

    def list_engines(self) -> tuple[EngineProcess, ...]: ...

    def find_engine(self, replica_id: str, *, generation: int) -> EngineProcess | None: ...

    def stop(self, replica_id: str, *, generation: int, grace_s: float = 5.0) -> bool:
        """SIGTERM to the leader now, SIGKILL to all of its session after `grace_s` (0: at once).

        Returns at once; False when nothing runs. The keeper sees it through, also when the caller dies.
        """
        ...

    def forget(self, replica_id: str, *, generation: int) -> bool:
        """Drops the record and the log of an ended engine; False while it runs."""
        ...


class DeviceInventory(Protocol):
    """Measures the devices of this host, now."""

    def list_devices(self) -> tuple[DeviceFacts, ...]: ...


class Notifier(Protocol):
    """Wakes loops; a lost call costs at most one second."""

    def notify(self, channel: str, payload: str = "") -> None: ...
