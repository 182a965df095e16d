"""From nothing to an answering model: the steps of `up`, the heavy ones side by side. Runs beside the
supervisor."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from launcher.compiling import ensure_compiled, name_compiled
from launcher.credentials import Credentials
from launcher.demo_model import ensure_demo_model
from launcher.django_steps import run_command
from launcher.environments import (
    Environment,
    ensure_console,
    ensure_engine,
    find_engine_build,
    install_plugin,
)
from launcher.installation import Installation, describe_runtimes, make_environment
from launcher.processes import describe_process, describe_server
from launcher.progress import Progress
from launcher.servers import (
    ServerSpec,
    find_postgres_binaries,
    find_valkey_binary,
    prepare_postgres,
    prepare_valkey,
)
from launcher.supervise import Supervisor
from pool.env import env_path

T = TypeVar("T")
SERVER_TIMEOUT_S = 60.0
PROCESS_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class EngineParts:
    """What the node worker needs to run real engines."""

    environment: Environment
    plugin: Path | None


class BringUp:
    """One pass over the steps. A failed step raises; what was started stays with the supervisor."""

    def __init__(
        self, installation: Installation, credentials: Credentials, supervisor: Supervisor, progress: Progress
    ) -> None:
        self._installation = installation
        self._credentials = credentials
        self._supervisor = supervisor
        self._progress = progress
        self._urls: dict[str, str] = {}

    def run(self) -> None:
        """Returns when every process runs and, with the demo, its release is in the plan."""
        real = self._installation.engine == "vllm"
        parts = _in_background(self._prepare_engine) if real else None
        model = (
            _in_background(lambda: self._convert_model(parts))
            if parts and self._installation.has_demo
            else None
        )
        console = ensure_console(self._progress)
        compiled = _in_background(lambda: ensure_compiled(self._progress))
        self._start_servers(console)
        self._prepare_console(console)
        self._start(console, "web", "control", "telemetry")
        # A first start waits for no compiler: until it is done, the gateway runs from its sources.
        was_compiled = compiled.done()
        self._start(console, "gateway", **name_compiled(compiled.result() if was_compiled else None))
        self._wait_running("web", "gateway")
        self._progress.say(f"The console is up at {self._installation.local_web_url}")
        self._start_worker(console, parts.result() if parts else None)
        if self._installation.has_demo:
            self._register_demo(console, model.result() if model else None)
        self._wait_running("control", "telemetry", "worker")
        if not was_compiled:
            self._take_compiled(console, compiled.result())

    def _take_compiled(self, console: Environment, folder: Path | None) -> None:
        if folder is not None:
            self._start(console, "gateway", **name_compiled(folder))
            self._wait_running("gateway")

    def _prepare_engine(self) -> EngineParts:
        environment = ensure_engine(self._progress)
        return EngineParts(environment, install_plugin(environment, self._progress))

    def _convert_model(self, parts: "Future[EngineParts]") -> Path:
        return ensure_demo_model(parts.result().environment, self._progress)

    def _start_servers(self, console: Environment) -> None:
        layout, given = self._installation.layout, self._installation
        self._urls = {
            "SLUICE_DATABASE_URL": given.database_url or "",
            "SLUICE_REDIS_URL": given.redis_url or "",
        }
        with self._progress.step("PostgreSQL and Valkey"):
            servers: list[ServerSpec] = []
            if given.redis_url is None:
                binary = find_valkey_binary(console.site_packages)
                servers.append(prepare_valkey(layout.data / "valkey", layout.sockets, binary=binary))
                self._urls["SLUICE_REDIS_URL"] = servers[-1].url
                self._supervisor.start(describe_server(servers[-1], env=make_environment(given, None)))
            if given.database_url is None:
                bin_dir = env_path("SLUICE_PG_BINDIR", None) or find_postgres_binaries(console.site_packages)
                servers.append(prepare_postgres(layout.data / "pg", layout.sockets, bin_dir=bin_dir))
                self._urls["SLUICE_DATABASE_URL"] = servers[-1].url
                self._supervisor.start(describe_server(servers[-1], env=make_environment(given, None)))
            for server in servers:
                self._supervisor.wait_running(server.name, timeout_s=SERVER_TIMEOUT_S)

    def _prepare_console(self, console: Environment) -> None:
        with self._progress.step("tables and accounts"):
            self._manage(console, "migrate", "--no-input", "-v", "0")
            self._manage(console, "bootstrap", "--engine", self._installation.engine)

    def _register_demo(self, console: Environment, model: Path | None) -> None:
        with self._progress.step("demo model: registration"):
            path = ("--demo-path", str(model)) if model else ()
            self._manage(console, "bootstrap", "--engine", self._installation.engine, "--demo", *path)

    def _start_worker(self, console: Environment, parts: EngineParts | None) -> None:
        runtimes = describe_runtimes(
            console.python,
            parts.environment.python if parts else None,
            build=find_engine_build(),
            plugin=parts.plugin if parts else None,
        )
        self._start(console, "worker", SLUICE_RUNTIMES=json.dumps(runtimes))

    def _start(self, console: Environment, *names: str, **extra: str) -> None:
        env = self._environment() | extra
        for name in names:
            spec = describe_process(name, installation=self._installation, python=console.python, env=env)
            self._supervisor.start(spec)

    def _wait_running(self, *names: str) -> None:
        with self._progress.step(" and ".join(names)):
            for name in names:
                self._supervisor.wait_running(name, timeout_s=PROCESS_TIMEOUT_S)

    def _manage(self, console: Environment, *arguments: str) -> None:
        run_command(
            arguments, python=console.python, env=self._environment(), layout=self._installation.layout
        )

    def _environment(self) -> dict[str, str]:
        return make_environment(self._installation, self._credentials, extra=self._urls)


def _in_background(work: Callable[[], T]) -> "Future[T]":
    """A daemon thread: an interrupted start leaves at once, and the thread's child processes die with it."""
    future: Future[T] = Future()

    def carry_out() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=carry_out, daemon=True, name=f"bring-up-{time.monotonic():.0f}").start()
    return future
