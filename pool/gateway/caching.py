"""A request and the cache of answers: what it gets from there, and what it leaves."""

from typing import TYPE_CHECKING

from pool.gateway import response
from pool.gateway.answer import PlainAnswer
from pool.gateway.answer_cache import HIT, MISS
from pool.gateway.answer_store import Answer

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange

_KIND = b"application/json"


def build_hit(exchange: "Exchange", answer: Answer, *, close: bool) -> bytes:
    """The whole response."""
    lines = b"x-sluice-release: %d\r\nx-sluice-lane: %b\r\n%bx-request-id: %b\r\n" % (
        answer.release, exchange.lane.encode(), HIT, exchange.request_id.encode(),
    )  # fmt: skip
    return response.whole_response(200, answer.body, kind=answer.content_type, extra=lines, close=close)


def own_lines(exchange: "Exchange") -> bytes:
    """Header lines of what the gateway did to the request."""
    lines = MISS if exchange.cache_key is not None else b""
    if exchange.truncated_tokens:
        lines += b"x-sluice-truncated: %d tokens\r\n" % exchange.truncated_tokens
    return lines


def settle(exchange: "Exchange", key: bytes, outcome: str) -> None:
    """Its answer, if it is one that others may have; they go on now."""
    model, answer = exchange.model, exchange.answer
    assert model is not None
    kept, replica = None, exchange.replica
    whole = answer.whole if isinstance(answer, PlainAnswer) and outcome == "ok" else None
    if whole is not None and replica is not None and not exchange.spilled:
        kept = Answer(replica.release, _KIND, whole)
    exchange.plane.answers.settle(
        key,
        exchange,
        kept,
        settings=model.settings,
        now_s=exchange.ended_at_s,
        is_gone=outcome == "client_gone",
    )
