"""After a restore from a backup: the routing table gets a number that no gateway has seen."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from pool.services.routing import raise_epoch


class Command(BaseCommand):
    help = "Raises the epoch of the routing table, so that gateways follow a restored database."

    def handle(self, *args: Any, **options: Any) -> None:
        number = raise_epoch()
        self.stdout.write(f"routing table {number.epoch}.{number.version}")
