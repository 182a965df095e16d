"""Where a candidate would go and what it changes, as rows and sentences of the form that starts a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from console.rollout_words import span_words
from console.templatetags.units import UNKNOWN, format_gib
from pool.domain.fit_report import DeviceFit, FitOutcome, Outage, StageBytes
from pool.domain.release_diff import ReleaseDiff
from pool.services.rollout_room import Reports

_TONES = {
    FitOutcome.FITS_BESIDE: "ok",
    FitOutcome.FITS_IF_STOPPED: "warn",
    FitOutcome.SWAP_ONLY: "bad",
    FitOutcome.UNKNOWN: "warn",
    FitOutcome.IMPOSSIBLE: "bad",
}
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class DeviceRow:
    """`stages`: GiB in use before, at most while both are there, and after."""

    name: str
    before: str
    most: str
    after: str
    total: str
    stops: str


@dataclass(frozen=True)
class Room:
    """`outage`: what has to be accepted, in words with its seconds; empty: nothing."""

    tone: str
    title: str
    text: str
    lines: tuple[str, ...]
    devices: tuple[DeviceRow, ...]
    left_out: int
    outage: str
    is_accepted: bool


@dataclass(frozen=True)
class ChangeRow:
    field: str
    lane: str
    stable: str
    candidate: str
    is_part: bool


def room_of(reports: Reports, *, is_accepted: bool) -> Room:
    fit = reports.fit
    warned = [warning.text for warning in reports.warnings if warning not in reports.diff.warnings]
    lines = [text for text in (*fit.missing, *fit.unknown, *warned) if text not in fit.text]
    return Room(
        tone=_TONES[fit.outcome],
        title=_title(fit.outcome),
        text=fit.text,
        lines=tuple(line for line in lines if not line.startswith(fit.text)),
        devices=tuple(_device(row) for row in fit.devices),
        left_out=fit.devices_left_out,
        outage=_outage_words(fit.outage) if fit.outcome is FitOutcome.SWAP_ONLY else "",
        is_accepted=is_accepted,
    )


def change_rows(diff: ReleaseDiff) -> tuple[ChangeRow, ...]:
    return tuple(
        ChangeRow(
            field=change.field,
            lane=change.lane or "",
            stable=_value(change.stable),
            candidate=_value(change.candidate),
            is_part=change.part_of is not None,
        )
        for change in diff.changes
    )


def _title(outcome: FitOutcome) -> str:
    return {
        FitOutcome.FITS_BESIDE: _("Fits beside the stable release"),
        FitOutcome.FITS_IF_STOPPED: _("Fits once idle replicas stop"),
        FitOutcome.SWAP_ONLY: _("Only by a swap: stable has to stop first"),
        FitOutcome.UNKNOWN: _("Not known whether it fits"),
        FitOutcome.IMPOSSIBLE: _("There is no room"),
    }[outcome]


def _outage_words(outage: Outage | None) -> str:
    """The seconds, or that they are not known: an outage is accepted as what it is."""
    if outage is None or outage.seconds is None:
        length = _("a time that was never measured")
    else:
        length = _("about %(length)s") % {"length": span_words(max(1, round(outage.seconds)))}
    where = ", ".join(outage.lanes) if outage is not None else ""
    if outage is not None and outage.is_full:
        words = _("I accept that nobody serves %(where)s for %(length)s.")
    else:
        words = _("I accept that fewer replicas serve %(where)s for %(length)s.")
    return words % {"where": where or _("any lane"), "length": length}


def _device(row: DeviceFit) -> DeviceRow:
    used = [stage for stage in row.stages if stage.used_bytes is not None]
    most = max((stage.used_bytes or 0 for stage in used), default=None)
    return DeviceRow(
        name=f"{row.node} · {row.kind if row.index is None else row.index}",
        before=_gib(row.stages[0] if row.stages else None),
        most=UNKNOWN if most is None else format_gib(most),
        after=_gib(row.stages[-1] if row.stages else None),
        total=UNKNOWN if row.total_bytes is None else format_gib(row.total_bytes),
        stops=", ".join(row.stops),
    )


def _gib(stage: StageBytes | None) -> str:
    return UNKNOWN if stage is None or stage.used_bytes is None else format_gib(stage.used_bytes)


def _value(value: Any) -> str:
    if value is None:
        return _("engine's choice")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    text = ", ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
