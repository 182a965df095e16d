"""The launcher's own reads of `SLUICE_*` variables, typed; a bad value stops the start and names the variable."""

import os
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import BadSetting

# Above 32,767 lies the kernel's ephemeral range: a fixed port there can be taken by any outgoing connection.
LAST_FIXED_PORT = 32767


def read_text(
    name: str, default: str | None = None, *, environ: Mapping[str, str] | None = None
) -> str | None:
    """The variable's value, or the default where it is unset or empty."""
    value = (os.environ if environ is None else environ).get(name, "").strip()
    return value or default


def read_port(name: str, default: int, *, environ: Mapping[str, str] | None = None) -> int:
    value = read_text(name, environ=environ)
    if value is None:
        return default
    if not value.isdigit() or not 1 <= int(value) <= LAST_FIXED_PORT:
        raise BadSetting(
            f"{name} is {value!r}, but must be a port between 1 and {LAST_FIXED_PORT}.",
            variable=name,
            value=value,
        )
    return int(value)


def read_choice(
    name: str, choices: tuple[str, ...], *, environ: Mapping[str, str] | None = None
) -> str | None:
    value = read_text(name, environ=environ)
    if value is not None and value not in choices:
        raise BadSetting(f"{name} is {value!r}, but must be one of {', '.join(choices)}.", variable=name)
    return value


def read_path(name: str, default: Path, *, environ: Mapping[str, str] | None = None) -> Path:
    """Absolute; a relative value counts from where the person called the command."""
    value = read_text(name, environ=environ)
    return default if value is None else resolve_path(value)


def resolve_path(value: str | Path) -> Path:
    caller_dir = os.environ.get("SLUICE_CALLER_DIR") or os.getcwd()
    return Path(os.path.abspath(os.path.join(caller_dir, os.path.expanduser(value))))
