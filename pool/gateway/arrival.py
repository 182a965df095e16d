"""A request on its way to a slot: reading, guards, lane, limits, release, cache, gate. Each step raises GatewayError,
or hands on to the next; those that wait (a reader, the ledger, an equal request) come back through the exchange.
"""

import time
from typing import TYPE_CHECKING

import orjson

from pool.domain.quarantine import hash_request
from pool.domain.token_estimate import error_ratio_of, needs_count
from pool.gateway.answer_cache import Turn
from pool.gateway.answer_store import Answer
from pool.gateway.ask import Ask, ask_here
from pool.gateway.choice import find_gate, find_model, find_pin, find_release
from pool.gateway.held import find_hold
from pool.gateway.limits import LeaseMissing
from pool.gateway.openai import Quarantined
from pool.gateway.reading.readers import INLINE_BYTES
from pool.gateway.truncation import truncate

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange
    from pool.gateway.routes import ModelView

# A request that names no limit is expected to answer at this length, for what it reserves.
USUAL_OUTPUT_TOKENS = 256
# What it may hold in the end is not known before; a larger wish is not reserved at once.
_MOST_RESERVED_TOKENS = 1024
# A shorter prompt has no whole block that could be cached.
_FEWEST_BLOCK_TOKENS = 64


def read(exchange: "Exchange") -> None:
    request = exchange.request
    if len(request.body) > INLINE_BYTES:
        exchange.begin_wait("tokenizer", exchange.started_at_s)
        exchange.job = exchange.plane.readers.read(request.path, request.body, on_done=exchange.on_read)
        request.drop_body()
    else:
        classify(exchange, ask_here(request))


def classify(exchange: "Exchange", ask: Ask) -> None:
    exchange.ask = ask
    exchange.stream = ask.stream
    plane = exchange.plane
    model = exchange.model = find_model(plane.routes, ask.model, exchange.caller)
    ask.guard(model.settings)
    tokens = ask.measure(plane.readers.measures(model.name))
    if model.tokenizer is None:
        tokens = model.correction.apply(tokens)
    elif needs_count(
        tokens, edges=model.edges, hard_limit=model.max_model_len, error_ratio=error_ratio_of(ask.text)
    ):
        exchange.job = plane.readers.count(model.tokenizer, ask.path, ask.body, on_done=exchange.on_counted)
        if exchange.job is not None:
            exchange.begin_wait("tokenizer", time.monotonic())
            return
    place(exchange, tokens)


def place(exchange: "Exchange", tokens: int) -> None:
    """Lane and limits."""
    model, ask, plane = exchange.model, exchange.ask, exchange.plane
    assert model is not None
    assert ask is not None
    if model.settings.truncation != "off" and model.max_model_len is not None and ask.cuts_left:
        left = _cut(exchange, ask, tokens, tokens + (ask.max_tokens or 1) - model.max_model_len)
        if left is None:
            exchange.begin_wait("tokenizer", time.monotonic())
            return
        tokens = left
    exchange.measured_at_s = exchange.queued_from_s = time.monotonic()
    exchange.prompt_tokens = exchange.uncached_tokens = tokens
    set_lane(exchange, model)
    output_tokens = USUAL_OUTPUT_TOKENS if ask.max_tokens is None else ask.max_tokens
    exchange.output_tokens = output_tokens
    exchange.context_tokens = tokens + (ask.max_tokens or 1)
    exchange.kv_need_tokens = tokens + min(output_tokens, _MOST_RESERVED_TOKENS)
    plane.begin(exchange)
    ask.ask_for_usage()
    if plane.quarantine.active:
        left_s = plane.quarantine.refuses(hash_request(ask.path, ask.body), exchange.started_at_s)
        if left_s:
            raise Quarantined("This request was running when engines died; it is refused for a while.")
    try:
        charge(exchange)
    except LeaseMissing:
        # Another process holds what is left of the limit; the ledger is asked, then it is final.
        exchange.begin_wait("limit_lease", exchange.measured_at_s)
        plane.limits.wait_for_lease(exchange.on_lease)
        return
    choose(exchange)


def set_lane(exchange: "Exchange", model: "ModelView") -> None:
    lane = exchange.lane = model.find_lane(exchange.prompt_tokens)
    settings = exchange.settings = model.lane_settings[lane]
    exchange.total_at_s = exchange.started_at_s + settings.total_timeout_s
    exchange.deadline_s = exchange.started_at_s + settings.queue_timeout_s


def charge(exchange: "Exchange") -> None:
    """Raises RateLimited."""
    model = exchange.model
    assert model is not None
    tokens = exchange.prompt_tokens + exchange.output_tokens
    exchange.charge = exchange.plane.limits.check(
        exchange.caller, model, exchange.lane, tokens, exchange.started_at_s
    )


def choose(exchange: "Exchange") -> None:
    """Release; then an answer that is there already, or the gate."""
    model, ask = exchange.model, exchange.ask
    assert model is not None
    assert ask is not None
    model.budget.note_request(exchange.started_at_s)
    set_release(exchange, model)
    is_kept = bool(model.settings.cache_s or model.settings.coalesce)
    if not is_kept or exchange.release is None or not _find_answer(exchange, ask, exchange.release):
        go_on(exchange)


def set_release(exchange: "Exchange", model: "ModelView") -> None:
    """Pinned, or by the plan. Raises GatewayError."""
    ask = exchange.ask
    assert ask is not None
    exchange.is_placed = True
    pin = find_pin(model, exchange.request, exchange.caller)
    exchange.pinned = pin is not None
    exchange.release = pin if pin is not None else find_release(model, ask, exchange)


def go_on(exchange: "Exchange") -> None:
    """No answer is there: to an engine."""
    model, ask = exchange.model, exchange.ask
    assert model is not None
    assert ask is not None
    if model.has_choice and exchange.prompt_tokens > _FEWEST_BLOCK_TOKENS:
        exchange.blocks = ask.blocks
    # It may have waited: for a count, a lease or the answer to an equal request.
    enter(exchange, time.monotonic())


def enter(exchange: "Exchange", now_s: float) -> None:
    """To the gate of the wished release, or of the one that it spills to."""
    assert exchange.model is not None
    number, gate = find_gate(
        exchange.model, exchange.lane, exchange.release, exchange, pinned=exchange.pinned, now_s=now_s
    )
    exchange.gate = gate
    exchange.spilled = number != exchange.release
    replica = gate.enter(exchange, now_s)
    if replica is not None:
        exchange.on_admitted(replica)
    else:
        exchange.begin_wait(find_hold(gate, exchange, now_s), now_s)


def _find_answer(exchange: "Exchange", ask: Ask, release: int) -> bool:
    """True if it has its answer, or waits for one."""
    model, cache = exchange.model, exchange.plane.answers
    assert model is not None
    if ask.fields is None:
        return False
    key = cache.key_of(
        ask.path, ask.fields, settings=model.settings, scope=exchange.caller.digest, release=release
    )
    if key is None:
        return False
    found = cache.ask(key, exchange, model=model.name, settings=model.settings, now_s=exchange.started_at_s)
    if isinstance(found, Answer):
        exchange.on_answer(found)
        return True
    exchange.cache_key = key
    if found is Turn.GO:
        return False
    exchange.begin_wait("answer_cache" if cache.leads(exchange) else "equal_request", time.monotonic())
    return True


def _cut(exchange: "Exchange", ask: Ask, tokens: int, excess: int) -> int | None:
    """What is left; all of it where it cannot be cut. None: a reader is at it, then `place` comes again."""
    model, readers = exchange.model, exchange.plane.readers
    assert model is not None
    if excess <= 0:
        return tokens
    ask.cuts_left -= 1
    how = model.settings.truncation
    if ask.fields is not None:
        cut = truncate(
            ask.fields, path=ask.path, how=how, excess_tokens=excess, count=readers.counts(model.name)
        )
        return _recount(exchange, ask, tokens, cut or 0, orjson.dumps(ask.fields) if cut else ask.body)

    def on_cut(cut: int, body: bytes | bytearray) -> None:
        left = _recount(exchange, ask, tokens, cut, body)
        if left is not None:
            exchange.on_counted(left)

    exchange.job = readers.truncate(
        ask.path, ask.body, model=model.name, how=how, excess_tokens=excess, on_done=on_cut
    )
    return tokens if exchange.job is None else None


def _recount(exchange: "Exchange", ask: Ask, tokens: int, cut: int, body: bytes | bytearray) -> int | None:
    """What is left after a cut. None: a reader counts it."""
    model = exchange.model
    assert model is not None
    if not cut:
        ask.cuts_left = 0
        return tokens
    ask.body = body
    exchange.truncated_tokens += cut
    # What stands where there is no count.
    ask.prompt_tokens = max(1, tokens - cut)
    exchange.job = exchange.plane.readers.count(
        model.tokenizer, ask.path, ask.body, on_done=exchange.on_counted
    )
    return ask.prompt_tokens if exchange.job is None else None
