"""The socket of a live heatmap: `/live/latency/<model>/?stage=…&lane=…`, in binary frames (`heatmap_frames.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from console.live.consumers import Watch, WatchConsumer
from console.live.heatmap_feed import find_heatmaps
from console.live.heatmap_window import Wanted
from pool.domain.cells import STAGES
from pool.domain.errors import PoolError

LONGEST_VALUE = 63


class InvalidFilter(PoolError):
    """A query that names no view."""

    code = "invalid"


class HeatmapConsumer(WatchConsumer):
    async def open_watch(self) -> Watch:
        model = self.scope["url_route"]["kwargs"]["model"]
        wanted = read_wanted(model, self.scope.get("query_string", b""))
        return find_heatmaps().subscribe(wanted)


def read_wanted(model: str, query: bytes) -> Wanted:
    """What is empty is not filtered by. Raises InvalidFilter."""
    try:
        given = {
            name: values[-1] for name, values in parse_qs(query.decode("ascii"), max_num_fields=20).items()
        }
    except ValueError as exc:
        raise InvalidFilter("The address of the live view cannot be read.") from exc
    stage = given.get("stage", "ttft")
    if stage not in STAGES:
        raise InvalidFilter(f"There is no such stage. Stages: {', '.join(STAGES)}.")
    if any(len(value) > LONGEST_VALUE for value in given.values()):
        raise InvalidFilter(f"A filter is longer than {LONGEST_VALUE} characters.")
    return Wanted(
        model=model,
        stage=stage,
        release=_read_release(given),
        replica=given.get("replica", ""),
        lane=given.get("lane", ""),
        tier=given.get("tier", ""),
        label=given.get("label", ""),
        long_prompt=True if given.get("long") == "1" else None,
    )


def _read_release(given: Mapping[str, str]) -> int | None:
    text = given.get("release", "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise InvalidFilter("A release is a number.")
    return int(text)
