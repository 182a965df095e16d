"""Typed reads of the process environment: the only place that looks at it. Holds no settings itself.

Each reader takes the variable's name and a default. Without a default an unset variable stops the start. An
empty value counts as unset. A bad value raises ConfigError, which names the variable and shows no secret.
"""

import json
import os
from collections.abc import Callable
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from pool.domain.errors import PoolError

T = TypeVar("T")
D = TypeVar("D")


class ConfigError(PoolError):
    """A variable is missing or holds a value that cannot be used."""

    code: ClassVar[str] = "config_invalid"


class _Unset(Enum):
    REQUIRED = "required"


_REQUIRED: Final = _Unset.REQUIRED


def env_str(name: str, default: D | _Unset = _REQUIRED, *, choices: tuple[str, ...] = ()) -> str | D:
    value = _read(name, default, lambda text: text)
    if choices and isinstance(value, str) and value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}.", variable=name)
    return value


def env_int(
    name: str, default: D | _Unset = _REQUIRED, *, minimum: int | None = None, maximum: int | None = None
) -> int | D:
    value = _read(name, default, lambda text: _parse(name, text, int, "a whole number"))
    _check_range(name, value, minimum, maximum)
    return value


def env_float(
    name: str, default: D | _Unset = _REQUIRED, *, minimum: float | None = None, maximum: float | None = None
) -> float | D:
    value = _read(name, default, lambda text: _parse(name, text, float, "a number"))
    _check_range(name, value, minimum, maximum)
    return value


def env_bool(name: str, default: D | _Unset = _REQUIRED) -> bool | D:
    return _read(name, default, lambda text: _parse_bool(name, text))


def env_path(name: str, default: D | _Unset = _REQUIRED) -> Path | D:
    """An absolute path; `~` is expanded, a relative value counts from the working directory."""
    return _read(name, default, lambda text: Path(os.path.abspath(os.path.expanduser(text))))


def env_port_range(name: str, default: D | _Unset = _REQUIRED) -> tuple[int, int] | D:
    """`FIRST-LAST`, both included and above the privileged ports."""
    kind = "the first and the last port, such as 21000-21999"
    return _read(name, default, lambda text: _parse(name, text, _parse_port_range, kind))


def env_networks(name: str) -> list[IPv4Network | IPv6Network]:
    """Joined by `,`; none when unset."""
    kind = "networks such as 10.1.0.0/16,fd00::/8"
    found = _read(name, None, lambda text: _parse(name, text, _parse_networks, kind))
    return found or []


def env_json(name: str, default: D | _Unset = _REQUIRED) -> object | D:
    return _read(name, default, lambda text: _parse(name, text, json.loads, "JSON"))


def env_secret(name: str, default: D | _Unset = _REQUIRED) -> str | D:
    """The value of NAME, else the content of the file that NAME_FILE names (stripped)."""
    value = os.environ.get(name, "")
    file = os.environ.get(f"{name}_FILE", "")
    if value and file:
        raise ConfigError(f"Set {name} or {name}_FILE, not both.", variable=name)
    if value:
        return value
    if file:
        return _read_secret_file(name, file)
    return _fall_back(name, default, f"Set {name} or {name}_FILE.")


def _read(name: str, default: D | _Unset, parse: Callable[[str], T]) -> T | D:
    text = os.environ.get(name, "")
    return parse(text) if text else _fall_back(name, default, f"Set {name}.")


def _fall_back(name: str, default: D | _Unset, advice: str) -> D:
    if isinstance(default, _Unset):
        raise ConfigError(f"{name} is not set. {advice}", variable=name)
    return default


def _parse(name: str, text: str, convert: Callable[[str], T], kind: str) -> T:
    try:
        return convert(text)
    except ValueError as exc:
        raise ConfigError(f"{name} must be {kind}, not {text!r}.", variable=name) from exc


def _parse_networks(text: str) -> list[IPv4Network | IPv6Network]:
    return [ip_network(part.strip()) for part in text.split(",") if part.strip()]


def _parse_port_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not 1024 <= int(first) <= int(last) <= 65_535:
        raise ValueError(text)
    return int(first), int(last)


def _parse_bool(name: str, text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ConfigError(f"{name} must be true or false, not {text!r}.", variable=name)


def _check_range(name: str, value: object, minimum: float | None, maximum: float | None) -> None:
    if not isinstance(value, (int, float)):
        return
    if value != value or (minimum is not None and value < minimum):
        raise ConfigError(f"{name} must be at least {minimum}, not {value}.", variable=name)
    if maximum is not None and value > maximum:
        raise ConfigError(f"{name} must be at most {maximum}, not {value}.", variable=name)


def _read_secret_file(name: str, file: str) -> str:
    try:
        value = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"{name}_FILE names {file}, which cannot be read.", variable=f"{name}_FILE"
        ) from exc
    if not value:
        raise ConfigError(f"{name}_FILE names {file}, which is empty.", variable=f"{name}_FILE")
    return value
