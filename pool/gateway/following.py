"""Requests that no engine has yet, when a newer routing table comes: they follow its plan, lanes and limits.

What an engine is at already stays where it is; a stream of a release that is taken back may have to end soon.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pool.domain.routing_table import RoutingTable
from pool.gateway import arrival
from pool.gateway.answer import StreamAnswer
from pool.gateway.choice import find_gate, find_model
from pool.gateway.opening import end_stream

if TYPE_CHECKING:
    from pool.gateway.plane import Plane
    from pool.gateway.relay import Exchange


def follow_table(plane: "Plane", table: RoutingTable) -> None:
    """What waits follows the plan; what streams from a release that is taken back may have to end soon."""
    endings = {
        (model.name, release): tokens for model in table.models for release, tokens in model.endings.items()
    }
    # Only what runs when the wish comes: a stream that begins later, for a pin, is wanted.
    news = {key: tokens for key, tokens in endings.items() if plane.endings.get(key) != tokens}
    plane.endings = endings
    for exchange in list(plane.exchanges):
        if exchange.done or exchange.model is None:
            continue
        if exchange.attempt is None:
            exchange.on_table()
        elif news:
            _shorten(exchange, news)


def _shorten(exchange: "Exchange", endings: Mapping[tuple[str, int], int]) -> None:
    model, replica, answer = exchange.model, exchange.replica, exchange.answer
    if model is None or replica is None or not exchange.stream:
        return
    tokens = endings.get((model.name, replica.release))
    if tokens is not None:
        exchange.end_tokens = tokens
        if isinstance(answer, StreamAnswer) and answer.started:
            end_stream(exchange, answer)


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
