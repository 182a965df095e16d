"""Brings the stored routing table to the gateways through Redis. Only a delivery: the table itself is in PostgreSQL.

Losing a delivery costs nothing but time: control repeats it, and a gateway without Redis asks web.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass

import redis

logger = logging.getLogger(__name__)

# Sets the table only if (epoch, version) rises, so that a late deliverer never takes gateways back.
_SET_IF_NEWER = """
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '-1')
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
if epoch > tonumber(ARGV[1]) or (epoch == tonumber(ARGV[1]) and version >= tonumber(ARGV[2])) then
  return 0
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', ARGV[2], 'bytes', ARGV[3])
redis.call('PUBLISH', KEYS[1], ARGV[1] .. '.' .. ARGV[2])
return 1
"""


@dataclass(frozen=True)
class Delivery:
    installation: str
    epoch: int
    version: int
    body: bytes


def connect(url: str) -> redis.Redis:
    """A client that fails within half a second instead of hanging (FC-47)."""
    return redis.Redis.from_url(url, socket_connect_timeout=0.3, socket_timeout=0.5, retry=None)


def deliver(client: redis.Redis, table: Delivery) -> bool:
    """True if Redis now holds this table because of this call; False if it had it or a newer one."""
    key = f"sluice:{table.installation}:table"
    return bool(client.eval(_SET_IF_NEWER, 1, key, table.epoch, table.version, table.body))


class Deliverer:
    """One background thread that delivers the newest offered table; callers never wait for Redis."""

    def __init__(self, url: str) -> None:
        self._client = connect(url)
        self._offers: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def offer(self, table: Delivery) -> None:
        self._offers.put(table)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="table-delivery", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            table = self._offers.get()
            while not self._offers.empty():
                table = self._offers.get()
            try:
                deliver(self._client, table)
            except redis.RedisError as exc:
                logger.warning("routing table not delivered through redis", extra={"error": str(exc)})
