"""Requests that no engine has yet, when a newer routing table comes: they follow its plan, lanes and limits.

What an engine is at already stays where it is.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pool.gateway import arrival
from pool.gateway.choice import find_gate, find_model

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange


def follow_table(exchanges: Iterable["Exchange"]) -> None:
    for exchange in list(exchanges):
        if exchange.attempt is None and exchange.model is not None and not exchange.done:
            exchange.on_table()


def follow(exchange: "Exchange") -> None:
    """To the queue where it would go now. Raises GatewayError."""
    was_lane, was_timeout_s, gate = exchange.lane, exchange.settings.queue_timeout_s, exchange.gate
    if not renew(exchange) or gate is None:
        return
    model = exchange.model
    assert model is not None
    now_s = time.monotonic()
    _, found = find_gate(
        model, exchange.lane, exchange.release, exchange, pinned=exchange.pinned, now_s=now_s
    )
    if (
        found is not gate
        or exchange.lane != was_lane
        or exchange.settings.queue_timeout_s != was_timeout_s
        or not found.can_serve(exchange, now_s)
    ):
        enter_again(exchange)


def enter_again(exchange: "Exchange") -> None:
    """Unless an engine has it by now. Raises GatewayError."""
    if exchange.attempt is None:
        now_s = time.monotonic()
        exchange.give_back(now_s)
        arrival.enter(exchange, now_s)


def renew(exchange: "Exchange") -> bool:
    """Lane and release by the newest table; False if they are already. Raises GatewayError."""
    model = exchange.model
    assert model is not None
    newest = find_model(exchange.plane.routes, model.name, exchange.caller)
    if newest is model:
        return False
    exchange.model = newest
    if exchange.lane:
        arrival.set_lane(exchange, newest)
        if exchange.is_placed:
            arrival.set_release(exchange, newest)
    return True
