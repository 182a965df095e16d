"""The end of a request: what is counted, settled and told to telemetry. Never holds prompt text or a key."""

from typing import TYPE_CHECKING, Any

from pool.gateway.answer import StreamAnswer
from pool.gateway.fact import make_fact
from pool.gateway.relay import Exchange
from pool.gateway.usage import NO_USAGE, Usage, read_usage

if TYPE_CHECKING:
    from pool.gateway.plane import Plane

# An answer, or one whose caller left.
_ANSWERED = frozenset((200, 499))
_CUT = frozenset(("interrupted", "late"))
_FAILED = frozenset(("interrupted", "late", "engine_error"))
# The ordinal of 1 January 1970.
_EPOCH_DAY = 719_163


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
    if exchange.first_byte_at_s:
        served.e2e.observe(now_s - exchange.started_at_s)
        if exchange.stream:
            # A plain answer comes at once and whole: its first token cannot be told from its last.
            served.ttft.observe(exchange.first_byte_at_s - exchange.started_at_s)
    if replica is not None:
        served.queue_delay.observe(exchange.admitted_at_s - exchange.started_at_s)
    _tally(plane, exchange, model.name, outcome)
    usage = NO_USAGE
    if answer is not None:
        usage = read_usage(answer.tail)
        plane.sent_bytes += answer.bytes_out
    _settle(plane, exchange, usage)
    retransmits = None
    if isinstance(answer, StreamAnswer) and answer.started:
        exchange.count_gaps(answer.gaps)
        retransmits = _count_stream(plane, exchange, answer, outcome)
    fact = make_fact(plane, exchange, outcome, usage, retransmits)
    plane.facts.add(fact)
    _pass_on(plane, exchange, model.name, fact)


def _tally(plane: "Plane", exchange: Exchange, model: str, outcome: str) -> None:
    replica, wished = exchange.replica, exchange.release
    if replica is None:
        return
    tally = plane.tallies.of(model, replica.release)
    tally.requests += 1
    if outcome in _FAILED or exchange.status >= 500:
        tally.errors += 1
        if outcome in _CUT:
            tally.interrupted += 1
    if exchange.spilled and wished is not None and exchange.attempts == 1:
        # It was not even tried there: every replica of the release was full, gone or cut off.
        plane.tallies.of(model, wished).spilled_errors += 1


def _pass_on(plane: "Plane", exchange: Exchange, model: str, fact: dict[str, Any]) -> None:
    """What its key used: of an answer, or of as much of one as its caller waited for. Its text, where the key wants
    that."""
    if exchange.captured:
        plane.captures.add(exchange, fact)
    if exchange.from_cache or (exchange.first_byte_at_s and exchange.status in _ANSWERED):
        plane.usage.totals.add(
            _EPOCH_DAY + int(exchange.started_at) // 86_400, exchange.caller.digest, model,
            fact["prompt_tokens"] or 0, fact["cached_tokens"] or 0, fact["output_tokens"] or 0,
        )  # fmt: skip


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


def _count_stream(plane: "Plane", exchange: Exchange, answer: StreamAnswer, outcome: str) -> int | None:
    """Segments that were sent again to this client since the last look; None where the kernel does not say."""
    model = exchange.model
    assert model is not None
    counter = plane.metrics.counter
    counter("sluice_streams_total", model=model.name).value += 1.0
    if outcome in _CUT:
        counter("sluice_streams_interrupted_total", model=model.name).value += 1.0
    if answer.late:
        counter("sluice_streams_late_total", model=model.name).value += 1.0
    total = exchange.client.read_retransmits()
    if total is not None and total > exchange.client.retransmits:
        counter("sluice_tcp_retransmits_total").value += float(total - exchange.client.retransmits)
        exchange.client.retransmits = total
    return total
