"""The head of an engine's answer, and what carries its body to the client."""

from typing import TYPE_CHECKING

from pool.gateway.answer import PlainAnswer, StreamAnswer
from pool.gateway.attempt import Attempt
from pool.gateway.caching import own_lines
from pool.gateway.response import ResponseHead

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange


def open_answer(exchange: "Exchange", attempt: Attempt, head: ResponseHead) -> None:
    ask = exchange.ask
    assert ask is not None
    ending = b"\r\n" if exchange.keeps_open else b"\r\nconnection: close\r\n"
    lines = b"%b%b%bx-request-id: %b%b" % (
        head.lines, attempt.replica.lines_for(exchange.lane), own_lines(exchange), exchange.request_id.encode(),
        ending,
    )  # fmt: skip
    if head.is_stream and head.status == 200:
        answer = stream_answer(exchange)
        if exchange.captured:
            answer.copied = []
        answer.begin(lines, responses=ask.path == b"/v1/responses", hides_usage=ask.hides_usage)
        exchange.answer = answer
    elif not isinstance(exchange.answer, StreamAnswer):
        answer_whole = PlainAnswer(
            exchange.client, lines, length=head.length, chunkable=exchange.request.version != "1.0"
        )
        answer_whole.keeps_whole = exchange.cache_key is not None or exchange.captured
        exchange.answer = answer_whole


def stream_answer(exchange: "Exchange") -> StreamAnswer:
    """The one whose head has left before, if there is one."""
    if isinstance(exchange.answer, StreamAnswer):
        return exchange.answer
    chunkable = exchange.request.version != "1.0"
    return StreamAnswer(
        exchange.client,
        exchange.settings,
        on_late=exchange.on_late,
        on_gaps=exchange.count_gaps,
        chunkable=chunkable,
    )
