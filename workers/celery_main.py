"""Runs a Celery worker in the main thread until SIGTERM. A thread pool: tasks are short, with own time-outs."""

from __future__ import annotations

import os
import threading

from celery.beat import EmbeddedService
from celery.signals import worker_shutting_down
from django.conf import settings

from console.celery import app
from workers.schedule import BEAT_SCHEDULE

SHUTDOWN_LIMIT_S = 4.0
"""Tasks last a second at most; the launcher waits for 10 s."""

_OPTIONS = [
    "worker",
    "--pool=threads",
    "--concurrency=4",
    "--loglevel=WARNING",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
]


def start_beat() -> None:
    """Beat as a thread: Celery's own flag would fork a process of 85 MB for it."""
    app.conf.beat_schedule = BEAT_SCHEDULE
    folder = settings.DATA_DIR / "run"
    folder.mkdir(parents=True, exist_ok=True)
    EmbeddedService(app, thread=True, schedule_filename=str(folder / "beat-schedule")).start()


@worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]
def bound_shutdown(**_: object) -> None:
    """A consumer that has lost its broker waits for it even while it is told to leave."""
    timer = threading.Timer(SHUTDOWN_LIMIT_S, os._exit, args=(0,))
    timer.daemon = True
    timer.start()


def run_celery(options: list[str]) -> int:
    """Waits for Redis as long as it takes. Returns the exit status."""
    try:
        app.worker_main([*_OPTIONS, *options])
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 0
    return 0
