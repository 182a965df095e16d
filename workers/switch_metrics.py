"""How long the newest switches of this node's replicas took, for `/metrics`. Asked for at each scrape."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import DatabaseError, InterfaceError, close_old_connections

from pool.domain.prometheus import Page
from pool.models import Node
from pool.queries.switches import list_switches

logger = logging.getLogger(__name__)


def fill_switches(page: Page, node: Node, now: datetime) -> None:
    """Absent while PostgreSQL does not answer."""
    try:
        for row, took in list_switches(node, now):
            page.set(
                "model_switch_duration_seconds",
                took.total_seconds(),
                model=row.release.model.name,
                release=str(row.release.number),
                lane=row.lane,
                replica=row.pk,
                node=node.name,
            )
    except (DatabaseError, InterfaceError) as exc:
        logger.debug("metrics: %s", type(exc).__name__)
    finally:
        close_old_connections()
