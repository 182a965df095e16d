"""The gateway's settings, read from the environment once and passed on frozen."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from pool.env import ConfigError, env_float, env_int, env_path, env_secret, env_str
from pool.gateway.regions import Network, read_networks

MIB = 1 << 20
OWN_HEADERS = frozenset(
    (
        b"authorization", b"content-length", b"expect", b"host", b"transfer-encoding", b"x-forwarded-for",
        b"x-request-id", b"x-sluice-no-retry", b"x-sluice-release", b"x-sluice-session",
    )
)  # fmt: skip
"""That the gateway reads; each may come once, but for x-forwarded-for."""
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class Config:
    """Lengths of time are in seconds, sizes in bytes."""

    secret: str
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8080
    worker: int = 0
    """Index of this process among those that share the port."""
    workers: int = 1
    """How many these are."""
    installation: str | None = None
    """None = learned from the first signed table."""
    redis_url: str | None = None
    web_url: str | None = None
    metrics_token: str | None = None

    max_header_bytes: int = 64 * 1024
    max_body_bytes: int = 8 * MIB
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    """Between two reads of one body."""
    idle_timeout_s: float = 75.0
    """Of a kept-alive connection between two requests."""
    write_timeout_s: float = 30.0
    """Of a client that does not read."""
    drain_s: float = 30.0
    sweep_s: float = 0.25
    """How exactly time-outs are kept."""
    region_header: str = "x-client-region"
    """Lower-case; "" = none is read."""
    trusted_proxies: tuple[Network, ...] = ()
    """Whose headers tell a client's region; () = everybody's."""
    limit_window_s: float = 60.0
    """The minute of limits per minute; tests have shorter ones."""

    @property
    def gateway_id(self) -> str:
        return f"{socket.gethostname()[:40]}:{self.port}.{self.worker}"

    @property
    def state_dir(self) -> Path:
        return self.data_dir / "gateway"


def read_config(*, worker: int = 0, workers: int = 1) -> Config:
    """Raises ConfigError naming the variable."""
    return Config(
        secret=env_secret("SLUICE_SECRET_KEY"),
        data_dir=env_path("SLUICE_DATA_DIR", Path("var").absolute()),
        host=env_str("SLUICE_BIND", "127.0.0.1"),
        port=env_int("SLUICE_GATEWAY_PORT", 8080, minimum=1, maximum=65_535),
        worker=worker,
        workers=workers,
        installation=env_str("SLUICE_INSTALLATION", None),
        redis_url=env_str("SLUICE_REDIS_URL", None),
        web_url=env_str("SLUICE_WEB_URL", None),
        metrics_token=env_secret("SLUICE_API_TOKEN", None),
        max_body_bytes=env_int("SLUICE_GATEWAY_MAX_BODY_BYTES", 8 * MIB, minimum=1024),
        header_timeout_s=env_float("SLUICE_GATEWAY_HEADER_TIMEOUT_S", 10.0, minimum=0.1),
        body_timeout_s=env_float("SLUICE_GATEWAY_BODY_TIMEOUT_S", 30.0, minimum=0.1),
        idle_timeout_s=env_float("SLUICE_GATEWAY_IDLE_TIMEOUT_S", 75.0, minimum=0.1),
        write_timeout_s=env_float("SLUICE_GATEWAY_WRITE_TIMEOUT_S", 30.0, minimum=0.1),
        drain_s=env_float("SLUICE_GATEWAY_DRAIN_S", 30.0, minimum=0.0),
        region_header=_read_header_name(),
        trusted_proxies=_read_proxies(),
    )


def _read_header_name() -> str:
    name = env_str("SLUICE_REGION_HEADER", "x-client-region").lower()
    if name == "none":
        return ""
    if not _HEADER_NAME.fullmatch(name) or name.encode() in OWN_HEADERS:
        raise ConfigError(
            "SLUICE_REGION_HEADER must be the name of a header that the gateway has no other use for, or none.",
            variable="SLUICE_REGION_HEADER",
        )
    return name


def _read_proxies() -> tuple[Network, ...]:
    try:
        return read_networks(env_str("SLUICE_TRUSTED_PROXIES", ""))
    except ValueError as exc:
        raise ConfigError(
            "SLUICE_TRUSTED_PROXIES must be addresses or networks, joined by commas.",
            variable="SLUICE_TRUSTED_PROXIES",
        ) from exc


def read_worker_count() -> int:
    return env_int("SLUICE_GATEWAY_WORKERS", 1, minimum=1, maximum=256)
