"""Keeps the stored view of the gateways, and Redis' copy of the routing table, up to date.

Losing Redis costs only time: gateways then ask web, which stores their beats itself.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from datetime import datetime, timedelta

import redis
from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from pool.models import GatewayInstance, RoutingState
from pool.services.delivery import connect, deliver
from pool.services.gateways import note_beat, note_gone
from pool.services.routing import current_delivery

logger = logging.getLogger(__name__)

SILENT_AFTER = timedelta(seconds=3)
FORGET_AFTER = timedelta(hours=1)
"""A gateway of another host that was silent for so long is taken off the list; until then it is named."""


class BeatReader(threading.Thread):
    """Takes the beats from Redis and stores them. It may miss some: each beat holds the whole state."""

    def __init__(self, url: str) -> None:
        super().__init__(name="gateway-beats", daemon=True)
        self.url = url
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._read()
            except (redis.RedisError, DatabaseError, InterfaceError, RoutingState.DoesNotExist) as exc:
                logger.info("gateway beats: trying again: %s", exc)
            finally:
                close_old_connections()
            self.stopping.wait(1.0)

    def _read(self) -> None:
        installation = RoutingState.objects.get(pk=1).installation
        close_old_connections()
        with connect(self.url).pubsub(ignore_subscribe_messages=True) as beats:  # type: ignore[no-untyped-call]
            beats.subscribe(f"sluice:{installation}:gateways")
            while not self.stopping.is_set():
                message = beats.get_message(timeout=0.4)
                if message is not None:
                    self._store(message["data"])

    def _store(self, content: bytes) -> None:
        try:
            beat = json.loads(content)
        except ValueError:
            logger.warning("gateway beats: a message that is no JSON was dropped")
            return
        note_beat(beat, via="redis", now=timezone.now())
        close_old_connections()

    def stop(self) -> None:
        self.stopping.set()


def run_pass(now: datetime, *, client: redis.Redis) -> dict[str, object]:
    gone = mark_gone(now)
    try:
        deliver(client, current_delivery())
    except redis.RedisError as exc:
        return {"gone": gone, "problem": f"redis: {exc}"}
    return {"gone": gone}


def mark_gone(now: datetime) -> list[str]:
    """Death that can be observed: a process of this host that is no more, or a silence of an hour."""
    marked = []
    for gateway in GatewayInstance.objects.filter(gone_at=None, seen_at__lt=now - SILENT_AFTER):
        dead = (
            gateway.host == socket.gethostname()
            and gateway.pid
            and not os.path.exists(f"/proc/{gateway.pid}")
        )
        if dead or gateway.seen_at < now - FORGET_AFTER:
            note_gone(gateway, now=now)
            marked.append(gateway.pk)
    return marked
