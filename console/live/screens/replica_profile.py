"""Where the time of one replica's steps goes: how far its newest profile is, and what the newest result says."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils import timezone
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.rows import Tree, replica_row
from console.templatetags.units import UNKNOWN, format_count, format_share, to_iso
from pool.domain.step_profiles import OPEN
from pool.queries.replicas import ReplicaRow, find_replica
from pool.queries.step_profiles import StepProfileRow, StepProfileView, find_newest
from pool.services.errors import not_found

BAR_UNITS = 1000
_NO_RESULT: Tree = {
    "has_result": False,
    "result_id": "",
    "is_old": False,
    "is_device": False,
    "is_host": True,
    **dict.fromkeys(
        ("result_at", "result_generation", "result_by", "steps", "step", "batch", "launches", "source"), ""
    ),
}
_TONES = {"waiting": tones.IDLE, "running": tones.BUSY, "done": tones.OK, "failed": tones.BAD}


def build_replica_profile(replica_id: str) -> Tree:
    now = timezone.now()
    view = find_replica(replica_id, now=now)
    if view is None:
        raise not_found("replica", replica_id)
    row = view.replica
    newest, result = find_newest(replica_id, now=now)
    hindrance = _hindrance(row, newest)
    return {
        **replica_row(row),
        "running": format_count(_figure(row.load.get("running"))),
        "waiting": format_count(_figure(row.load.get("waiting"))),
        "can_profile": not hindrance,
        "hindered": bool(hindrance),
        "hindrance": hindrance,
        **_run_cells(newest),
        **_result_cells(result),
    }


def part_words() -> dict[str, str]:
    return {
        "attention": _("attention"),
        "matrix_products": _("matrix products"),
        "copies": _("copies"),
        "other": _("other operations"),
        "between": _("between operations"),
    }


def _hindrance(row: ReplicaRow, newest: StepProfileRow | None) -> str:
    """Why no profile can be asked for now, as the service would refuse; empty: it can."""
    if row.engine_kind == "sim":
        return _("A simulated engine computes nothing, so there is nothing to profile.")
    if row.phase != "ready":
        return _("Only a ready replica makes steps.")
    return _("A profile is under way.") if newest is not None and newest.phase in OPEN else ""


def _run_cells(run: StepProfileRow | None) -> Tree:
    return {
        "never": run is None,
        "has_run": run is not None and run.phase != "done",
        "run_state": _phase_word(run.phase) if run else "",
        "run_tone": _TONES[run.phase] if run else tones.IDLE,
        "run_words": _run_words(run) if run else "",
        "run_code": run.reason if run else "",
        "run_at": to_iso(run.asked_at) if run else "",
        "run_by": run.asked_by if run else "",
    }


def _phase_word(phase: str) -> str:
    words = {"waiting": _("waiting"), "running": _("running"), "done": _("done"), "failed": _("failed")}
    return words[phase]


def _run_words(run: StepProfileRow) -> str:
    if run.phase == "waiting":
        return _("Its node's worker takes one profile at a time.")
    if run.phase == "running":
        return _(
            "%(steps)s steps are followed, then the engine writes its trace and stands still meanwhile."
        ) % {"steps": run.steps_asked}
    return run.reason_text


def _result_cells(view: StepProfileView | None) -> Tree:
    if view is None:
        return _NO_RESULT | {"parts": _part_rows({}, None), "kernels": []}
    row = view.profile
    return {
        "has_result": True,
        "result_id": str(row.id),
        "result_at": to_iso(row.done_at),
        "result_generation": row.generation,
        "result_by": row.asked_by,
        "is_old": not row.is_current,
        "is_device": row.launches_share is not None,
        "is_host": row.launches_share is None,
        "steps": format_count(row.steps_seen),
        "step": _milliseconds(row.step_s),
        "batch": _batch_words(view),
        "launches": _launch_words(row),
        "source": _("kernels on the device") if row.on_device else _("operations on the CPU, own time"),
        "parts": _part_rows(row.shares or {}, row.step_s),
        "kernels": _kernel_rows(view),
    }


def _batch_words(view: StepProfileView) -> str:
    prefill = sum(step.prefill_tokens for step in view.steps)
    decode = sum(step.decode_tokens for step in view.steps)
    return _("%(prefill)s prefill and %(decode)s decode tokens") % {
        "prefill": format_count(prefill),
        "decode": format_count(decode),
    }


def _launch_words(row: StepProfileRow) -> str:
    if row.launches_share is None:
        return UNKNOWN
    return _("%(share)s of the time, %(count)s per step") % {
        "share": format_share(row.launches_share),
        "count": format_count(row.launches_per_step),
    }


def _part_rows(shares: Mapping[str, float], step_s: float | None) -> list[Tree]:
    rows: list[Tree] = []
    start = 0.0
    # Kernels side by side on a device may add up to more than the time.
    whole = max(1.0, sum(shares.values()))
    for name, label in part_words().items():
        share = shares.get(name)
        width = (share or 0.0) / whole * BAR_UNITS
        rows.append(
            {
                "id": name,
                "label": label,
                "share": format_share(share),
                "time": _milliseconds(share * step_s if share is not None and step_s is not None else None),
                "x": f"{start:.1f}",
                "width": f"{width:.1f}",
            }
        )
        start += width
    return rows


def _kernel_rows(view: StepProfileView) -> list[Tree]:
    words = part_words()
    steps = len(view.steps)
    return [
        {
            "id": str(place),
            "name": kernel.name,
            "part": kernel.part,
            "label": words.get(kernel.part, kernel.part),
            "time": _milliseconds(kernel.seconds / steps if steps else None),
            "calls": f"{kernel.calls / steps:.4g}" if steps else UNKNOWN,
            "share": format_share(kernel.share),
            "width": f"{min(1.0, kernel.share or 0.0) * BAR_UNITS:.1f}",
        }
        for place, kernel in enumerate(view.kernels)
    ]


def _milliseconds(seconds: float | None) -> str:
    """Three digits: steps and their kernels take microseconds to seconds."""
    if seconds is None:
        return UNKNOWN
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _figure(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
