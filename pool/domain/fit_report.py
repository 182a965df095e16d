"""What a rollout does to the memory of each device, before it begins: where the candidate's replicas go, who has to
stop for them, what is held before, during and after each step, and how long nobody serves where there is no other way.

Placement decides here as it does for real (`choose_place`), on a ledger of what has been given away so far. A size that
nobody measured is unknown: it makes room for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pool.domain.fit import gib
from pool.domain.fit_search import Held, Holder, Key, Ledger, Role, Search
from pool.domain.placement import DeviceView, Need, NodeView, Placement

MOST_DEVICES: Final = 200
"""Rows of the report; what is left out is counted."""


class FitOutcome(StrEnum):
    FITS_BESIDE = "fits_beside"
    """Every replica of the candidate has a place beside all that runs."""
    FITS_IF_STOPPED = "fits_if_stopped"
    """Once the named replicas, which serve nobody, are stopped."""
    SWAP_ONLY = "swap_only"
    """Replicas of stable have to stop first."""
    UNKNOWN = "unknown"
    """A measurement or a fact is missing; nothing is known against it."""
    IMPOSSIBLE = "impossible"
    """There is no place, whatever of this model stops."""


@dataclass(frozen=True)
class Timing:
    """A measured length of time: median of `samples`. `source`: release, profile or runtime."""

    seconds: float
    samples: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """`count` more replicas of the candidate in a lane ("" = all). `need` None: nothing can be placed, and `why`
    says so; `is_unknown`: because a fact is still to be read."""

    lane: str
    count: int
    need: Need | None
    nodes: tuple[NodeView, ...] = ()
    why: str = ""
    is_unknown: bool = False
    start: Timing | None = None


@dataclass(frozen=True, kw_only=True)
class Pool:
    """`holders`: replicas that hold devices. `ages_s`: of each device's measurement, by (node, uuid).
    `foreign_bytes`: measured as nobody's of ours; without an entry not measured."""

    holders: tuple[Holder, ...]
    indexes: Mapping[tuple[str, str], int]
    ages_s: Mapping[tuple[str, str], float | None]
    foreign_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    stop: Timing | None = None
    """From drained to gone, of this release or its runtime."""
    stable_start: Timing | None = None


@dataclass(frozen=True)
class Place:
    lane: str | None
    node: str
    devices: tuple[str, ...]
    device_bytes: int
    """On each device that needs most; 0 for a simulated engine."""
    reason: str


@dataclass(frozen=True)
class StopRow:
    """A replica that has to stop. `size_bytes`: what that gives back, of all its devices together."""

    replica: str
    model: str
    release: int
    lane: str | None
    node: str
    size_bytes: int
    why: str


@dataclass(frozen=True)
class StageBytes:
    """`stage`: before, loading, step 1 to n, holding, after. None: not measured."""

    stage: str
    used_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True)
class DeviceFit:
    """A device that the rollout changes, or on which stable runs. Of a `cpu` device this is the node's memory."""

    node: str
    device: str
    index: int | None
    kind: str
    total_bytes: int | None
    measured_age_s: float | None
    foreign_bytes: int | None
    """Used by others than this installation's engines; None: not measured."""
    candidate_replicas: int
    candidate_bytes: int
    stops: tuple[str, ...]
    stages: tuple[StageBytes, ...]


@dataclass(frozen=True)
class Outage:
    """`seconds` None: not known, and `text` says what was never measured. `is_full`: nobody serves; else with fewer
    replicas. `rollback_seconds`: the same again on the way back."""

    seconds: float | None
    is_full: bool
    lanes: tuple[str, ...]
    stop: Timing | None
    start: Timing | None
    rollback_seconds: float | None
    text: str


@dataclass(frozen=True)
class FitReport:
    outcome: FitOutcome
    text: str
    places: tuple[Place, ...]
    stop: tuple[StopRow, ...]
    """Serve nobody and have to stop."""
    swap: tuple[StopRow, ...]
    """Of stable, and have to stop."""
    waits_for: tuple[str, ...]
    """Replicas that leave already."""
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    outage: Outage | None
    devices: tuple[DeviceFit, ...]
    devices_left_out: int

    def as_json(self) -> dict[str, Any]:
        """The shape is that of the fields:

        `{outcome, text, places: [{lane, node, devices, device_bytes, reason}],
        stop: [S], swap: [S], waits_for: [replica], missing: [text], unknown: [text],
        outage: null or {seconds, is_full, lanes, stop: T, start: T, rollback_seconds, text},
        devices: [{node, device, index, kind, total_bytes, measured_age_s, foreign_bytes, candidate_replicas,
        candidate_bytes, stops: [replica], stages: [{stage, used_bytes, free_bytes}]}], devices_left_out}` with
        `S = {replica, model, release, lane, node, size_bytes, why}` and `T = null or {seconds, samples, source}`.
        """
        return asdict(self) | {"outcome": str(self.outcome)}


def plan_fit(wanted: Sequence[Wanted], pool: Pool, *, steps: int) -> FitReport:
    """`steps`: of the rollout, for the stages of each device."""
    ledger = Ledger()
    search = Search(pool.holders, ledger)
    places: list[Place] = []
    missing: list[str] = []
    unknown: list[str] = []
    for lane in wanted:
        if lane.need is None:
            (unknown if lane.is_unknown else missing).append(lane.why)
            continue
        for _ in range(lane.count):
            found = search.place(lane.need, lane.nodes, lane.lane)
            if isinstance(found, Placement):
                places.append(_place(lane, found))
            else:
                (unknown if found.is_unknown else missing).append(found.reason)
                break
    outcome = _outcome(search.stopped, missing, unknown)
    swap = tuple(_stop_row(holder) for holder in search.stopped if holder.role is Role.STABLE)
    outage = _outage(wanted, places, search, pool) if outcome is FitOutcome.SWAP_ONLY else None
    rows, left_out = _devices(wanted, pool, ledger, search, steps)
    report = FitReport(
        outcome=outcome,
        text="",
        places=tuple(places),
        stop=tuple(_stop_row(holder) for holder in search.stopped if holder.role is Role.IDLE),
        swap=swap,
        waits_for=tuple(holder.replica for holder in search.stopped if holder.role is Role.LEAVING),
        missing=tuple(dict.fromkeys(missing)),
        unknown=tuple(dict.fromkeys(unknown)),
        outage=outage,
        devices=rows,
        devices_left_out=left_out,
    )
    return replace(report, text=_say(report))


def _outcome(stopped: Sequence[Holder], missing: Sequence[str], unknown: Sequence[str]) -> FitOutcome:
    if missing:
        return FitOutcome.IMPOSSIBLE
    if unknown:
        return FitOutcome.UNKNOWN
    roles = {holder.role for holder in stopped}
    if Role.STABLE in roles:
        return FitOutcome.SWAP_ONLY
    return FitOutcome.FITS_IF_STOPPED if Role.IDLE in roles else FitOutcome.FITS_BESIDE


def _place(lane: Wanted, found: Placement) -> Place:
    return Place(lane.lane or None, found.node, found.devices, found.bytes_per_device, found.reason)


def _stop_row(holder: Holder) -> StopRow:
    why = (
        "serves nobody: no weight, no pin, nothing runs"
        if holder.role is Role.IDLE
        else "stable: gives its room"
    )
    return StopRow(
        holder.replica,
        holder.model,
        holder.release,
        holder.lane or None,
        holder.node,
        holder.known_bytes,
        why,
    )


def _outage(wanted: Sequence[Wanted], places: Sequence[Place], search: Search, pool: Pool) -> Outage:
    starts = [lane.start for lane in wanted if lane.count]
    start = (
        None
        if None in starts
        else max((one for one in starts if one), key=lambda one: one.seconds, default=None)
    )
    lanes = search.unserved_lanes()
    seconds = None
    if start is not None and pool.stop is not None:
        seconds = round(pool.stop.seconds + start.seconds * _starts_in_a_row(places), 1)
    back = None
    if pool.stop is not None and pool.stable_start is not None:
        swapped = [
            Place(None, one.node, one.devices, 0, "") for one in search.stopped if one.role is Role.STABLE
        ]
        back = round(pool.stop.seconds + pool.stable_start.seconds * _starts_in_a_row(swapped), 1)
    is_full = bool(lanes)
    return Outage(
        seconds,
        is_full,
        lanes,
        pool.stop,
        start,
        back,
        _say_outage(seconds, back, start, pool, is_full=is_full),
    )


def _starts_in_a_row(places: Sequence[Place]) -> int:
    """One start at a time on a device."""
    counts: dict[tuple[str, str], int] = {}
    for place in places:
        for device in place.devices:
            counts[place.node, device] = counts.get((place.node, device), 0) + 1
    return max(counts.values(), default=1)


def _say_outage(
    seconds: float | None, back: float | None, start: Timing | None, pool: Pool, *, is_full: bool
) -> str:
    what = "nobody serves" if is_full else "fewer replicas of stable serve"
    if seconds is None:
        never = [
            name
            for name, timing in (("start of the candidate", start), ("stop of stable", pool.stop))
            if timing is None
        ]
        said = f"How long {what} is unknown: no {' and no '.join(never)} was measured, nor of its runtime."
    else:
        basis = (
            f"{_measured(start, 'start')} and {_measured(pool.stop, 'stop')}, which waits for running streams"
        )
        said = f"For about {seconds:.0f} s {what} (medians of {basis})."
    again = "for a time that was never measured" if back is None else f"for about {back:.0f} s"
    return f"{said} A rollback stops the candidate first and has the same again, {again}."


def _measured(timing: Timing | None, what: str) -> str:
    if timing is None:
        return f"no {what}"
    return f"{timing.samples} {what}{'' if timing.samples == 1 else 's'} of its {timing.source}"


def _devices(
    wanted: Sequence[Wanted], pool: Pool, ledger: Ledger, search: Search, steps: int
) -> tuple[tuple[DeviceFit, ...], int]:
    """Those that change first, then those that stable runs on; and how many are left out."""
    views = {
        (node.name, device.id): device for lane in wanted for node in lane.nodes for device in node.devices
    }
    stopped = {holder.replica for holder in search.stopped}
    staying: dict[Key, list[int | None]] = {}
    for holder in pool.holders:
        if holder.role is Role.STABLE:
            for key, size in holder.places.items():
                staying.setdefault(key, []).extend([] if holder.replica in stopped else [size])
    keys = [key for key in dict.fromkeys([*ledger.touched, *staying]) if key in views]
    seen = _Seen(pool, ledger, tuple(search.stopped), staying, steps)
    rows = [_device(key, views[key], seen) for key in keys[:MOST_DEVICES]]
    return tuple(rows), max(0, len(keys) - MOST_DEVICES)


@dataclass(frozen=True)
class _Seen:
    """`staying`: by device, what each replica of stable holds of it that runs on; None: not measured."""

    pool: Pool
    ledger: Ledger
    stopped: tuple[Holder, ...]
    staying: Mapping[Key, Sequence[int | None]]
    steps: int


def _device(key: Key, view: DeviceView, seen: _Seen) -> DeviceFit:
    free, staying = view.free_bytes, seen.staying.get(key, ())
    taken, freed = seen.ledger.taken.get(key, 0), seen.ledger.freed.get(key, 0)
    loading = None if free is None else free - view.reserved_bytes + freed - taken
    after = None if loading is None or None in staying else loading + sum(size or 0 for size in staying)
    names = ["loading", *(f"step {number + 1}" for number in range(seen.steps)), "holding"]
    stages = [("before", free), *((name, loading) for name in names), ("after", after)]
    return DeviceFit(
        node=key[0],
        device=key[1],
        index=seen.pool.indexes.get(key),
        kind=view.kind,
        total_bytes=view.total_bytes or None,
        measured_age_s=seen.pool.ages_s.get(key),
        foreign_bytes=seen.pool.foreign_bytes.get(key),
        candidate_replicas=seen.ledger.added.get(key, 0),
        candidate_bytes=taken,
        stops=tuple(one.replica for one in seen.stopped if key in one.places),
        stages=tuple(_stage(name, value, view.total_bytes) for name, value in stages),
    )


def _stage(name: str, free: int | None, total: int) -> StageBytes:
    return StageBytes(name, None if free is None else total - free, free)


def _say(report: FitReport) -> str:
    stops = ", ".join(f"{row.replica} ({row.model} release {row.release})" for row in report.stop)
    also = f" {stops} serves nobody and has to stop too." if stops and report.swap else ""
    match report.outcome:
        case FitOutcome.IMPOSSIBLE:
            return f"There is no place for the candidate: {' '.join(report.missing)}"
        case FitOutcome.UNKNOWN:
            return f"Whether the candidate fits is not known: {' '.join(report.unknown)}"
        case FitOutcome.SWAP_ONLY:
            names = ", ".join(row.replica for row in report.swap)
            said = report.outage.text if report.outage else ""
            return f"It fits only if stable gives its room first: {names} has to stop.{also} {said}"
        case FitOutcome.FITS_IF_STOPPED:
            room = sum(row.size_bytes for row in report.stop)
            return f"It fits once {stops} is stopped, which serves nobody and holds {gib(room)}."
        case _:
            waits = f", once {', '.join(report.waits_for)} has left" if report.waits_for else ""
            return f"It fits beside stable: nothing has to stop{waits}."


__all__ = ["FitOutcome", "FitReport", "Held", "Holder", "Pool", "Role", "Timing", "Wanted", "plan_fit"]
