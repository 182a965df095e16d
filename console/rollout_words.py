"""Rollouts in words: gates, steps, and what a start would do, for pages, figures and screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.templatetags.units import format_count, format_duration
from pool.domain.rollout import Step


def gate_words(gate: str) -> str:
    """The gate's own name where it is not known here."""
    return {
        "errors": _("Failed requests"),
        "interrupted": _("Streams that broke off"),
        "ttft": _("Time to the first token"),
        "itl": _("Mean gap between tokens"),
        "per_token": _("End to end per output token"),
        "shape": _("Empty, repeated, cut or oddly long answers"),
    }.get(gate, gate)


def step_words(step: Step) -> str:
    """“5 % of new requests, for 5 min at least and until 200 requests in each lane”."""
    words = _("%(weight)d %% of new requests for %(soak)s at least") % {
        "weight": step.weight,
        "soak": span_words(step.soak_s),
    }
    if not step.min_requests:
        return words
    more = ngettext(
        ", and until it answered %(count)s request in each lane with traffic",
        ", and until it answered %(count)s requests in each lane with traffic",
        step.min_requests,
    )
    return words + more % {"count": format_count(step.min_requests)}


def replica_words(scales: Sequence[tuple[str, int]]) -> str:
    """“2 replicas”, or “short: 1, long: 2 replicas” where lanes have engines of their own."""
    total = sum(count for _lane, count in scales)
    words = ngettext("%(count)d replica", "%(count)d replicas", total)
    if any(lane for lane, _count in scales):
        return ", ".join(f"{lane or _('all lanes')}: {words % {'count': count}}" for lane, count in scales)
    return words % {"count": total}


def least_time_words(steps: Sequence[Step], hold_s: int) -> str:
    """Soaking and holding alone, as if the gates had their say at once."""
    return span_words(sum(step.soak_s for step in steps) + hold_s)


def span_words(seconds: int) -> str:
    """As a person wrote it: “5 min”, not “5 min 00 s”."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s" if seconds < 120 else format_duration(seconds)


def weight_words(weights: Mapping[str, int]) -> str:
    """“release 1: 100 %”, without those that have none."""
    shares = sorted(((int(number), percent) for number, percent in weights.items()), reverse=True)
    words = _("release %(number)d: %(percent)d %%")
    return ", ".join(words % {"number": number, "percent": percent} for number, percent in shares if percent)
