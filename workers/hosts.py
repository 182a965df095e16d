"""The client of the node host: one short call per connection; and its start where there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pool.domain.errors import PoolError
from pool.ports import Command, EngineProcess, EngineSpec

SOCKET_NAME = "nodehost.sock"
CALL_LIMIT_S = 5.0
START_LIMIT_S = 10.0
MAX_ANSWER_BYTES = 16 << 20
REPOSITORY = Path(__file__).resolve().parent.parent


class HostUnreachable(PoolError):
    """Nobody answers on the node host's socket."""

    code: ClassVar[str] = "host_unreachable"


class HostRefused(PoolError):
    """The node host could not do what was asked; `details["reason"]` holds its own code."""

    code: ClassVar[str] = "host_refused"


@dataclass(frozen=True, slots=True)
class NodeHost:
    """Implements pool.ports.EngineHost over `socket_path`."""

    socket_path: str

    def spawn(self, spec: EngineSpec, *, command: Command) -> EngineProcess:
        Path(spec.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        answer = self._call(
            "spawn",
            replica_id=spec.replica_id,
            generation=spec.generation,
            address=spec.address,
            argv=list(command.argv),
            env={**command.env, **command.secret_env},
            cwd=command.cwd,
            fork=_plain(command),
        )
        return _read_process(answer["engine"])

    def list_engines(self) -> tuple[EngineProcess, ...]:
        return tuple(_read_process(one) for one in self._call("list")["engines"])

    def find_engine(self, replica_id: str, *, generation: int) -> EngineProcess | None:
        answer = self._call("find", replica_id=replica_id, generation=generation)
        return _read_process(answer["engine"]) if answer["engine"] else None

    def stop(self, replica_id: str, *, generation: int, grace_s: float = 5.0) -> bool:
        answer = self._call("stop", replica_id=replica_id, generation=generation, grace_s=grace_s)
        return bool(answer["stopping"])

    def forget(self, replica_id: str, *, generation: int) -> bool:
        return bool(self._call("forget", replica_id=replica_id, generation=generation)["forgotten"])

    def read_status(self) -> dict[str, Any]:
        """`pid`, `since`, `engines`, `fork_servers` of the node host itself."""
        return self._call("status")

    def shut_down(self, *, stop_engines: bool, grace_s: float = 5.0) -> int:
        """Asks it to end, with its engines or without; returns how many ran. Does not wait."""
        return int(self._call("shutdown", stop_engines=stop_engines, grace_s=grace_s)["engines"])

    def _call(self, operation: str, **fields: object) -> dict[str, Any]:
        line = json.dumps({"op": operation, **fields}).encode() + b"\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(CALL_LIMIT_S)
                peer.connect(self.socket_path)
                peer.sendall(line)
                answer = _read_line(peer)
        except (OSError, ValueError) as exc:
            raise HostUnreachable(
                "The keeper of the engines does not answer. The worker starts it again.",
                socket=self.socket_path,
                cause=type(exc).__name__,
            ) from exc
        if error := answer.get("error"):
            raise HostRefused(str(error["message"]), reason=error["code"], operation=operation)
        return answer


def ensure_node_host(
    engines_dir: Path, *, socket_path: Path, log_path: Path | None = None, python: str = sys.executable
) -> NodeHost:
    """The running node host of `engines_dir`, started in a session of its own where there is none."""
    host = NodeHost(str(socket_path))
    if _answers(host):
        return host
    engines_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = log_path or engines_dir / "nodehost.log"
    argv = [
        python,
        "-m",
        "workers.nodehost",
        "--dir",
        str(engines_dir),
        "--socket",
        str(socket_path),
        "--detach",
    ]
    with log.open("ab") as output:
        subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=_host_env(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=START_LIMIT_S,
            check=False,
        )
    # Another worker may have been first: then that one's node host is about to listen.
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if _answers(host):
            return host
        time.sleep(0.02)
    raise HostUnreachable("The keeper of the engines did not start; its log says why.", log=str(log))


def kill_node_host(engines_dir: Path) -> bool:
    """SIGKILL to the node host of this folder; its engines go on. True when there was one."""
    try:
        pid = int((engines_dir / "nodehost.lock").read_text())
        os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        return False
    return True


def _host_env(env: Mapping[str, str]) -> dict[str, str]:
    """No secret of the worker may reach the node host: it needs a path and a locale, nothing else."""
    return {name: env[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR") if name in env}


def _answers(host: NodeHost) -> bool:
    try:
        host.read_status()
    except HostUnreachable:
        return False
    return True


def _read_line(peer: socket.socket) -> dict[str, Any]:
    buffer = bytearray()
    while not buffer.endswith(b"\n"):
        content = peer.recv(65536)
        if not content or len(buffer) > MAX_ANSWER_BYTES:
            raise ValueError("the answer was cut")
        buffer += content
    answer: dict[str, Any] = json.loads(buffer)
    return answer


def _plain(command: Command) -> dict[str, Any] | None:
    if command.fork is None:
        return None
    return {**asdict(command.fork), "env": dict(command.fork.env)}


def _read_process(content: dict[str, Any]) -> EngineProcess:
    return EngineProcess(**{**content, "members": tuple(content["members"])})
