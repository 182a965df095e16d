"""The installation that a benchmark puts under load: named by options, else the one that runs in the data folder."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.credentials import find_credentials
from launcher.layout import find_layout
from launcher.locks import is_locked
from launcher.record import read_record
from pool.env import env_secret


class NothingRuns(SystemExit):
    """No gateway was named, and none runs here."""


@dataclass(frozen=True)
class Target:
    """`url` without a path, as in http://127.0.0.1:8080."""

    url: str
    key: str


def find_target(*, url: str | None = None, key: str | None = None, data: str | None = None) -> Target:
    """Raises NothingRuns. A gateway that is named by its URL needs its key, or SLUICE_GATEWAY_KEY."""
    layout = find_layout(data)
    record = read_record(layout.record) if is_locked(layout.lock) else None
    credentials = find_credentials(layout.secrets)
    if key is None and url is None and credentials is not None:
        key = credentials.read("gateway_key")
    key = key or env_secret("SLUICE_GATEWAY_KEY", None)
    if url is None and record is not None:
        url = record.gateway_url
    if not url or not key:
        missing = "gateway" if not url else "key"
        raise NothingRuns(
            f"No {missing} is known: no installation runs in {layout.data}. Start one with `./sluice up`, name its"
            " folder with --data, or give --url and --key."
        )
    return Target(url.rstrip("/").removesuffix("/v1"), key)
