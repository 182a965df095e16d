"""Django's `migrate`, which gives up on a lock that others hold and says who they are (FC-79)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import OperationalError, connection
from psycopg.errors import LockNotAvailable

OPEN_FOR = (
    "SELECT application_name, pid FROM pg_stat_activity WHERE xact_start < now() - interval '3 seconds'"
)


class Command(Migrate):
    def handle(self, *args: Any, **options: Any) -> None:
        try:
            super().handle(*args, **options)
        except OperationalError as exc:
            if not isinstance(exc.__cause__, LockNotAvailable):
                raise
            raise CommandError(
                "A migration waited for a table that other sessions are using and gave up, so that they are not held "
                f"up. Nothing of that migration was changed. Open for long: {list_holders() or 'none any more'}. "
                "Run it again, or end those sessions first."
            ) from exc


def list_holders() -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"{OPEN_FOR} AND pid <> pg_backend_pid() AND backend_type = 'client backend'")
        return ", ".join(f"{name or 'a session'} (pid {pid})" for name, pid in cursor.fetchall())
