"""What each gateway process says of its queues, limits and breakers: read from Redis, once a second at most.

`sluice:<installation>:gateway-state` maps a gateway to JSON: {"at": ISO time or seconds, "models": {name: {"releases":
{number: {"gate", "affinity", "replicas": {id: {"breaker", "waiting", "kv_used_ratio"}}}}, "retries", "rate_limited":
count, "shadow": {"requests", "tokens"}}}, "cache", "readers", "limits", "quarantine"}. What has no keys here is what
`describe` of the gateway's part of that name gives. A gateway that does not reach Redis tells web. Where nobody tells,
nobody knows: that is not the same as nothing to tell.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import redis
from django.conf import settings

from pool.models import GatewaySnapshot, RoutingState

logger = logging.getLogger(__name__)

FRESH_FOR = timedelta(seconds=5)
"""States come each second; an older one says nothing about now."""
_KEPT_S = 0.5
_PAUSE_S = 2.0
"""After a failure Redis is not asked again for so long: a page must not wait for it each time."""


@dataclass(frozen=True)
class GatewayState:
    id: str
    at: datetime
    body: Mapping[str, Any]
    """As `describe` of the gateway made it; read it with `part` and `figure`: versions may differ."""


class StateReader:
    """One per process: several screens that look at the same time ask Redis once."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_connect_timeout=0.3, socket_timeout=0.5, retry=None)
        self._lock = threading.Lock()
        self._found: tuple[GatewayState, ...] | None = None
        self._next_s = 0.0

    def read(self, installation: str) -> tuple[GatewayState, ...] | None:
        """None: Redis does not answer."""
        with self._lock:
            if time.monotonic() >= self._next_s:
                self._found = self._ask(installation)
                self._next_s = time.monotonic() + (_PAUSE_S if self._found is None else _KEPT_S)
            return self._found

    def _ask(self, installation: str) -> tuple[GatewayState, ...] | None:
        try:
            entries: Any = self._client.hgetall(f"sluice:{installation}:gateway-state")
        except (redis.RedisError, OSError):
            logger.info("gateways' states are unknown: Redis does not answer")
            return None
        states = [parse_state(name.decode(errors="replace"), content) for name, content in entries.items()]
        return tuple(sorted((state for state in states if state), key=lambda state: state.id))


@cache
def _reader() -> StateReader:
    return StateReader(settings.REDIS_URL)


def list_gateway_states(*, now: datetime) -> tuple[GatewayState, ...] | None:
    """Those that are young enough to tell of now. None: nobody can be asked. 2 queries.

    A gateway that does not reach Redis told web instead, whether web itself reaches it or not.
    """
    installation = RoutingState.objects.filter(pk=1).values_list("installation", flat=True).first()
    stored = _reader().read(installation) if installation else None
    told = [
        GatewayState(row.id, row.at, row.body)
        for row in GatewaySnapshot.objects.filter(at__gt=now - FRESH_FOR)
    ]
    if stored is None and not told:
        return None
    fresh = [state for state in stored or () if now - state.at < FRESH_FOR]
    newest = {state.id: state for state in sorted((*fresh, *told), key=lambda state: state.at)}
    return tuple(newest[identity] for identity in sorted(newest))


def parse_state(identity: str, content: bytes) -> GatewayState | None:
    """None for what is no state: another version's, or cut."""
    try:
        body = json.loads(content)
        at = body["at"]
        moment = (
            datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else datetime.fromisoformat(at)
        )
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return None
    return GatewayState(identity, moment if moment.tzinfo else moment.replace(tzinfo=UTC), body)


def part(body: object, *path: str) -> Mapping[str, Any]:
    """The object at the path; empty where there is none."""
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body if isinstance(body, Mapping) else {}


def figure(body: object, name: str) -> float | None:
    """None where it is not known; booleans are no numbers."""
    value = body.get(name) if isinstance(body, Mapping) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def word(body: object, name: str) -> str:
    value = body.get(name) if isinstance(body, Mapping) else None
    return value[:200] if isinstance(value, str) else ""
