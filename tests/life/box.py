"""A pool in a box: real database, real node host, fake engines, and the loops stepped by the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.db import connection
from django.utils import timezone

from pool.models import Intent, Node, NodeLease, PhaseChange, Replica
from pool.ports import EngineProcess, RuntimeRef
from pool.reconcilers import replicas as replica_loop
from pool.services.catalog import set_scale
from tests.fakes.fake_driver import FakeDriver
from tests.pool.services.world import ACTOR, World, make_node, make_world
from workers.engine_start import EngineStarter, Folders
from workers.hosts import HostUnreachable, NodeHost, ensure_node_host, kill_node_host
from workers.supervisor import Supervisor

LIMIT_S = 20.0


class BoxWorker:
    """The worker of one node, which can die and come back; its engines and their keeper outlive it."""

    def __init__(self, node: Node, folder: Path, driver: FakeDriver) -> None:
        self.node = node
        self.folder = folder
        self.driver = driver
        folder.mkdir(exist_ok=True)
        Node.objects.filter(pk=node.pk).update(facts=node.facts | {"run_dir": str(folder)})
        node.refresh_from_db()
        self.start()

    def start(self) -> None:
        """A new process' state: another holder, no watchers, the same engines."""
        self.host = self._ensure_host()
        self.holder = uuid.uuid4()
        starter = EngineStarter(
            node=self.node,
            host=self.host,
            drivers={"sim": self.driver},
            runtimes={"sim-1": RuntimeRef("sim-1", "sim", "python")},
            folders=Folders(self.folder / "engines", self.folder / "compile"),
            secret="test-secret-key-that-is-long-enough",
        )
        self.supervisor = Supervisor(
            node=self.node,
            holder=self.holder,
            host=self.host,
            starter=starter,
            memory_is_back=lambda engine: not engine.running,
        )
        now = timezone.now()
        lease = {"holder": self.holder, "renewed_at": now, "until": now + timedelta(seconds=10)}
        NodeLease.objects.update_or_create(node=self.node, defaults=lease)

    def kill(self) -> None:
        """What kill -9 leaves: the engines and the rows."""
        self.supervisor.close()
        for watcher in self.supervisor.watchers.values():
            watcher.thread.join(5)

    def step(self) -> None:
        self.host = self._ensure_host()
        self.supervisor.run_pass(timezone.now())

    def engines(self) -> list[EngineProcess]:
        return [engine for engine in self.host.list_engines() if engine.running]

    def stop_engines(self) -> None:
        """What `down` does: the keeper ends its engines and itself."""
        self.host.shut_down(stop_engines=True, grace_s=0)
        deadline = time.monotonic() + 5
        while (self.folder / "nodehost.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        self.kill()
        with contextlib.suppress(HostUnreachable):
            self.stop_engines()
        self.supervisor.jobs.executor.shutdown(wait=True)

    def _ensure_host(self) -> NodeHost:
        return ensure_node_host(self.folder / "engines", socket_path=self.folder / "nodehost.sock")


class Box:
    """The pool with its first node. The samples of this world are of another year: placement of a simulated engine
    looks at the node only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world: World = make_world()
        self.node = self.world.node
        self.driver = FakeDriver()
        self.worker = BoxWorker(self.node, folder, self.driver)
        self.workers = [self.worker]
        """Those that run; a test takes one out to cut it off."""
        self.made = [self.worker]

    @property
    def host(self) -> NodeHost:
        return self.worker.host

    @property
    def supervisor(self) -> Supervisor:
        return self.worker.supervisor

    def add_worker(self, name: str) -> BoxWorker:
        """A further node with a data folder of its own."""
        added = BoxWorker(make_node(name, now=timezone.now()), self.folder / name, self.driver)
        self.workers.append(added)
        self.made.append(added)
        return added

    def start_worker(self) -> None:
        self.worker.start()

    def kill_worker(self) -> None:
        self.worker.kill()

    def kill_host(self) -> None:
        kill_node_host(self.folder / "engines")

    def stop_engines(self) -> None:
        self.worker.stop_engines()

    def scale(self, replicas: int) -> None:
        set_scale("chatty", 1, replicas=replicas, lane="", actor=ACTOR)

    def step(self) -> None:
        """One pass of each loop."""
        replica_loop.run_pass(timezone.now())
        for worker in self.workers:
            worker.step()

    def run_until(self, condition: Callable[[], bool], *, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() >= deadline:
                raise AssertionError(f"not in time; rows: {self.describe()}")
            self.step()
            time.sleep(0.05)

    def run_until_ready(self, count: int = 1) -> list[Replica]:
        self.run_until(lambda: Replica.objects.filter(phase="ready").count() == count)
        return list(Replica.objects.filter(phase="ready"))

    def engines(self) -> list[EngineProcess]:
        return [engine for worker in self.workers for engine in worker.engines()]

    def describe(self) -> list[tuple[object, ...]]:
        rows = Replica.objects.values_list(
            "id", "generation", "phase", "engine", "reason_code", "reason_text"
        )
        intents = Intent.objects.values_list("action", "phase", "generation")
        return [*rows, *intents, *((engine,) for engine in self.host.list_engines())]

    def phases(self, replica_id: str) -> list[str]:
        return list(PhaseChange.objects.filter(replica_id=replica_id).values_list("phase", flat=True))

    def close(self) -> None:
        for worker in self.made:
            worker.close()
        connection.close()


@contextmanager
def open_box() -> Iterator[Box]:
    folder = Path(tempfile.mkdtemp(prefix="sb-", dir="/tmp"))
    box = Box(folder)
    try:
        yield box
    finally:
        box.close()
        shutil.rmtree(folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int, signum: int) -> None:
    os.kill(pid, signum)
