"""Keep-alive comments during a long wait, for callers' keys that want them (FC-43)."""

from typing import TYPE_CHECKING

from pool.gateway.answer import StreamAnswer
from pool.gateway.opening import stream_answer

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange

_HEAD_LINES = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\nx-sluice-lane: %b\r\nx-request-id: %b\r\n"
)


def keep_alive(exchange: "Exchange", now_s: float) -> None:
    """From the first one on a failure can only be told as an event."""
    every_s = exchange.caller.keepalive_s
    if every_s is None or not exchange.stream or not exchange.lane or exchange.is_slow:
        return
    answer = exchange.answer
    if answer is not None and not isinstance(answer, StreamAnswer):
        return
    last_s = answer.last_at_s if answer is not None else exchange.started_at_s
    if now_s >= last_s + every_s:
        answer = exchange.answer = stream_answer(exchange)
        answer.last_at_s = now_s
        answer.keep_alive(_HEAD_LINES % (exchange.lane.encode(), exchange.request_id.encode()))
