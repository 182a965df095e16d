"""The fact of one request, for telemetry. Never holds prompt text or a key."""

from typing import Any

from pool.gateway.relay import Exchange
from pool.gateway.usage import Usage


def make_record(
    exchange: Exchange, outcome: str, ttft_s: float | None, e2e_s: float, usage: Usage
) -> dict[str, Any]:
    """JSON-able."""
    replica, answer, caller, model = exchange.replica, exchange.answer, exchange.caller, exchange.model
    assert model is not None
    chunks = answer.chunks if answer is not None else 0
    # A cut stream has no usage: what was passed on is counted, and says that it is a guess (FC-36).
    is_guess = usage.prompt_tokens is None and replica is not None
    return {
        "request_id": exchange.request_id,
        "tag": exchange.client_tag[:128].decode("latin-1"),
        "at": exchange.started_at,
        "model": model.name,
        "lane": exchange.lane,
        "wished_release": exchange.release,
        "release": replica.release if replica is not None else None,
        "replica": replica.id if replica is not None else None,
        "node": replica.node if replica is not None else None,
        "key": caller.digest[:12],
        "tier": caller.tier,
        "label": caller.label,
        "attempts": exchange.attempts,
        "spilled": exchange.spilled,
        "status": exchange.status,
        "outcome": outcome,
        "queue_s": exchange.admitted_at_s - exchange.started_at_s if replica is not None else None,
        "ttft_s": ttft_s,
        "e2e_s": e2e_s,
        "chunks": chunks,
        "late_gaps": answer.late_gaps if answer is not None else 0,
        "bytes": answer.bytes_out if answer is not None else 0,
        "prompt_tokens": exchange.prompt_tokens if is_guess else usage.prompt_tokens,
        "output_tokens": chunks if is_guess else usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "estimated": is_guess,
    }
