"""Alerts, promises and restrictions in words: titles, advice, values with their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from console.live.screens import tones
from console.templatetags.units import UNKNOWN, format_count, format_duration, format_ms, format_share
from pool.domain.alerting import LEVELS, Level
from pool.queries.alerts import AlertRow

LEVEL_TONES: Final[Mapping[str, str]] = {
    "normal": tones.OK, "plan": tones.IDLE, "yellow": tones.WARN, "orange": tones.WARN, "red": tones.BAD,
}  # fmt: skip
_LEVELS: Final = {
    "normal": gettext_noop("normal"),
    "plan": gettext_noop("plan"),
    "yellow": gettext_noop("yellow"),
    "orange": gettext_noop("orange"),
    "red": gettext_noop("red"),
}
_RULES: Final = {
    "ttft_p50": gettext_noop("Half of the first tokens come too late"),
    "ttft_p95": gettext_noop("P95 of the first token is over its promise"),
    "ttft_p99": gettext_noop("P99 of the first token is over its levels"),
    "ttft_p99_burn": gettext_noop("The budget of slow first tokens burns"),
    "errors_burn": gettext_noop("The error budget burns"),
    "degraded_burn": gettext_noop("The budget of degraded answers burns"),
    "interrupted_burn": gettext_noop("The budget of interrupted streams burns"),
    "long_ttft": gettext_noop("Long prompts fall behind the others"),
    "p99_over_p50": gettext_noop("P99 is far from the median"),
    "p99_over_p95": gettext_noop("P99 is far from P95"),
    "p50_over_last_week": gettext_noop("The median is worse than a week ago"),
    "allocator_fragmentation": gettext_noop("The allocator's memory is fragmented"),
    "kv_tail": gettext_noop("Much of the last KV blocks is waste"),
    "kv_in_use": gettext_noop("The KV cache is filling"),
    "foreign_memory": gettext_noop("Somebody else uses the device's memory"),
    "prefix_misses": gettext_noop("Prefixes miss the cache in a hot lane"),
    "long_share": gettext_noop("Long requests crowd out short ones"),
    "reduced_capacity": gettext_noop("Replicas that served are missing"),
    "nodes_silent": gettext_noop("Half of the nodes are silent: nothing is moved"),
    "busy_and_late": gettext_noop("The device is busy and the answers are late"),
}
_ADVICE: Final = {
    "ttft_p50": gettext_noop(
        "Look at the heatmap: is it the queue or the prefill? More replicas or shorter prompts."
    ),
    "ttft_p95": gettext_noop("Look at the heatmap: one replica or all? One lane or all?"),
    "ttft_p99": gettext_noop(
        "Look at the heatmap, brush the slow requests and see what they have in common."
    ),
    "ttft_p99_burn": gettext_noop(
        "At this rate the month's budget is used up early. Find what made requests slow."
    ),
    "errors_burn": gettext_noop(
        "Look at errors by kind and replica. Holding requests back does not mend them."
    ),
    "degraded_burn": gettext_noop(
        "Requests are spilled, retried or truncated: look at breakers and capacity."
    ),
    "interrupted_burn": gettext_noop("Streams break off: look at the replicas' logs and at late gaps."),
    "long_ttft": gettext_noop("A profile of its own for the long lane, or chunked prefill, narrows the gap."),
    "p99_over_p50": gettext_noop("The lane mixes requests of very different kinds: divide it."),
    "p99_over_p95": gettext_noop("A few requests wait for something rare: brush them in the heatmap."),
    "p50_over_last_week": gettext_noop("Compare the releases of both weeks in the difference heatmap."),
    "allocator_fragmentation": gettext_noop(
        "Drain the replica and restart it; there is no compaction in place."
    ),
    "kv_tail": gettext_noop("A smaller block size in the next release wastes less."),
    "kv_in_use": gettext_noop(
        "Gateways hold long requests back by themselves. More replicas, or a smaller context."
    ),
    "foreign_memory": gettext_noop("See whose processes hold it on the memory page."),
    "prefix_misses": gettext_noop(
        "See that requests with one prefix go to one replica, and that its cache is large enough."
    ),
    "long_share": gettext_noop("Give long requests replicas of their own, or add one."),
    "reduced_capacity": gettext_noop("See the replicas' reasons; the rest serves with less."),
    "nodes_silent": gettext_noop(
        "When so many vanish together, look at the network and the database first. Engines are left alone."
    ),
    "busy_and_late": gettext_noop(
        "Busy alone is healthy under continuous batching; with late answers it is too much."
    ),
}
_STEPS: Final = {
    "shed_batch": gettext_noop("tier batch is refused"),
    "no_long": gettext_noop("long requests are refused"),
    "admission_ratio": gettext_noop("limits are lowered to %(share)s"),
    "close_lane": gettext_noop("only vip is let in"),
    "scale_out": gettext_noop("add a replica"),
    "restart": gettext_noop("restart the replica after a drain"),
    "roll_back": gettext_noop("roll back"),
}
_ENDS: Final = {
    "taken_back": gettext_noop("taken back"),
    "recovered": gettext_noop("recovered"),
    "ran_out": gettext_noop("ran out"),
    "fell": gettext_noop("the value fell"),
    "no_data": gettext_noop("no data for an hour: nobody knows"),
    "not_watched": gettext_noop("no longer watched"),
}
_BLOCKS: Final = {
    "held": gettext_noop("an operator holds automatic actions"),
    "too_many": gettext_noop("as many actions this hour as allowed"),
    "taken_back_lately": gettext_noop("it was taken back a moment ago"),
    "not_available": gettext_noop("advice only: it is not automatic"),
}
_STATES: Final = {
    "measured": gettext_noop("measured"),
    "few": gettext_noop("too few samples"),
    "absent": gettext_noop("no data"),
    "stale": gettext_noop("stale"),
}


def level_word(level: str) -> str:
    return _(_LEVELS.get(level, level))


def rule_title(rule: str) -> str:
    return _(_RULES[rule]) if rule in _RULES else rule


def rule_advice(rule: str) -> str:
    return _(_ADVICE[rule]) if rule in _ADVICE else ""


def step_words(step: str, value: float = 0.0) -> str:
    if step not in _STEPS:
        return step
    return _(_STEPS[step]) % {"share": format_share(value or 0.8)}


def end_words(reason: str) -> str:
    return _(_ENDS[reason]) if reason in _ENDS else reason


def block_words(reason: str) -> str:
    return _(_BLOCKS[reason]) if reason in _BLOCKS else reason


def state_words(state: str) -> str:
    return _(_STATES[state]) if state in _STATES else state


def state_tone(state: str) -> str:
    return tones.OK if state == "measured" else tones.IDLE


def format_value(value: object, unit: object) -> str:
    """With its unit; unknown is a dash."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN
    if unit == "s":
        return format_ms(value)
    if unit == "burn":
        return _("%(rate)s × budget") % {"rate": f"{value:.1f}"}
    if unit == "replicas":
        return format_count(value)
    return f"{value:.2f} ×" if value > 1 else format_share(value)


def evidence_words(row: AlertRow) -> str:
    """“2.71 s over 5 min, 1,240 samples”."""
    evidence = row.evidence
    value = format_value(evidence.get("value"), evidence.get("unit"))
    window, samples = evidence.get("window_s"), evidence.get("samples")
    words = _("%(value)s over %(window)s, %(samples)s samples") % {
        "value": value,
        "window": _span_words(window),
        "samples": format_count(samples if isinstance(samples, int) else None),
    }
    return words if row.data_state == "measured" else f"{words} · {state_words(row.data_state)}"


def limit_words(row: AlertRow) -> str:
    """“yellow 1.80 s · orange 2.50 s”."""
    limits = row.evidence.get("limits")
    if not isinstance(limits, Mapping):
        return UNKNOWN
    unit = row.evidence.get("unit")
    ordered = sorted(limits.items(), key=lambda item: LEVELS.get(item[0], Level.NORMAL))
    return " · ".join(f"{level_word(level)} {format_value(limit, unit)}" for level, limit in ordered)


def evidence_link(row: AlertRow) -> str:
    """The heatmap of just that window and lane; empty where there is no such page for it."""
    if not row.model:
        return ""
    try:
        if row.rule in ("allocator_fragmentation", "kv_tail", "kv_in_use", "foreign_memory", "prefix_misses"):
            return reverse("model-memory", args=[row.model])
        path = reverse("model-latency", args=[row.model])
    except NoReverseMatch:
        return ""
    start, end, stage = row.evidence.get("from"), row.evidence.get("to"), row.evidence.get("stage") or "ttft"
    wanted = {"from": start, "to": end, "lane": row.lane, "stage": stage}
    return f"{path}?{urlencode({name: value for name, value in wanted.items() if value})}"


def _span_words(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return UNKNOWN
    if seconds % 3600 == 0:
        return _("%(count)d h") % {"count": seconds // 3600}
    if seconds % 60 == 0:
        return _("%(count)d min") % {"count": seconds // 60}
    return format_duration(seconds)
