"""The launcher's reads of `SLUICE_*` variables beyond plain text. Relative paths count from the caller's
folder."""

import os
from pathlib import Path

from pool.env import env_int, env_path

# Above 32,767 lies the kernel's ephemeral range: a fixed port there can be taken by any outgoing connection.
LAST_FIXED_PORT = 32767
PATHS = (
    "SLUICE_CACHE_DIR",
    "SLUICE_DATA_DIR",
    "SLUICE_PG_BINDIR",
    "SLUICE_SECRET_KEY_FILE",
    "SLUICE_ADMIN_PASSWORD_FILE",
    "SLUICE_API_TOKEN_FILE",
    "SLUICE_GATEWAY_KEY_FILE",
)


def anchor_paths() -> None:
    """The bootstrap changed into the checkout: makes paths absolute as the caller meant them. Idempotent."""
    caller_dir = os.environ.get("SLUICE_CALLER_DIR", "")
    for name in PATHS:
        if os.environ.get(name):
            os.environ[name] = str(resolve_path(os.environ[name]))
    if caller_dir:
        os.environ["SLUICE_CALLER_DIR"] = os.path.abspath(caller_dir)


def read_port(name: str, default: int) -> int:
    return env_int(name, default, minimum=1, maximum=LAST_FIXED_PORT)


def read_path(name: str, default: Path) -> Path:
    path: Path = env_path(name, default)
    return path


def resolve_path(value: str | Path) -> Path:
    caller_dir = os.environ.get("SLUICE_CALLER_DIR") or os.getcwd()
    return Path(os.path.abspath(os.path.join(caller_dir, os.path.expanduser(value))))
