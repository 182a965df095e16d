"""The periodic job of the telemetry tables: the next partitions are made, those whose time is over are dropped."""

from __future__ import annotations

from datetime import datetime, timedelta

from pool.models import RoutingState, StreamPosition
from pool.services.runs import claim_run
from pool.telemetry.partitions import drop_old, make_ahead
from pool.telemetry.rows import datetime_of

EVERY = timedelta(minutes=10)


def keep_partitions(now: datetime) -> dict[str, int]:
    """Empty when another run of this period did it already."""
    if not claim_run("partitions", every=EVERY, now=now):
        return {}
    make_ahead(now)
    return drop_old(now, _read_closed())


def _read_closed() -> dict[int, datetime]:
    """Resolution → time before which telemetry has completed its cells."""
    installation = RoutingState.objects.filter(pk=1).values_list("installation", flat=True).first()
    prefix = f"sluice:{installation}:closed:"
    rows = StreamPosition.objects.filter(pk__startswith=prefix).values_list("pk", "last_id")
    return {int(name.removeprefix(prefix)): datetime_of(int(at_s)) for name, at_s in rows}
