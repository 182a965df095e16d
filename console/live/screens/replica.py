"""One replica: phases with their times, reason with advice, figures, intents and the tail of its log; and the list."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from console.live.screens import tones
from console.live.screens.figures import figure_rows, warm_up_rows
from console.live.screens.readiness import readiness_cells
from console.live.screens.rows import Tree, kv_words, reason_of, replica_row
from console.templatetags.units import UNKNOWN, format_count, format_duration, to_iso
from pool.domain.start_errors import ADVICE, StartCode
from pool.queries.readiness import load_readiness
from pool.queries.replicas import (
    IntentRow,
    PhaseStep,
    ReplicaView,
    find_replica,
    list_live_replicas,
    list_replicas,
)
from pool.services.errors import not_found

PHASES = ("pending", "starting", "loading", "warming", "ready", "draining", "stopped", "failed")
LIST_LIMIT = 300
_TOLD = {
    "running": gettext_noop("running requests"),
    "waiting": gettext_noop("waiting requests"),
    "kv_usage_ratio": gettext_noop("KV in use"),
    "generation_tokens": gettext_noop("output tokens"),
    "prompt_tokens": gettext_noop("prompt tokens"),
    "finished_requests": gettext_noop("finished requests"),
    "cache_queries_tokens": gettext_noop("prefix look-ups"),
    "cache_hits_tokens": gettext_noop("prefix hits"),
}
ADVICE_WORDS = 4
"""A stored reason ends with its advice, with figures in it; the last words tell that it is the same."""


def build_replicas(argument: str = "") -> Tree:
    """`argument` is a query string: `model=…&phase=…&node=…`; without any, those that matter now."""
    wanted = {name: values[-1] for name, values in parse_qs(argument).items()}
    model, phase, node = (wanted.get(name, "") for name in ("model", "phase", "node"))
    now = timezone.now()
    if model or phase or node:
        rows = list_replicas(now=now, limit=LIST_LIMIT, model=model, phase=phase, node=node)
    else:
        rows = list_live_replicas(now=now)
    return {
        "replicas": [replica_row(row) for row in rows],
        "no_replicas": not rows,
        "count": format_count(len(rows)),
    }


def build_replica(replica_id: str) -> Tree:
    now = timezone.now()
    view = find_replica(replica_id, now=now)
    if view is None:
        raise not_found("replica", replica_id)
    told = load_readiness(view.replica.model, now)
    is_way_back = told is not None and told.release == view.replica.release
    return replica_tree(view) | readiness_cells(told) | {"is_way_back": is_way_back}


def replica_tree(view: ReplicaView) -> Tree:
    row = view.replica
    alive = row.phase not in ("stopped", "failed")
    return {
        **replica_row(row),
        "kv": kv_words(row) or UNKNOWN,
        "advice": advice_for(view),
        "has_reason": bool(reason_of(row)),
        "has_advice": bool(advice_for(view)),
        "reason_tone": tones.BAD if row.phase == "failed" else tones.replica_tone(row.phase),
        "retry_known": row.phase == "failed" and row.next_retry_at is not None,
        "can_drain": row.wish == "run" and row.phase != "draining",
        "can_restart": row.wish == "run"
        and row.phase not in ("pending", "draining")
        and not row.restart_asked,
        "version": row.version,
        "runtime": row.runtime,
        "address": row.address or UNKNOWN,
        "port": row.port or UNKNOWN,
        "pid": row.pid if row.pid is not None else UNKNOWN,
        "engine": row.engine,
        "devices": ", ".join(row.device_uuids) or UNKNOWN,
        "routed": _("yes") if row.routed else _("no"),
        "context": format_count(row.max_model_len),
        "running": format_count(_figure(row.load.get("running"))) if alive else UNKNOWN,
        "waiting": format_count(_figure(row.load.get("waiting"))) if alive else UNKNOWN,
        "untold": untold_words(row.load) if alive else "",
        "is_untold": alive and bool(untold_words(row.load)),
        "load_at": to_iso(row.load_measured.at),
        "load_stale": row.load_measured.state != "measured",
        "started_at": to_iso(row.started_at),
        "ready_at": to_iso(row.ready_at),
        "placement": view.placement_reason,
        "drain_deadline_at": to_iso(view.drain_deadline_at) if row.phase == "draining" else "",
        "is_draining": row.phase == "draining" and view.drain_deadline_at is not None,
        "history": [_step(index, step) for index, step in reversed(list(enumerate(view.history)))],
        "figures": figure_rows(row),
        "no_figures": not figure_rows(row),
        "warm_ups": warm_up_rows(row.figures),
        "no_warm_ups": not warm_up_rows(row.figures),
        "intents": [_intent(intent) for intent in view.intents],
        "no_intents": not view.intents,
        "log": view.log_tail,
        "no_log": not view.log_tail,
    }


def advice_for(view: ReplicaView) -> str:
    """What to change, from the table of start errors; the stored reason often says it with figures already."""
    row = view.replica
    if row.phase != "failed" or row.reason not in set(StartCode):
        return ""
    advice = ADVICE[StartCode(row.reason)]
    ending = " ".join(advice.rstrip(".").split()[-ADVICE_WORDS:])
    return "" if ending in row.reason_text else advice


def untold_words(load: Mapping[str, object]) -> str:
    """What the engine's metrics do not tell, as after a change of their names (FC-28); empty before a first look."""
    return ", ".join(_(word) for name, word in _TOLD.items() if name in load and load[name] is None)


def _figure(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _step(index: int, step: PhaseStep) -> Tree:
    current = step.lasted_s is None
    return {
        "id": str(index),
        "phase": tones.word(step.phase),
        "tone": tones.replica_tone(step.phase),
        "at": to_iso(step.at),
        "clock": step.at.strftime("%H:%M:%S"),
        "day": step.at.strftime("%d %b"),
        "generation": step.generation,
        "reason": step.reason_text or step.reason.replace("_", " "),
        "lasted": "" if current else format_duration(step.lasted_s),
        "is_current": current,
        "is_over": not current,
    }


def _intent(row: IntentRow) -> Tree:
    return {
        "id": str(row.id),
        "action": row.action,
        "phase": tones.word(row.phase),
        "tone": tones.intent_tone(row.phase),
        "generation": row.generation,
        "node": row.node,
        "created_at": to_iso(row.created_at),
        "done_at": to_iso(row.done_at),
        "result": row.result,
    }
