"""Runs a Celery worker in the main thread until SIGTERM. A thread pool: tasks are short, with own time-outs."""

from __future__ import annotations

from django.conf import settings

from console.celery import app
from workers.schedule import BEAT_SCHEDULE

_OPTIONS = [
    "worker",
    "--pool=threads",
    "--concurrency=4",
    "--loglevel=WARNING",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
]


def run_celery(options: list[str]) -> int:
    """Waits for Redis as long as it takes. Returns the exit status."""
    if "--beat" in options:
        app.conf.beat_schedule = BEAT_SCHEDULE
        folder = settings.DATA_DIR / "run"
        folder.mkdir(parents=True, exist_ok=True)
        options = [*options, f"--schedule={folder / 'beat-schedule'}"]
    try:
        app.worker_main([*_OPTIONS, *options])
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 0
    return 0
