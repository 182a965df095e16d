"""`python -m pool.telemetry`: request facts from Redis to cells in PostgreSQL, until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

from django.conf import settings  # noqa: E402  (Django must be ready before tables are imported)

from pool.telemetry.ingest import Ingester  # noqa: E402


def main() -> int:
    ingester = Ingester(settings.REDIS_URL)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ingester.stop())
    ingester.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
