"""`python -m pool.telemetry`: facts, samples and usage from Redis into PostgreSQL, until SIGTERM."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from datetime import timedelta

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

from django.conf import settings  # noqa: E402  (Django must be ready before tables are imported)

from pool.env import env_int  # noqa: E402
from pool.metrics_listener import MetricsListener, make_address  # noqa: E402
from pool.telemetry.captures import TextKeeper  # noqa: E402
from pool.telemetry.ingest import Ingester  # noqa: E402
from pool.telemetry.metrics import fill_telemetry  # noqa: E402
from pool.telemetry.streams import connect  # noqa: E402
from pool.telemetry.usage import Keeper  # noqa: E402

GC_THRESHOLDS = (50_000, 20, 50)
"""Open cells are many containers without cycles: Python's own thresholds would walk them for a third of the time."""


def main() -> int:
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    ingester, keeper = Ingester(settings.REDIS_URL), Keeper(connect(settings.REDIS_URL))
    hours = env_int("SLUICE_TEXTS_KEPT_HOURS", 24, minimum=1, maximum=168)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ingester.stop())
    keeper.start()
    texts = TextKeeper(connect(settings.REDIS_URL), kept=timedelta(hours=hours))
    texts.start()
    port = env_int("SLUICE_TELEMETRY_METRICS_PORT", 9312, minimum=0, maximum=65535)
    MetricsListener(make_address(port), lambda page: fill_telemetry(page, ingester, time.time())).start()
    ingester.run()
    for thread in (keeper, texts):
        thread.stopping.set()
        thread.join(5.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
