"""Prints the replicas as JSON, as in `./sluice status --json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from pool.queries.replicas import list_replica_status


class Command(BaseCommand):
    help = "Prints the replicas as JSON."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps([asdict(replica) for replica in list_replica_status()]))
