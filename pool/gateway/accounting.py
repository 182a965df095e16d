"""The end of a request: what is counted, settled and told to telemetry. Never holds prompt text or a key."""

from typing import TYPE_CHECKING, Any

from pool.gateway.answer import StreamAnswer
from pool.gateway.relay import Exchange
from pool.gateway.usage import NO_USAGE, Usage, read_usage

if TYPE_CHECKING:
    from pool.gateway.plane import Plane

# Of a plain answer whose engine did not count; its frame makes up for what is longer.
_BYTES_PER_TOKEN = 4


def account(plane: "Plane", exchange: Exchange, outcome: str) -> None:
    metrics, series, model = plane.metrics, exchange.series, exchange.model
    answer, replica = exchange.answer, exchange.replica
    if exchange.status >= 400 and replica is None and outcome != "client_gone":
        metrics.counter("sluice_refusals_total", code=outcome).value += 1.0
    if series is None or model is None:
        metrics.series(("", "", "", exchange.tier)).count(outcome)
        return
    series.in_flight -= 1
    release = replica.release if replica is not None else exchange.release
    served = metrics.series((model.name, str(release or ""), exchange.lane, exchange.tier))
    served.count(outcome)
    now_s = exchange.ended_at_s
    e2e_s, ttft_s = now_s - exchange.started_at_s, None
    if exchange.first_byte_at_s:
        served.e2e.observe(e2e_s)
        if exchange.stream:
            # A plain answer comes at once and whole: its first token cannot be told from its last.
            ttft_s = exchange.first_byte_at_s - exchange.started_at_s
            served.ttft.observe(ttft_s)
    if replica is not None:
        served.queue_delay.observe(exchange.admitted_at_s - exchange.started_at_s)
    usage = NO_USAGE
    if answer is not None:
        usage = read_usage(answer.tail)
        plane.sent_bytes += answer.bytes_out
    _settle(plane, exchange, usage)
    retransmits = None
    if isinstance(answer, StreamAnswer) and answer.started:
        exchange.count_gaps(answer.gaps)
        retransmits = _count_stream(plane, exchange, answer, outcome)
    plane.facts.add(_make_record(exchange, outcome, ttft_s, e2e_s, usage) | {"retransmits": retransmits})


def _settle(plane: "Plane", exchange: Exchange, usage: Usage) -> None:
    """Limits, the prefix index and the guesses of prompts learn what the engine really did."""
    model, replica = exchange.model, exchange.replica
    assert model is not None
    now_s = exchange.ended_at_s
    if exchange.charge is not None:
        if exchange.from_cache:
            plane.limits.settle(exchange.charge, 0, now_s)
        elif replica is None:
            plane.limits.give_back(exchange.charge, now_s)
        else:
            plane.limits.settle(exchange.charge, _total_of(exchange, usage), now_s)
    if replica is None or usage.prompt_tokens is None or exchange.status != 200:
        return
    index = model.indexes.get(replica.release)
    if exchange.blocks and index is not None:
        index.note_result(
            prompt_tokens=usage.prompt_tokens,
            expected_tokens=max(0, exchange.prompt_tokens - exchange.uncached_tokens),
            engine_tokens=usage.cached_tokens,
        )
    if model.tokenizer is None and exchange.ask is not None and not exchange.truncated_tokens:
        model.correction.note(estimate=exchange.ask.prompt_tokens, actual=usage.prompt_tokens)


def _total_of(exchange: Exchange, usage: Usage) -> int | None:
    """Prompt and output; of a stream that was left what it brought. None = not known."""
    if usage.prompt_tokens is not None or not isinstance(exchange.answer, StreamAnswer):
        return usage.total
    return exchange.prompt_tokens + exchange.answer.chunks


def _guess_output(exchange: Exchange) -> int:
    """What was passed on, in tokens (FC-36)."""
    answer = exchange.answer
    if isinstance(answer, StreamAnswer):
        return answer.chunks
    return answer.bytes_out // _BYTES_PER_TOKEN if answer is not None and exchange.status == 200 else 0


def _count_stream(plane: "Plane", exchange: Exchange, answer: StreamAnswer, outcome: str) -> int | None:
    """Segments that were sent again to this client since the last look; None where the kernel does not say."""
    model = exchange.model
    assert model is not None
    counter = plane.metrics.counter
    counter("sluice_streams_total", model=model.name).value += 1.0
    if outcome in ("interrupted", "late"):
        counter("sluice_streams_interrupted_total", model=model.name).value += 1.0
    if answer.late:
        counter("sluice_streams_late_total", model=model.name).value += 1.0
    total = exchange.client.read_retransmits()
    if total is not None and total > exchange.client.retransmits:
        counter("sluice_tcp_retransmits_total").value += float(total - exchange.client.retransmits)
        exchange.client.retransmits = total
    return total


def _make_record(
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
        "output_tokens": _guess_output(exchange) if is_guess else usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "estimated": is_guess,
    }
