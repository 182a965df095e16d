"""What control's `/metrics` says: its loops, the queues of tasks, the streams in Redis, replicas and gateways."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import redis
from django.db import DatabaseError, InterfaceError, close_old_connections
from django.db.models import Count
from django.utils import timezone

from pool.domain.prometheus import Page
from pool.models import Node, Replica, RoutingState
from pool.queries.acknowledgements import list_live_gateways
from pool.reconcilers.health import fill_loops
from pool.reconcilers.loop import Loop

logger = logging.getLogger(__name__)

STREAMS: Final = ("facts", "samples", "captures")


def fill_control(page: Page, loops: Iterable[Loop], client: redis.Redis) -> None:
    """What PostgreSQL or Redis does not tell now is absent; the loops' own figures need neither."""
    fill_loops(page, loops)
    try:
        nodes, prefix = _fill_counts(page)
        _fill_queues(page, client, nodes, prefix)
    except (DatabaseError, InterfaceError, redis.RedisError, OSError) as exc:
        logger.debug("metrics: %s", type(exc).__name__)
    finally:
        close_old_connections()


def _fill_counts(page: Page) -> tuple[list[str], str]:
    """Also returns the nodes' names and the prefix of the installation's names in Redis, "" before its first start."""
    for phase, count in Replica.objects.order_by("phase").values_list("phase").annotate(Count("id")):
        page.set("sluice_replicas", count, phase=phase)
    page.set("sluice_gateways", sum(not one.silent for one in list_live_gateways(timezone.now())))
    installation = RoutingState.objects.filter(pk=1).values_list("installation", flat=True).first()
    return list(
        Node.objects.values_list("name", flat=True)
    ), f"sluice:{installation}:" if installation else ""


def _fill_queues(page: Page, client: redis.Redis, nodes: Iterable[str], prefix: str) -> None:
    queues = ["control", *(f"node.{name}" for name in sorted(nodes))]
    streams = STREAMS if prefix else ()
    pipeline = client.pipeline(transaction=False)
    for queue in queues:
        pipeline.llen(queue)
    for stream in streams:
        pipeline.xlen(f"{prefix}{stream}")
    depths = pipeline.execute()
    for queue, depth in zip(queues, depths, strict=False):
        page.set("sluice_queue_depth", depth, queue=queue)
    for stream, entries in zip(streams, depths[len(queues) :], strict=True):
        page.set("sluice_stream_entries", entries, stream=stream)
