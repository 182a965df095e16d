"""What runs by the clock, how often, and when a missed run expires. UTC only."""

from __future__ import annotations

BEAT_SCHEDULE: dict[str, dict[str, object]] = {
    "drop-old-rows": {
        "task": "drop_old_rows",
        "schedule": 3600.0,
        "options": {"queue": "control", "expires": 3500},
    },
    "keep-partitions": {
        "task": "keep_partitions",
        "schedule": 600.0,
        "options": {"queue": "control", "expires": 590},
    },
}
