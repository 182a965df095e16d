"""Measured demand and capacity by lane, from cells, replicas and profiles: the database alone, never Redis.

The cells lag by some seconds, so that present demand is the higher of the last minute's and the last five minutes'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import mean
from typing import Any, Final

from django.db.models import Count, F, Q, Sum
from django.db.models.functions import TruncMinute

from pool.domain.capacity import (
    FEWEST_SAMPLES,
    HEAD_ROOM,
    Capacity,
    Flow,
    Lack,
    Minute,
    Room,
    Source,
    add_flows,
    find_lacks,
    measure,
    unload,
)
from pool.models import RESOLUTIONS, GatewayInstance, Lane, Plan, ReleaseProfile, Replica

SHORT: Final = timedelta(minutes=1)
LONG: Final = timedelta(minutes=5)
LOOK_BACK: Final = timedelta(minutes=30)
"""In which minutes at full use are looked for."""
BEATS_FOR: Final = timedelta(seconds=10)
_CELL_S: Final = 10
_BUSY = F("e2e_s") - F("queue_s") - F("tokenize_s")


@dataclass(frozen=True)
class LaneDemand:
    """Of one lane: all releases together, and each by its number."""

    total: Flow
    by_release: Mapping[int, Flow]


Demand = Mapping[str, LaneDemand]
"""By lane; a lane without requests is missing."""
Limits = Mapping[str, Mapping[str, float]]
"""Replica → lane → requests at once."""


@dataclass(frozen=True)
class ReleaseCapacity:
    """What a release's ready replicas carry, by lane of its model."""

    rooms: Mapping[str, Room]
    capacities: Mapping[str, Capacity]


def load_capacity(model: str, release: int, now: datetime) -> dict[str, Capacity]:
    """By lane, from short to long. 6 queries."""
    demand = load_demand([model], now).get(model, {})
    found = load_release_capacities({model: [release]}, {model: demand}, now)
    return dict(found[model, release].capacities) if (model, release) in found else {}


def find_lack(model: str, candidate: int, weights_by_lane: Mapping[str, int], now: datetime) -> str:
    """Why the candidate's ready replicas do not carry these weights (whole percents of each lane's present demand)
    with 30 % head-room; empty: they do, or there is nothing to carry. 6 queries."""
    demand = load_demand([model], now).get(model, {})
    if not demand:
        return ""
    found = load_release_capacities({model: [candidate]}, {model: demand}, now).get((model, candidate))
    if found is None:
        return ""
    weights = {lane: percent for lane, percent in weights_by_lane.items() if lane in found.rooms}
    totals = {lane: part.total for lane, part in demand.items()}
    lacks = find_lacks(found.rooms, found.capacities, totals, weights)
    return "; ".join(lack_words(candidate, lack) for lack in lacks)


def find_overload(model: str, release: int, part: str, remaining: int, now: datetime) -> str:
    """What the release would be short of with at most `remaining` ready replicas in `part` (a lane with replicas of its
    own, or empty: those of all other lanes), at the weights in force. Empty: they carry the present demand, or too few
    requests came to tell. 7 queries."""
    demand = load_demand([model], now).get(model, {})
    totals = {lane: told.total for lane, told in demand.items() if told.total.requests >= FEWEST_SAMPLES}
    found = load_release_capacities({model: [release]}, {model: demand}, now).get((model, release))
    plan = Plan.objects.filter(in_force__model__name=model).first()
    if not totals or found is None or plan is None:
        return ""
    rooms, capacities = dict(found.rooms), dict(found.capacities)
    touched = [
        lane
        for lane, room in rooms.items()
        if (lane == part if part else room.is_shared) and remaining < room.replicas
    ]
    for lane in touched:
        rooms[lane], capacities[lane] = unload(rooms[lane], capacities[lane], remaining)
    weights = {lane: int(plan.lanes.get(lane, plan.weights).get(str(release), 0)) for lane in touched}
    lacks = find_lacks(rooms, capacities, totals, weights, head_room=1.0)
    return "; ".join(lack_words(release, lack) for lack in lacks)


def load_demand(models: Iterable[str], now: datetime) -> dict[str, Demand]:
    """What went to replicas, by model and lane. 1 query."""
    sums = {
        f"{name}_{span}": Sum(what, filter=Q(at__gte=_start(now, length)))
        for span, length in (("short", SHORT), ("long", LONG))
        for name, what in (("requests", F("requests")), ("busy", _BUSY))
    }
    rows = (
        _cells(models, _start(now, LONG), now)
        .values("series__model", "series__lane", "series__release")
        .annotate(**sums)
    )
    flows: dict[str, dict[str, dict[int, tuple[Flow, Flow]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        pair = tuple(
            Flow(row[f"requests_{span}"] or 0, max(0.0, row[f"busy_{span}"] or 0.0), length.total_seconds())
            for span, length in (("short", SHORT), ("long", LONG))
        )
        flows[row["series__model"]][row["series__lane"]][row["series__release"]] = (pair[0], pair[1])
    return {
        model: {lane: _lane_demand(by_release) for lane, by_release in lanes.items() if by_release}
        for model, lanes in flows.items()
    }


def load_release_capacities(
    wanted: Mapping[str, Sequence[int]], demand: Mapping[str, Demand], now: datetime
) -> dict[tuple[str, int], ReleaseCapacity]:
    """By (model, release), for releases that exist. 5 queries, whatever their number."""
    numbers = {(model, number) for model, releases in wanted.items() for number in releases}
    lanes = _load_lanes(wanted)
    uses = _load_uses(wanted)
    ready = _list_ready(wanted)
    limits = _load_limits(now)
    minutes = _load_minutes(wanted, now)
    found = {}
    for model, number in sorted(numbers):
        rooms = {}
        for lane in lanes.get(model, ()):
            part = lane.name if (model, number, lane.name) in uses else ""
            if (model, number, part) in uses:
                here = ready.get((model, number, part), [])
                others = [one for key, names in ready.items() if key[0] == model for one in names]
                rooms[lane.name] = Room(
                    replicas=len(here),
                    slots_each=slots_of(lane.concurrency, lane.name, here, others, limits),
                    target_s=lane.ttft_target_ms / 1000,
                    engine_slots_each=uses[model, number, part],
                    is_shared=part == "",
                )
        if rooms:
            told = demand.get(model, {})
            found[model, number] = ReleaseCapacity(
                rooms,
                {
                    lane: _measure(lane, room, number, told, minutes.get((model, number, lane), ()))
                    for lane, room in rooms.items()
                },
            )
    return found


def lack_words(release: int, lack: Lack) -> str:
    """“release 4 carries about 3.1 requests/s in lane short (…), 50 % of the present 6.0/s with 30 % head-room …”."""
    where = f"in lane {lack.lane}" if lack.lane else "in all lanes together"
    present, needed = rate_words(lack.demand_per_s), rate_words(lack.needed_per_s)
    share = f"{lack.weight} % of the present {present}/s"
    with_room = lack.needed_per_s > 1.001 * lack.demand_per_s * lack.weight / 100
    need = (
        f"{share} with {round(100 * (HEAD_ROOM - 1))} % head-room needs {needed}/s"
        if with_room
        else f"{share} is {needed}/s"
    )
    if not lack.replicas_ready:
        return f"release {release} has no ready replica {where}: {need}"
    carried = f"carries about {rate_words(lack.carried_per_s)} requests/s {where}"
    return f"release {release} {carried} ({source_words(lack)}): {need}"


def rate_words(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2g}"


def source_words(told: Capacity | Lack) -> str:
    """Where the figure comes from, with its number of samples."""
    if told.source is Source.FULL:
        return f"measured at full use, {told.samples} requests"
    if told.source is Source.SLOTS:
        slots = f"{told.slots} slots of {told.replicas_ready} ready replicas"
        return f"{slots} ÷ the measured time per request, {told.samples} requests"
    return "not measured"


def _lane_demand(by_release: Mapping[int, tuple[Flow, Flow]]) -> LaneDemand:
    totals = [add_flows(pair[span] for pair in by_release.values()) for span in (0, 1)]
    span = 0 if totals[0].per_s > totals[1].per_s else 1
    # The longer span has more samples of how long a request takes.
    return LaneDemand(totals[span], {release: pair[1] for release, pair in by_release.items()})


def _measure(lane: str, room: Room, number: int, demand: Demand, minutes: Sequence[Minute]) -> Capacity:
    told = demand.get(lane)
    if told is None:
        return measure(room, Flow(), Flow(), minutes)
    anyone = add_flows(told.by_release.values())
    return measure(room, told.by_release.get(number, Flow()), anyone, minutes)


def _start(now: datetime, length: timedelta) -> datetime:
    """On the border of a cell."""
    return now - length - timedelta(seconds=now.second % _CELL_S, microseconds=now.microsecond)


def _cells(models: Iterable[str], start: datetime, end: datetime) -> Any:
    table = RESOLUTIONS[_CELL_S][0]
    # The cell of this moment is not whole yet.
    last = _start(end, timedelta(0))
    return table.objects.filter(
        series__model__in=list(models), series__region="", at__gte=start, at__lt=last
    ).exclude(series__replica="")


def _load_lanes(models: Iterable[str]) -> dict[str, list[Lane]]:
    found: dict[str, list[Lane]] = defaultdict(list)
    for lane in (
        Lane.objects.filter(model__name__in=list(models)).select_related("model").order_by("position")
    ):
        found[lane.model.name].append(lane)
    return found


def _load_uses(models: Iterable[str]) -> dict[tuple[str, int, str], int | None]:
    """(model, release, lane or empty) → requests that an engine of it runs at once."""
    rows = ReleaseProfile.objects.filter(release__model__name__in=list(models)).values_list(
        "release__model__name", "release__number", "lane", "profile__settings"
    )
    return {(model, number, lane): _slots(settings) for model, number, lane, settings in rows}


def _slots(settings: Mapping[str, Any]) -> int | None:
    slots = settings.get("max_num_seqs")
    return slots if isinstance(slots, int) and not isinstance(slots, bool) and slots > 0 else None


def _list_ready(models: Iterable[str]) -> dict[tuple[str, int, str], list[str]]:
    rows = Replica.objects.filter(release__model__name__in=list(models), phase="ready", routed=True)
    found: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for model, number, lane, name in rows.values_list(
        "release__model__name", "release__number", "lane", "id"
    ):
        found[model, number, lane].append(name)
    return found


def _load_limits(now: datetime) -> Limits:
    """Of gateways that beat; each has learned them by itself, so that their mean counts."""
    told: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = GatewayInstance.objects.filter(gone_at=None, seen_at__gt=now - BEATS_FOR)
    for limits in rows.values_list("report__limits", flat=True):
        for replica, lanes in limits.items() if isinstance(limits, dict) else ():
            for lane, one in lanes.items() if isinstance(lanes, dict) else ():
                if _is_learned(one):
                    told[replica][lane].append(float(one[0]))
    return {name: {lane: mean(seen) for lane, seen in lanes.items()} for name, lanes in told.items()}


def _is_learned(one: object) -> bool:
    """The limit at the start says what somebody typed, not what was measured."""
    return isinstance(one, list) and len(one) == 2 and isinstance(one[0], int | float) and one[1] != "start"


def slots_of(typed: int, lane: str, own: Sequence[str], others: Iterable[str], limits: Limits) -> int:
    """Requests of the lane that one replica runs at once: as gateways learned it at the release's own replicas; before
    they have, as at the model's other ones, but never less than what its settings start with."""
    learned = [limits[name][lane] for name in own if lane in limits.get(name, {})]
    if learned:
        return max(1, int(mean(learned)))
    elsewhere = [limits[name][lane] for name in others if lane in limits.get(name, {})]
    return max([typed, *(int(limit) for limit in elsewhere)])


def _load_minutes(
    wanted: Mapping[str, Sequence[int]], now: datetime
) -> dict[tuple[str, int, str], list[Minute]]:
    """Whole minutes only, in which the release answered something."""
    numbers = {number for releases in wanted.values() for number in releases}
    end = now.replace(second=0, microsecond=0)
    rows = (
        _cells(wanted, end - LOOK_BACK, end)
        .filter(series__release__in=numbers)
        .annotate(minute=TruncMinute("at"))
        .values("series__model", "series__release", "series__lane", "minute")
        .annotate(
            answered=Sum("requests"),
            busy=Sum(_BUSY),
            waited=Sum("queue_s"),
            replicas=Count("series__replica", distinct=True),
        )
    )
    found: dict[tuple[str, int, str], list[Minute]] = defaultdict(list)
    for row in rows:
        key = (row["series__model"], row["series__release"], row["series__lane"])
        found[key].append(Minute(row["answered"], max(0.0, row["busy"]), row["waited"], row["replicas"]))
    return found
