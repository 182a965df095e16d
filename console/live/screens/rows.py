"""Rows that several screens show: replicas, gateways, shares of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from django.urls import reverse
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.templatetags.units import format_count, format_share, to_iso
from pool.queries.gateways import GatewayRow
from pool.queries.plans import PlanRow
from pool.queries.replicas import ReplicaRow

Tree = dict[str, object]
HUES = 5


def replica_row(row: ReplicaRow) -> Tree:
    return {
        "id": row.id,
        "href": reverse("replica", args=[row.id]),
        "phase": tones.word(row.phase),
        "tone": tones.replica_tone(row.phase),
        "reason": reason_of(row),
        "quiet": "no" if reason_of(row) or row.stage or row.restart_asked or row.wish == "stop" else "yes",
        "code": row.reason,
        "stage": row.stage if row.phase in ("starting", "loading", "warming") else "",
        "since": to_iso(row.since),
        "model": row.model,
        "model_href": reverse("model", args=[row.model]),
        "release": _("release %(number)d") % {"number": row.release},
        "lane": row.lane or "",
        "node": row.node or "",
        "where": where(row),
        "sim": row.engine_kind == "sim",
        "load": load_words(row),
        "kv": kv_words(row),
        "generation": row.generation,
        "leaving": row.wish == "stop" and row.phase not in ("stopped", "draining"),
        "restarting": row.restart_asked,
        "retry_at": to_iso(row.next_retry_at) if row.phase == "failed" else "",
    }


def reason_of(row: ReplicaRow) -> str:
    """The sentence, else the code; a ready replica needs none unless something is odd."""
    return row.reason_text or row.reason.replace("_", " ")


def where(row: ReplicaRow) -> str:
    if row.node is None:
        return _("no place yet")
    devices = len(row.device_uuids)
    return (
        row.node if devices <= 1 else _("%(node)s · %(count)d devices") % {"node": row.node, "count": devices}
    )


def load_words(row: ReplicaRow) -> str:
    """Requests that run and wait; a stale figure says so, an absent one is no 0."""
    running, waiting = row.load.get("running"), row.load.get("waiting")
    if row.phase not in ("ready", "draining") or not isinstance(running, int | float):
        return ""
    words = format_count(running)
    if isinstance(waiting, int | float) and waiting > 0:
        words = _("%(running)s + %(waiting)s waiting") % {"running": words, "waiting": format_count(waiting)}
    return _("%(words)s (old)") % {"words": words} if row.load_measured.state == "stale" else words


def kv_words(row: ReplicaRow) -> str:
    usage = row.load.get("kv_usage_ratio")
    if row.phase not in ("ready", "draining") or not isinstance(usage, int | float):
        return ""
    return format_share(usage)


def gateway_row(row: GatewayRow) -> Tree:
    if row.gone_at is not None:
        tone, state = tones.IDLE, _("gone")
    elif row.seen.state != "measured":
        tone, state = tones.BAD, _("silent")
    elif row.draining:
        tone, state = tones.WARN, _("draining")
    elif not row.up_to_date:
        tone, state = tones.WARN, _("behind")
    else:
        tone, state = tones.OK, _("in step")
    return {
        "id": row.id,
        "host": row.host,
        "pid": row.pid,
        "tone": tone,
        "state": state,
        "table": f"{row.epoch}.{row.version}",
        "applied_at": to_iso(row.applied_at),
        "seen_at": to_iso(row.seen.at),
        "in_flight": format_count(row.in_flight),
        "via": _("through web, Redis is silent") if row.via == "web" else row.via,
    }


def hue_of(release: int) -> str:
    """A release keeps its colour on every screen."""
    return str((release - 1) % HUES + 1)


def share_rows(plan: PlanRow | None, simulated: Mapping[int, bool] | None = None) -> list[Tree]:
    if plan is None:
        return []
    shares = sorted(((int(number), percent) for number, percent in plan.weights.items()), reverse=True)
    return [
        {
            "id": str(number),
            "hue": hue_of(number),
            "width": f"{percent}%",
            "percent": f"{percent} %",
            "label": _("release %(number)d · %(percent)d %%") % {"number": number, "percent": percent},
            "sim": bool(simulated and simulated.get(number)),
        }
        for number, percent in shares
        if percent > 0
    ]
