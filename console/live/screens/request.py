"""One request as its page shows it: the bars of its time, attempts, tokens, and what stood in its way."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.rows import Tree
from console.templatetags.units import UNKNOWN, format_bytes, format_count, format_ms, format_share, to_iso
from pool.domain.waterfall import Span
from pool.queries.request_detail import RequestView

_AROUND = timedelta(minutes=5)
_FULL = 100.0


def request_tree(row: RequestView) -> Tree:
    return {
        "id": row.request_id,
        "at": to_iso(row.at),
        "tone": outcome_tone(row.outcome, row.status),
        "outcome": row.outcome.replace("_", " ") or UNKNOWN,
        "status": str(row.status or UNKNOWN),
        "model": row.model,
        "model_href": reverse("model", args=[row.model]),
        "tag": row.tag,
        "e2e": format_ms(row.e2e_s),
        "ttft": format_ms(row.ttft_s),
        "is_stream": row.stream,
        "longest_gap": format_ms(row.longest_gap_s),
        "window_href": _window_href(row),
        "spans": _spans(row),
        "has_engine": row.engine_prefill_s is not None,
        "attempts": [
            {
                "id": str(number),
                "replica": one.replica or UNKNOWN,
                "href": reverse("replica", args=[one.replica]) if one.replica else "",
                "sent": format_ms(one.sent_s),
                "result": one.result.replace("_", " "),
                "tone": tones.OK if one.result == "ok" else tones.BAD,
            }
            for number, one in enumerate(row.attempts, 1)
        ],
        "obstacles": [
            {"id": str(number), "words": obstacle_words(one.reason), "waited": format_ms(one.waited_s)}
            for number, one in enumerate(row.obstacles, 1)
        ],
        "remarks": list_remarks(row),
        "facts": _facts(row),
        "tokens": _tokens(row),
    }


def outcome_tone(outcome: str, status: int) -> str:
    if outcome == "ok":
        return tones.OK
    if outcome in ("client_gone", "client_error") or 400 <= status < 500:
        return tones.WARN
    return tones.BAD


def obstacle_words(reason: str) -> str:
    words = {
        "tokenizer": _("its exact token count"),
        "reader": _("the reading of a large body"),
        "lane_limit": _("the lane's limit of requests at once"),
        "queue": _("the queue of its lane"),
        "slots": _("a free slot of a replica"),
        "kv_memory": _("free KV memory"),
        "prefill": _("prompts before it on the replicas"),
        "limit_lease": _("its share of a limit per minute"),
        "equal_request": _("the answer to an equal request"),
        "watermark": _("a replica below its KV watermark"),
    }
    return words.get(reason, reason.replace("_", " "))


def list_remarks(row: RequestView) -> list[Tree]:
    """What an operator would want pointed out, worst first."""
    found = [
        (row.outcome in ("interrupted", "late"), tones.BAD, _("The stream was cut before its end.")),
        ("empty" in row.flags, tones.BAD, _("The answer holds no token.")),
        ("repeated" in row.flags, tones.WARN, _("The end of the answer repeats itself.")),
        ("cut_by_length" in row.flags, tones.WARN, _("The answer ended at its limit of tokens.")),
        (row.spilled, tones.WARN, _("It was spilled: another release than the wished one served it.")),
        (bool(row.truncated_tokens), tones.WARN, _("Its prompt was cut to fit the context.")),
        (bool(row.preemptions), tones.WARN, _("The engine preempted it for want of KV memory.")),
        (bool(row.late_gaps), tones.WARN, _("Tokens came late at least once.")),
        (row.estimated, tones.IDLE, _("The engine counted no tokens: the figures are the gateway's guess.")),
    ]
    return [
        {"id": str(n), "tone": tone, "words": words} for n, (holds, tone, words) in enumerate(found) if holds
    ]


def _spans(row: RequestView) -> list[Tree]:
    whole_s = max([row.e2e_s or 0.0, *(span.end_s for span in row.spans)], default=0.0) or 1.0
    return [_span(number, span, whole_s) for number, span in enumerate(row.spans)]


def _span(number: int, span: Span, whole_s: float) -> Tree:
    x = min(_FULL, span.start_s / whole_s * _FULL)
    width = min(_FULL - x, max(0.3, span.length_s / whole_s * _FULL))
    return {
        "id": f"{number}",
        "kind": span.name,
        "inner": bool(span.within),
        "words": span_words(span.name),
        "source": _("engine's clock") if span.within else "",
        "x": f"{x:.2f}%",
        "width": f"{width:.2f}%",
        "length": format_ms(span.length_s),
        "share": format_share(span.length_s / whole_s),
    }


def span_words(name: str) -> str:
    return {
        "tokenize": _("Read and tokenize"),
        "queue": _("Queue"),
        "first_byte": _("To the first token"),
        "decode": _("Decode"),
        "stream": _("Client did not read"),
        "other": _("Not explained"),
        "engine_queue": _("Engine queue"),
        "engine_prefill": _("Prefill"),
        "engine_decode": _("Decode, engine"),
        "engine_gap": _("Network and API server"),
    }[name]


def _facts(row: RequestView) -> list[Tree]:
    release = UNKNOWN if row.release is None else str(row.release)
    if row.wished_release is not None and row.release is not None and row.wished_release != row.release:
        release = _("%(release)s, wished %(wished)s") % {"release": row.release, "wished": row.wished_release}
    pairs = [
        (_("Lane"), row.lane),
        (_("Release"), release),
        (_("Replica"), row.replica),
        (_("Node"), row.node),
        (_("Key"), row.key),
        (_("Tier"), row.tier),
        (_("Label"), row.label),
        (_("Client region"), row.region),
        (_("Caller's id"), row.tag),
        (_("Finish reason"), row.finish_reason),
        (_("Chunks"), format_count(row.chunks) if row.stream else ""),
        (_("Sent"), format_bytes(row.bytes_out)),
        (_("TCP retransmits"), "" if row.retransmits is None else format_count(row.retransmits)),
    ]
    return [
        {"id": str(n), "label": label, "value": value or UNKNOWN} for n, (label, value) in enumerate(pairs)
    ]


def _tokens(row: RequestView) -> Tree:
    cached = UNKNOWN
    if row.cached_tokens is not None and row.prompt_tokens:
        cached = f"{format_count(row.cached_tokens)} ({format_share(row.cached_tokens / row.prompt_tokens)})"
    rate = UNKNOWN
    if row.output_tokens and row.decode_s:
        rate = _("%(rate)s tokens/s") % {"rate": format_count(row.output_tokens / row.decode_s)}
    return {
        "prompt": format_count(row.prompt_tokens),
        "cached": cached,
        "output": format_count(row.output_tokens),
        "rate": rate,
    }


def _window_href(row: RequestView) -> str:
    """The latency page around it; empty while there is no such page."""
    try:
        path = reverse("model-latency", args=[row.model])
    except NoReverseMatch:
        return ""
    window = {"from": to_iso(row.at - _AROUND), "to": to_iso(row.at + _AROUND), "lane": row.lane}
    return f"{path}?{urlencode(window)}"
