"""Watches that this worker's own queue is served; a consumer that stalls is replaced with its process (FC-46).

Engines do not notice: they outlive the worker.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import datetime, timedelta

import redis
from django.db import DatabaseError, InterfaceError, close_old_connections

from pool.models import Node, NodeLease
from pool.services.delivery import connect

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
STALLED_AFTER = timedelta(seconds=25)
"""Probes come every 10 s: two in a row were sent and none was taken."""
EXIT_STALLED = 75
"""EX_TEMPFAIL: the process' keeper starts it again."""


def is_stalled(sent_at: datetime | None, seen_at: datetime | None, *, since: datetime | None) -> bool:
    """Probes were sent for 25 s and longer after the newest one that was taken. `since`: start of this worker."""
    if sent_at is None:
        return False
    newest = max((at for at in (seen_at, since) if at is not None), default=None)
    return newest is not None and sent_at - newest > STALLED_AFTER


class QueueWatch(threading.Thread):
    def __init__(self, node: Node, url: str) -> None:
        super().__init__(name="queue-watch", daemon=True)
        self.node = node
        self.url = url
        self.stopping = threading.Event()
        self.since: datetime | None = None

    def run(self) -> None:
        while not self.stopping.wait(CHECK_EVERY_S):
            try:
                if self._stalled_with_redis_up():
                    logger.error("the queue is not served although redis answers: restarting this worker")
                    os._exit(EXIT_STALLED)
            except (DatabaseError, InterfaceError, redis.RedisError):
                self.since = None  # an outage is nobody's stall: the watch begins again after it
            finally:
                close_old_connections()

    def _stalled_with_redis_up(self) -> bool:
        lease = NodeLease.objects.get(pk=self.node.pk)
        connect(self.url).ping()
        if self.since is None:
            self.since = lease.renewed_at
        return is_stalled(lease.probe_sent_at, lease.probe_seen_at, since=self.since)
