"""Single requests of a part of a heatmap, and what is unusual about them against the rest of the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import Sum

from pool.domain.heatmap import choose_columns
from pool.domain.histogram import value_of
from pool.domain.lift import FEWEST_REQUESTS, Lift, Trait, rank_lifts
from pool.models import RESOLUTIONS
from pool.queries.cells import CellFilter, find_series
from pool.queries.histograms import load_summed

LARGEST_SCAN: Final = 100_000
"""Records that are read for the lifts, of the chosen ones and of the rest each; of more it is a random sample."""
LONG_PROMPT_TOKENS: Final = 8192
SHORTEST_LOOK_BACK: Final = timedelta(minutes=10)
"""Records are found by arrival, cells count by end. That of a caller who went away is in no histogram of e2e."""
LONGEST_LOOK_BACK: Final = timedelta(hours=1)
STAGES_SQL: Final[Mapping[str, str]] = {
    "queue": "queue_s",
    "ttft": "ttft_s",
    "itl": "longest_gap_s",
    "e2e": "e2e_s",
    "per_token": "CASE WHEN outcome = 'ok' AND output_tokens > 0 THEN e2e_s / output_tokens END",
}
"""What of a record is compared with the edges. Of the gaps of a stream the record keeps the longest."""
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "lane": "lane",
    "release": "release::text",
    "replica": "replica",
    "node": "node",
    "tier": "tier",
    "label": "label",
    "key": "key",
    "region": "region",
    "cached_prefix": "CASE WHEN cached_tokens IS NULL THEN '' WHEN cached_tokens > 0 THEN 'yes' ELSE 'no' END",
}


@dataclass(frozen=True)
class Brush:
    """Requests of `stage` that ended in [start, end) and took more than `low_s`, up to `high_s`; None = no bound.
    They are compared with all others that ended in [window_start, window_end)."""

    stage: str
    start: datetime
    end: datetime
    low_s: float | None
    high_s: float | None
    window_start: datetime
    window_end: datetime


@dataclass(frozen=True)
class BrushedRequest:
    """Lengths of time in seconds, None = not known. `value_s`: of the stage; of `itl` the longest gap."""

    request_id: str
    at: datetime
    value_s: float
    lane: str
    release: int | None
    replica: str
    node: str
    key: str
    tier: str
    label: str
    region: str
    status: int
    outcome: str
    stream: bool
    queue_s: float | None
    ttft_s: float | None
    e2e_s: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    preemptions: int | None


@dataclass(frozen=True)
class BrushedRequests:
    """`requests`: the slowest first. `chosen` and `rest`: how many the lifts are made from; where `chosen_share` or
    `rest_share` is under 1 that is a random sample of this share."""

    stage: str
    requests: tuple[BrushedRequest, ...]
    chosen: int
    rest: int
    chosen_share: float
    rest_share: float
    lifts: tuple[Lift, ...]


def list_requests(wanted: CellFilter, brush: Brush, *, now: datetime, limit: int = 50) -> BrushedRequests:
    """7 queries, whatever the range. Records are kept for 15 days: of earlier ones there are none."""
    series = find_series(wanted)
    look_back = _longest(series, brush.window_start, brush.window_end, now)
    chosen_share = _share(series, brush.start, brush.end, now)
    rest_share = _share(series, brush.window_start, brush.window_end, now)
    chosen = _chosen_where(wanted, brush, look_back)
    rest = _rest_where(wanted, brush, look_back)
    counts = _count_traits(chosen, chosen_share, rest, rest_share)
    traits = [trait for trait in counts if trait.attribute]
    total = next((trait for trait in counts if not trait.attribute), Trait("", "", 0, 0))
    return BrushedRequests(
        stage=brush.stage,
        requests=_list_slowest(brush.stage, chosen, limit),
        chosen=total.chosen,
        rest=total.rest,
        chosen_share=chosen_share,
        rest_share=rest_share,
        lifts=tuple(rank_lifts(traits, chosen=total.chosen, rest=total.rest)),
    )


@dataclass(frozen=True)
class _Where:
    sql: str
    values: tuple[Any, ...]


def _chosen_where(wanted: CellFilter, brush: Brush, look_back: timedelta) -> _Where:
    inside = _inside(brush)
    base = _window(wanted, brush.stage, brush.start, brush.end, look_back)
    return _Where(f"{base.sql} AND {inside.sql}", (*base.values, *inside.values))


def _rest_where(wanted: CellFilter, brush: Brush, look_back: timedelta) -> _Where:
    inside = _inside(brush)
    base = _window(wanted, brush.stage, brush.window_start, brush.window_end, look_back)
    outside = f"NOT (({_ENDED}) >= %s AND ({_ENDED}) < %s AND {inside.sql})"
    return _Where(f"{base.sql} AND {outside}", (*base.values, brush.start, brush.end, *inside.values))


_ENDED = "at + coalesce(e2e_s, 0) * interval '1 second'"


def _window(wanted: CellFilter, stage: str, start: datetime, end: datetime, look_back: timedelta) -> _Where:
    parts = [
        "model = %s AND at >= %s AND at < %s",
        f"({_ENDED}) >= %s AND ({_ENDED}) < %s",
        f"{STAGES_SQL[stage]} IS NOT NULL",
    ]
    values: list[Any] = [wanted.model, start - look_back, end, start, end]
    for name, kept in (
        ("coalesce(release, 0)", wanted.releases),
        ("replica", wanted.replicas),
        ("lane", wanted.lanes),
        ("tier", wanted.tiers),
        ("label", wanted.labels),
    ):
        if kept:
            parts.append(f"{name} = ANY(%s)")
            values.append(list(kept))
    if wanted.long_prompt is not None:
        parts.append("(coalesce(prompt_tokens, 0) > %s) = %s")
        values += [LONG_PROMPT_TOKENS, wanted.long_prompt]
    if wanted.region is not None:
        parts.append("region <> ''" if not wanted.region else "region = %s")
        values += [wanted.region] if wanted.region else []
    return _Where(" AND ".join(parts), tuple(values))


def _inside(brush: Brush) -> _Where:
    stage, parts, values = STAGES_SQL[brush.stage], ["TRUE"], []
    if brush.low_s is not None:
        parts.append(f"({stage}) > %s")
        values.append(brush.low_s)
    if brush.high_s is not None:
        parts.append(f"({stage}) <= %s")
        values.append(brush.high_s)
    return _Where(" AND ".join(parts), tuple(values))


def _count_traits(chosen: _Where, chosen_share: float, rest: _Where, rest_share: float) -> list[Trait]:
    """Values that enough of the chosen requests have, and with attribute "" how many requests there are."""
    names = list(_ATTRIBUTES)
    selected = ", ".join(f"{expression} AS trait_{name}" for name, expression in _ATTRIBUTES.items())
    columns = ", ".join(f"trait_{name}" for name in names)
    sets = ", ".join(f"(trait_{name})" for name in names)
    statement = f"""
        WITH traits AS (
            SELECT {selected}, TRUE AS is_chosen FROM {_sample(chosen_share)} WHERE {chosen.sql}
            UNION ALL SELECT {selected}, FALSE FROM {_sample(rest_share)} WHERE {rest.sql})
        SELECT GROUPING({columns}), {columns},
               count(*) FILTER (WHERE is_chosen), count(*) FILTER (WHERE NOT is_chosen)
        FROM traits GROUP BY GROUPING SETS ({sets}, ())
        HAVING count(*) FILTER (WHERE is_chosen) >= {FEWEST_REQUESTS} OR GROUPING({columns}) = {2 ** len(names) - 1}"""
    with connection.cursor() as cursor:
        cursor.execute(statement, [*chosen.values, *rest.values])
        return [trait for row in cursor.fetchall() if (trait := _read_trait(names, row)) is not None]


def _read_trait(names: Sequence[str], row: tuple[Any, ...]) -> Trait | None:
    """GROUPING sets the bit of each column that a row is not grouped by, the first column's being the highest. None for
    "not known"."""
    grouping, values, chosen, rest = row[0], row[1:-2], row[-2], row[-1]
    for place, name in enumerate(names):
        if not grouping >> (len(names) - 1 - place) & 1:
            return Trait(name, values[place], chosen, rest) if values[place] else None
    return Trait("", "", chosen, rest)


def _sample(share: float) -> str:
    if share >= 1:
        return "pool_requestrecord"
    # Repeatable: the same picture asked for twice says the same.
    return f"pool_requestrecord TABLESAMPLE SYSTEM ({100 * share:.6f}) REPEATABLE (1)"


def _list_slowest(stage: str, chosen: _Where, limit: int) -> tuple[BrushedRequest, ...]:
    names = [field.name for field in fields(BrushedRequest)]
    selected = ", ".join(f"({STAGES_SQL[stage]}) AS value_s" if name == "value_s" else name for name in names)
    statement = f"""
        SELECT {selected} FROM pool_requestrecord WHERE {chosen.sql}
        ORDER BY value_s DESC, at DESC, request_id LIMIT %s"""
    with connection.cursor() as cursor:
        cursor.execute(statement, [*chosen.values, limit])
        return tuple(BrushedRequest(*row) for row in cursor.fetchall())


def _share(series: Mapping[int, Any], start: datetime, end: datetime, now: datetime) -> float:
    """Of the records that the range is expected to have, by its cells, those that are read."""
    columns = choose_columns(start, end, now=now)
    table = RESOLUTIONS[columns.resolution_s][0]
    cells = table.objects.filter(series_id__in=list(series), at__gte=columns.start, at__lt=columns.end)
    expected = cells.aggregate(sum=Sum("requests"))["sum"] or 0
    return min(1.0, LARGEST_SCAN / expected) if expected else 1.0


def _longest(series: Mapping[int, Any], start: datetime, end: datetime, now: datetime) -> timedelta:
    """How long before its end a request of the range may have come."""
    span = load_summed(series, "e2e", choose_columns(start, end, now=now)).span()
    longest = timedelta(seconds=value_of(span[1]) * 1.02) if span else SHORTEST_LOOK_BACK
    return min(max(longest, SHORTEST_LOOK_BACK), LONGEST_LOOK_BACK)
