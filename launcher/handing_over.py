"""Runs something in place of the launcher, in an environment: finds what a process of this or a further
host needs."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from launcher.credentials import Credentials, find_credentials
from launcher.environments import ensure_console, ensure_engine, find_engine_build, install_plugin
from launcher.errors import BadSetting
from launcher.installation import Installation, describe_runtimes, make_environment, read_installation
from launcher.layout import ROOT, find_layout
from launcher.locks import is_locked
from launcher.progress import Progress
from launcher.record import read_record
from launcher.servers import postgres_url, valkey_url
from pool.env import env_json, env_secret

# What each process cannot do without on a further host.
NEEDED = {
    "web": ("SLUICE_DATABASE_URL", "SLUICE_REDIS_URL", "SLUICE_SECRET_KEY"),
    "control": ("SLUICE_DATABASE_URL", "SLUICE_REDIS_URL", "SLUICE_SECRET_KEY"),
    "telemetry": ("SLUICE_DATABASE_URL", "SLUICE_REDIS_URL", "SLUICE_SECRET_KEY"),
    "worker": ("SLUICE_DATABASE_URL", "SLUICE_REDIS_URL", "SLUICE_SECRET_KEY"),
    "gateway": ("SLUICE_REDIS_URL", "SLUICE_WEB_URL", "SLUICE_SECRET_KEY"),
}


@dataclass(frozen=True)
class Surroundings:
    """Of a process that is started by hand: this host's running installation, or what the variables say."""

    installation: Installation
    credentials: Credentials | None
    urls: dict[str, str]


def find_surroundings(*, data: str | None = None, node: str | None = None) -> Surroundings:
    """The running installation of the data folder lends its servers and secrets; set variables win."""
    layout = find_layout(data)
    record = read_record(layout.record) if is_locked(layout.lock) else None
    engine = record.engine if record else "vllm"
    installation = read_installation(layout, engine=engine, has_demo=False, node=node)
    if record is None:
        return Surroundings(installation, find_credentials(layout.secrets) if _uses_files() else None, {})
    urls = {"SLUICE_WEB_URL": os.environ.get("SLUICE_WEB_URL") or record.web_url}
    if (layout.data / "pg").exists() and installation.database_url is None:
        urls["SLUICE_DATABASE_URL"] = postgres_url(layout.sockets)
    if (layout.data / "valkey").exists() and installation.redis_url is None:
        urls["SLUICE_REDIS_URL"] = valkey_url(layout.sockets)
    return Surroundings(installation, find_credentials(layout.secrets), urls)


def prepare_environment(
    surroundings: Surroundings, *, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    env = make_environment(surroundings.installation, surroundings.credentials, extra=surroundings.urls)
    if surroundings.credentials is None:
        # A further host has no files of its own: the secrets come from the variables, as they are.
        secret = {name: value for name, value in os.environ.items() if name.startswith(_SECRETS)}
        env |= secret
    return env | dict(extra or {})


def check_needed(name: str, env: Mapping[str, str]) -> None:
    """Raises BadSetting naming every variable that is missing."""
    missing = [need for need in NEEDED[name] if not env.get(need) and not env.get(f"{need}_FILE")]
    if missing:
        raise BadSetting(
            f"`./sluice {name}` needs {', '.join(missing)} here, because no installation runs in this"
            f" data folder."
            " Set them to what the first host uses (docs/configuration.md).",
            missing=missing,
        )


def prepare_runtimes(surroundings: Surroundings, progress: Progress) -> dict[str, str]:
    """`SLUICE_RUNTIMES` for a node worker; builds the engine's environment unless the variable is set
    already."""
    if env_json("SLUICE_RUNTIMES", None) is not None:
        return {}
    console = ensure_console(progress)
    if surroundings.installation.engine == "sim":
        runtimes = describe_runtimes(console.python, None, build=find_engine_build(), plugin=None)
    else:
        engine = ensure_engine(progress)
        plugin = install_plugin(engine, progress)
        runtimes = describe_runtimes(console.python, engine.python, build=find_engine_build(), plugin=plugin)
    return {"SLUICE_RUNTIMES": json.dumps(runtimes)}


def hand_over(python: Path, arguments: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
    """Becomes the command: same pid, so that a process manager's signals arrive."""
    os.chdir(ROOT)
    os.execve(python, [str(python), *arguments], dict(env))


_SECRETS = ("SLUICE_SECRET_KEY", "SLUICE_ADMIN_PASSWORD", "SLUICE_API_TOKEN", "SLUICE_GATEWAY_KEY")


def _uses_files() -> bool:
    """A stopped installation's own secrets count only where no variable gives another secret key."""
    return env_secret("SLUICE_SECRET_KEY", None) is None
