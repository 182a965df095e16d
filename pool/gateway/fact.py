"""The fact that telemetry gets of a request: when, where, how long, how much, how it ended. Never text or a key.

The stages follow each other (tokenize, queue, first byte, decode);
`stream_s` is how long the client did not read in the last.
What is missing from their sum is failed attempts, and a few microseconds of the gateway's own.
"""

from typing import TYPE_CHECKING, Any

from pool.gateway.answer import StreamAnswer
from pool.gateway.endings import read_flags, read_reason, read_response_reason
from pool.gateway.relay import Exchange
from pool.gateway.usage import Usage

if TYPE_CHECKING:
    from pool.gateway.plane import Plane

# Of a plain answer whose engine did not count; its frame makes up for what is longer.
_BYTES_PER_TOKEN = 4
_NO_ROWS: list[Any] = []
_COMPLETE = frozenset(("ok", "client_error"))


def make_fact(
    plane: "Plane", exchange: Exchange, outcome: str, usage: Usage, retransmits: int | None
) -> dict[str, Any]:
    """JSON-able; lengths of time in seconds, None = not known or there was none. docs/telemetry.md names the fields."""
    replica, answer, caller, model = exchange.replica, exchange.answer, exchange.caller, exchange.model
    assert model is not None
    started_s, ended_s, first_s = exchange.started_at_s, exchange.ended_at_s, exchange.first_byte_at_s
    measured_s = exchange.measured_at_s
    # A cut stream has no usage: what was passed on is counted, and says that it is a guess (FC-36).
    is_guess = usage.prompt_tokens is None and replica is not None
    output_tokens = _guess_output(exchange) if is_guess else usage.output_tokens
    stream_s = _stalled_s(exchange) if first_s else None
    gaps = exchange.gaps
    reason, flags = _read_ending(exchange, outcome, None if is_guess else output_tokens)
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
        "region": _read_region(plane, exchange) if exchange.request.region else "",
        "attempts": exchange.attempts,
        "tries": _list_tries(exchange, outcome) if replica is not None else _NO_ROWS,
        "waits": exchange.waits or _NO_ROWS,
        "spilled": exchange.spilled,
        "status": exchange.status,
        "outcome": outcome,
        "stream": exchange.stream,
        "from_cache": exchange.from_cache,
        "tokenize_s": measured_s - started_s if measured_s else None,
        "queue_s": _queue_s(exchange),
        "first_byte_s": first_s - exchange.admitted_at_s if first_s else None,
        "decode_s": None if stream_s is None else max(0.0, ended_s - first_s - stream_s),
        "stream_s": stream_s,
        "ttft_s": first_s - started_s if first_s and exchange.stream else None,
        "e2e_s": ended_s - started_s,
        "longest_gap_s": gaps.longest_s if gaps is not None else None,
        "gaps": gaps.dump() if gaps is not None else None,
        "late_gaps": answer.late_gaps if answer is not None else 0,
        "chunks": answer.chunks if answer is not None else 0,
        "bytes_out": answer.bytes_out if answer is not None else 0,
        "prompt_tokens": exchange.prompt_tokens if is_guess else usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": output_tokens,
        "estimated": is_guess,
        "truncated_tokens": exchange.truncated_tokens,
        "retransmits": retransmits,
        "session": exchange.session if exchange.session >= 0 else None,
        "finish_reason": reason,
        "flags": flags,
    }


def _guess_output(exchange: Exchange) -> int:
    """What was passed on, in tokens (FC-36)."""
    answer = exchange.answer
    if isinstance(answer, StreamAnswer):
        return answer.chunks
    return answer.bytes_out // _BYTES_PER_TOKEN if answer is not None and exchange.status == 200 else 0


def _stalled_s(exchange: Exchange) -> float:
    """How long the client did not read."""
    stalled_s = exchange.stalled_s
    return stalled_s + exchange.ended_at_s - exchange.slow_from_s if exchange.is_slow else stalled_s


def _read_region(plane: "Plane", exchange: Exchange) -> str:
    return plane.regions.bound(exchange.request.region) if exchange.client.tells_region else ""


def _queue_s(exchange: Exchange) -> float | None:
    """Of one that was refused after it had waited too: a queue whose losers are not counted looks short."""
    if exchange.replica is not None:
        return exchange.queue_s
    if exchange.gate is not None and exchange.waits is not None:
        return exchange.ended_at_s - exchange.queued_from_s
    return None


def _list_tries(exchange: Exchange, outcome: str) -> list[list[Any]]:
    """`[replica, seconds from arrival to sending, "ok", fault or outcome]` of each attempt."""
    tries = exchange.failed_tries
    if tries is not None and len(tries) == exchange.attempts:
        return tries
    replica = exchange.replica
    assert replica is not None
    last = [
        replica.id,
        exchange.admitted_at_s - exchange.started_at_s,
        "ok" if outcome in _COMPLETE else outcome,
    ]
    return [last] if tries is None else [*tries, last]


def _read_ending(exchange: Exchange, outcome: str, output_tokens: int | None) -> tuple[str, list[Any]]:
    """Reason and flags of a complete answer; nothing of an embedding, which has no text."""
    ask, answer = exchange.ask, exchange.answer
    if outcome != "ok" or answer is None or ask is None or ask.path == b"/v1/embeddings":
        return "", _NO_ROWS
    if isinstance(answer, StreamAnswer):
        last, recent, is_whole = answer.last, answer.recent, False
    else:
        last, recent, is_whole = answer.tail, None, True
    reason = read_response_reason(answer.tail) if ask.path == b"/v1/responses" else read_reason(last)
    flags = read_flags(
        reason=reason, output_tokens=output_tokens, last=last, recent=recent, is_whole=is_whole
    )
    return reason, flags or _NO_ROWS
