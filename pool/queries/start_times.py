"""How long starts and stops took, as measured: of the release, else of its profile, else of its runtime."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from django.db.models import Q, QuerySet

from pool.domain.fit_report import Timing
from pool.models import PhaseChange, Release

NEWEST = 20
"""Runs that count: older ones were on other hosts and caches."""
_ROWS = 500


def find_start(release: Release, lane: str) -> Timing | None:
    """From placed to ready, warm-up included. None: none of them was ever seen through. At most 4 queries."""
    profiles = list(
        release.profiles.filter(lane__in=[lane, ""]).order_by("-lane").values_list("profile_id", flat=True)
    )
    sources = (
        ("release", Q(replica__release=release, replica__lane=lane)),
        ("profile", Q(replica__release__profiles__profile_id__in=profiles[:1])),
        ("runtime", Q(replica__release__runtime=release.runtime)),
    )
    return _first(sources, "starting", "ready")


def find_stop(release: Release) -> Timing | None:
    """From unrouted to memory back, streams that ran included. At most 2 queries."""
    sources = (
        ("release", Q(replica__release=release)),
        ("runtime", Q(replica__release__runtime=release.runtime)),
    )
    return _first(sources, "draining", "stopped")


def _first(sources: Iterable[tuple[str, Q]], begin: str, end: str) -> Timing | None:
    for source, which in sources:
        rows = PhaseChange.objects.filter(which, phase__in=[begin, end])
        found = _durations(rows, begin, end)
        if found:
            return Timing(round(median(found), 1), len(found), source)
    return None


def _durations(rows: QuerySet[PhaseChange], begin: str, end: str) -> list[float]:
    """Newest first, in seconds. An end without its begin does not count."""
    ended: dict[tuple[str, int], float] = {}
    found: list[float] = []
    newest = rows.order_by("-id").distinct().values_list("id", "replica_id", "generation", "phase", "at")
    for _, replica, generation, phase, at in newest[:_ROWS]:
        key = (replica, generation)
        if phase == end:
            ended[key] = at.timestamp()
        elif key in ended:
            found.append(ended.pop(key) - at.timestamp())
    return [seconds for seconds in found if seconds >= 0][:NEWEST]
