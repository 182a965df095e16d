"""Another replica for a request whose attempt has failed, while nothing has left for the client."""

import time
from typing import TYPE_CHECKING

from pool.domain.breaker import Fault
from pool.domain.quarantine import hash_request
from pool.domain.retries import DEATHS, find_objection, may_retry
from pool.gateway.answer import StreamAnswer
from pool.gateway.choice import find_gate
from pool.gateway.following import renew
from pool.gateway.openai import GatewayError

if TYPE_CHECKING:
    from pool.gateway.attempt import Attempt
    from pool.gateway.relay import Exchange


def is_freed_for_another(exchange: "Exchange", attempt: "Attempt", fault: Fault | None) -> bool:
    """True if it gave its slot back and may enter a gate again. Tells breaker and quarantine in any case."""
    model = exchange.model
    if fault is None or model is None:
        return False
    now_s = time.monotonic()
    attempt.note_fault(fault, now_s)
    if fault in DEATHS and exchange.ask is not None:
        exchange.losses += 1
        digest = hash_request(exchange.ask.path, exchange.ask.body)
        exchange.plane.quarantine.note_death(digest, attempt.replica.engine, now_s)
    if find_objection(fault, exchange) or not _has_other(exchange, now_s):
        return False
    if not may_retry(fault, exchange, budget=model.budget, now_s=now_s):
        return False
    exchange.plane.note_retry(exchange, fault)
    exchange.give_back(now_s)
    exchange.status = 0
    exchange.first_byte_at_s = 0.0
    exchange.queued_from_s = now_s
    if not isinstance(exchange.answer, StreamAnswer) or not exchange.answer.opened:
        exchange.answer = None
    return True


def _has_other(exchange: "Exchange", now_s: float) -> bool:
    """A replica that was not tried; without one, the failure of this one says more."""
    try:
        renew(exchange)
        assert exchange.model is not None
        _, gate = find_gate(
            exchange.model, exchange.lane, exchange.release, exchange, pinned=exchange.pinned, now_s=now_s
        )
    except GatewayError:
        return False
    return gate.can_serve(exchange, now_s)
