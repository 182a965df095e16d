"""`python -m workers.node --node NAME`: the one worker of a host. Engines outlive it.

The loops run in threads and need PostgreSQL only; the Celery worker in the main thread takes tasks from the queue
`node.NAME`. SIGTERM ends the worker and leaves its engines serving, unless --stop-engines is given.
"""

from __future__ import annotations

import console.boot  # isort: skip  # noqa: F401

import argparse
import gc
import logging
import os
import socket
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from pool.domain.errors import PoolError
from pool.domain.names import check_name
from pool.domain.prometheus import Page
from pool.env import env_int, env_json, env_path, env_port_range, env_str
from pool.metrics_listener import MetricsListener, make_address
from pool.models import Node
from pool.ports import DeviceFacts, EngineDriver, EngineLoad, EngineSpec, RuntimeRef
from pool.reconcilers.health import fill_loops
from pool.reconcilers.loop import Listener, Loop
from pool.services.nodes import (
    LeaseHeld,
    NodeIdentity,
    register_node,
    release_lease,
    store_devices,
    store_runtime,
)
from workers.celery_main import run_celery
from workers.device_meter import DeviceMeter
from workers.devices import load_nvml
from workers.engine_start import EngineStarter, Folders
from workers.engines.sim import SimDriver
from workers.engines.vllm import VllmDriver
from workers.gauges import GaugeBoard
from workers.hosts import NodeHost, ensure_node_host
from workers.own_processes import read_processes
from workers.presence import PresenceKeeper
from workers.queue_watch import QueueWatch
from workers.runtimes import probe_runtime, read_runtimes
from workers.sample_board import SampleBoard
from workers.sample_publisher import SamplePublisher
from workers.sampling import HostDevices, Sampler
from workers.supervisor import NodeTaken, Supervisor
from workers.switch_metrics import fill_switches
from workers.wake import WAKE

logger = logging.getLogger(__name__)

REGISTER_LIMIT_S = 60.0
ENGINE_PORTS = (21_000, 21_999)
ENGINES_STOP_LIMIT_S = 20.0


@dataclass(frozen=True)
class NodeConfig:
    """What this worker read from its environment, once."""

    name: str
    address: str
    zone: str
    labels: dict[str, str]
    data_dir: Path
    metrics_port: int
    engines_dir: Path
    run_dir: Path
    compile_dir: Path
    engine_ports: tuple[int, int]
    runtimes: tuple[RuntimeRef, ...]
    model_roots: tuple[Path, ...]
    packages: dict[str, Path]


def read_config(name: str) -> NodeConfig:
    """Raises ConfigError naming the variable."""
    data = env_path("SLUICE_DATA_DIR", Path(settings.DATA_DIR))
    labels = env_json("SLUICE_NODE_LABELS", {})
    return NodeConfig(
        name=check_name("node", name),
        address=env_str("SLUICE_NODE_ADDRESS", "127.0.0.1"),
        zone=env_str("SLUICE_NODE_ZONE", ""),
        labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {},
        data_dir=data,
        metrics_port=env_int("SLUICE_WORKER_METRICS_PORT", 9313, minimum=0, maximum=65535),
        engines_dir=data / "engines",
        run_dir=env_path("SLUICE_RUN_DIR", data / "run"),
        compile_dir=env_path("SLUICE_CACHE_DIR", Path.home() / ".cache" / "sluice") / "compile",
        engine_ports=env_port_range("SLUICE_ENGINE_PORTS", ENGINE_PORTS),
        runtimes=read_runtimes(),
        model_roots=tuple(Path(root) for root in settings.MODEL_ROOTS),
        packages=settings.PACKAGE_PATHS,
    )


class Worker:
    """Registers the node and runs its loops."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.holder = uuid.uuid4()
        self.drivers: dict[str, EngineDriver] = {"vllm": VllmDriver(), "sim": SimDriver()}
        self.loops: list[Loop] = []

    def start(self) -> None:
        config = self.config
        self.host = self._ensure_host()
        self.inventory = HostDevices(self._our_pids)
        self.node = self._register()
        self.sampler = Sampler(self.node, self.inventory, self._our_pids)
        board = GaugeBoard(settings.REDIS_URL)
        starter = EngineStarter(
            node=self.node,
            host=self.host,
            drivers=self.drivers,
            runtimes={ref.name: ref for ref in config.runtimes},
            folders=Folders(config.engines_dir, config.compile_dir, config.model_roots),
            secret=settings.SECRET_KEY,
            on_load=lambda spec, load: self._pass_on(board, spec, load),
            live_load=lambda spec: self.publisher.find_live_load(spec),
        )
        self.supervisor = Supervisor(
            node=self.node,
            holder=self.holder,
            host=self.host,
            starter=starter,
            memory_is_back=self.sampler.memory_is_back,
        )
        self.publisher = self._make_publisher()
        presence = PresenceKeeper(self.node, roots=config.model_roots, packages=config.packages)
        self.loops = [
            Loop("supervise", self._supervise, leased=False),
            Loop("sample", self.sampler.run_pass, leased=False),
            Loop("presence", presence.run_pass, leased=False, longest_wait_s=5.0),
        ]
        WAKE.loops = self.loops
        for loop in self.loops:
            loop.start()
        Listener(self.loops).start()
        threading.Thread(target=self._probe_runtimes, name="probe", daemon=True).start()
        QueueWatch(self.node, settings.REDIS_URL).start()
        self.publisher.start()
        self.metrics = MetricsListener(make_address(config.metrics_port), self._fill_metrics)
        self.metrics.start()
        # What is loaded by now stays: collections of garbage need not walk it twice a second.
        gc.collect()
        gc.freeze()

    def _make_publisher(self) -> SamplePublisher:
        return SamplePublisher(
            node=self.node.name,
            board=SampleBoard(settings.REDIS_URL),
            meter=DeviceMeter(load_nvml(), our_pids=self._our_pids, read_host=self._newest_host),
            list_engines=self.supervisor.list_watched,
            list_devices=lambda: self.sampler.newest,
            list_processes=lambda: read_processes(self.config.data_dir),
        )

    def _newest_host(self) -> DeviceFacts | None:
        """The `cpu` device as the sampler measured it within the last second."""
        newest = self.sampler.newest
        return newest[0] if newest else None

    def _pass_on(self, board: GaugeBoard, spec: EngineSpec, load: EngineLoad) -> None:
        self.publisher.note_load(spec, load)
        if not self.publisher.has_ring(spec):
            board.publish(spec.replica_id, spec.generation, load)

    def _fill_metrics(self, page: Page) -> None:
        self.publisher.fill(page)
        fill_loops(page, self.loops)
        fill_switches(page, self.node, timezone.now())

    def _ensure_host(self) -> NodeHost:
        self.config.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ensure_node_host(self.config.engines_dir, socket_path=self.config.run_dir / "nodehost.sock")

    def _supervise(self, now: datetime) -> dict[str, object]:
        self._ensure_host()
        try:
            return self.supervisor.run_pass(now)
        except NodeTaken as exc:
            # Two workers of one name must not both act: the one that lost its lease leaves.
            logger.error("%s; leaving", exc)
            os._exit(3)

    def _register(self) -> Node:
        """Waits for the database and for a former worker's lease, as long as a minute."""
        deadline = time.monotonic() + REGISTER_LIMIT_S
        while True:
            try:
                node = register_node(self._identity(), holder=self.holder, now=timezone.now())
                store_devices(node, self.inventory.list_devices())
                return node
            except (LeaseHeld, DatabaseError, InterfaceError) as exc:
                if time.monotonic() >= deadline:
                    raise
                logger.info("waiting to join as %s: %s", self.config.name, exc)
                time.sleep(1.0)
            finally:
                close_old_connections()

    def _identity(self) -> NodeIdentity:
        config = self.config
        return NodeIdentity(
            name=config.name,
            host=socket.gethostname(),
            address=config.address,
            zone=config.zone,
            labels=config.labels,
            facts={
                "worker_pid": os.getpid(),
                "run_dir": str(config.run_dir),
                "engine_ports": list(config.engine_ports),
                "cores": os.cpu_count(),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "kernel": os.uname().release,
                "runtimes": [ref.name for ref in config.runtimes],
            },
        )

    def _probe_runtimes(self) -> None:
        for ref in self.config.runtimes:
            try:
                facts = probe_runtime(ref)
                store_runtime(self.node, ref, facts, problem="", now=timezone.now())
            except PoolError as exc:
                store_runtime(self.node, ref, None, problem=exc.message, now=timezone.now())
            except (DatabaseError, InterfaceError) as exc:
                logger.warning("probe of %s not stored: %s", ref.name, exc)
            finally:
                close_old_connections()

    def _our_pids(self) -> frozenset[int]:
        return frozenset(pid for engine in self.host.list_engines() for pid in engine.members)

    def stop(self, *, stop_engines: bool) -> None:
        for loop in self.loops:
            loop.stop()
        self.publisher.stop()
        self.metrics.stop()
        self.supervisor.close()
        try:
            release_lease(self.node, holder=self.holder, now=timezone.now())
        except (DatabaseError, InterfaceError):
            logger.info("lease not released, it runs out by itself")
        if stop_engines:
            self.host.shut_down(stop_engines=True)
            self._wait_for_engines()

    def _wait_for_engines(self) -> None:
        deadline = time.monotonic() + ENGINES_STOP_LIMIT_S
        while time.monotonic() < deadline:
            try:
                if not any(engine.running for engine in self.host.list_engines()):
                    return
            except PoolError:
                return
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="sluice worker")
    parser.add_argument("--node", required=True)
    parser.add_argument("--stop-engines", action="store_true")
    options = parser.parse_args()
    try:
        worker = Worker(read_config(options.node))
        worker.start()
    except PoolError as exc:
        logger.error("%s", exc.message)
        return 2
    code = run_celery(["--queues", f"node.{options.node}", "--hostname", f"node@{options.node}"])
    worker.stop(stop_engines=options.stop_engines)
    return code


if __name__ == "__main__":
    sys.exit(main())
