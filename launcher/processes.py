"""The table of an installation's processes: what is run, how it is known to be up, in which order it is
stopped."""

import http.client
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.children import Identity
from launcher.installation import Installation
from launcher.layout import ROOT
from launcher.servers import ServerSpec
from pool.env import env_float

GRACE_S = 10.0
PROBE_S = 0.3
# A gateway leaves when its last stream has ended; the longest answers take minutes, an operator waits half
# of one.
GATEWAY_DRAIN_S = env_float("SLUICE_GATEWAY_DRAIN_S", 30.0, minimum=0.0)
# Past its own limit a gateway needs a moment to cut what is left.
GATEWAY_GRACE_S = GATEWAY_DRAIN_S + 5.0
# First to last. Engines go after the worker, before what remembers them.
STOP_ORDER: tuple[tuple[str, ...], ...] = (
    ("gateway",),
    ("worker",),
    ("control", "telemetry", "web"),
    ("valkey",),
    ("postgres",),
)
ENGINES_STOP_AFTER = "worker"


@dataclass(frozen=True)
class ProcessSpec:
    """One supervised process. Without `is_ready` it counts as running when it has lived for a moment."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    is_ready: Callable[[], bool] | None = None
    stop_signal: int = signal.SIGTERM
    grace_s: float = GRACE_S
    identity: Identity = "plain"
    cwd: Path = field(default=ROOT)


def list_modules(installation: Installation) -> dict[str, list[str]]:
    """`python -m …` for each process of ours, by name."""
    return {
        "web": ["console.serve"],
        "gateway": ["pool.gateway"],
        "control": ["workers.control"],
        "telemetry": ["pool.telemetry"],
        "worker": ["workers.node", "--node", installation.node],
    }


def describe_process(
    name: str, *, installation: Installation, python: Path, env: Mapping[str, str]
) -> ProcessSpec:
    bind = installation.bind
    ready: dict[str, Callable[[], bool]] = {
        "web": lambda: answers(bind, installation.web_port),
        "gateway": lambda: answers(bind, installation.gateway_port),
    }
    return ProcessSpec(
        name=name,
        argv=(str(python), "-m", *list_modules(installation)[name]),
        env={**env, "SLUICE_PROCESS": name},
        is_ready=ready.get(name),
        grace_s=GATEWAY_GRACE_S if name == "gateway" else GRACE_S,
    )


def describe_server(server: ServerSpec, *, env: Mapping[str, str]) -> ProcessSpec:
    """An embedded server sees none of our variables but the basic ones."""
    basics = {name: env[name] for name in ("PATH", "HOME", "TMPDIR") if name in env}
    return ProcessSpec(
        name=server.name,
        argv=server.argv,
        env={**basics, "LC_ALL": "C.UTF-8", "TZ": "UTC", **server.env},
        is_ready=server.is_ready,
        stop_signal=server.stop_signal,
        identity=server.identity,
    )


def answers(bind: str, port: int) -> bool:
    """True when an HTTP server answers there, whatever it answers: a port may be bound long before."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
