"""The installation's four secrets: taken from the environment, else made once; kept in files of mode 600."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pool.env import env_secret

KEY_CHARACTERS = 32


@dataclass(frozen=True)
class Credentials:
    """Paths only: values reach processes through `…_FILE` variables, never through arguments."""

    folder: Path

    def read(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def child_variables(self) -> dict[str, str]:
        return {f"SLUICE_{name.upper()}_FILE": str(self.folder / name) for name in _MAKERS}


def ensure_credentials(folder: Path) -> Credentials:
    """Stores what `SLUICE_NAME` or `SLUICE_NAME_FILE` says; makes what nobody set and the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, make in _MAKERS.items():
        path = folder / name
        given = _read_given(name)
        if given is not None:
            if not path.exists() or path.read_text().strip() != given:
                _write_private(path, given)
        elif not path.exists():
            _write_private(path, make())
        path.chmod(0o600)
    return Credentials(folder)


def find_credentials(folder: Path) -> Credentials | None:
    """Those of an installation that was started before, None for a folder without."""
    return Credentials(folder) if all((folder / name).exists() for name in _MAKERS) else None


def _make_key(prefix: str) -> str:
    # Letters and digits only after the prefix: a double click in a terminal selects all of it.
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    return prefix + "".join(secrets.choice(letters) for _ in range(KEY_CHARACTERS))


_MAKERS: dict[str, Callable[[], str]] = {
    "secret_key": lambda: secrets.token_urlsafe(48),
    "admin_password": lambda: secrets.token_urlsafe(12),
    "api_token": lambda: _make_key("slt_"),
    "gateway_key": lambda: _make_key("sk-sluice-"),
}


def _read_given(name: str) -> str | None:
    value: str | None = env_secret(f"SLUICE_{name.upper()}", None)
    return value.strip() if value else None


def _write_private(path: Path, value: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(value + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
