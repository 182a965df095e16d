"""LISTEN on PostgreSQL's channel of changes: only a hint that makes the feed look sooner than its poll."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connections

logger = logging.getLogger(__name__)

CHANNEL = "sluice_changed"
RETRY_S = 2.0


async def listen_for_changes(wake: Callable[[], None]) -> None:
    """Until cancelled. Without a connection nothing is lost but time: the feed polls."""
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(**_parameters(), autocommit=True) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                async for _notification in connection.notifies():
                    wake()
        except psycopg.Error:
            logger.info("the live feed cannot listen for changes and polls")
        await asyncio.sleep(RETRY_S)


def _parameters() -> dict[str, Any]:
    database = connections["default"].settings_dict
    given = {
        "dbname": database["NAME"],
        "user": database["USER"],
        "password": database["PASSWORD"],
        "host": database["HOST"],
        "port": database["PORT"],
    }
    return {name: value for name, value in given.items() if value} | {
        "connect_timeout": 3,
        "application_name": "sluice-live",
    }
