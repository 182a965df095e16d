"""The head of an engine's answer, and what carries its body to the client."""

from typing import TYPE_CHECKING

from pool.gateway.answer import PlainAnswer, StreamAnswer
from pool.gateway.ask import Ask
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
        if exchange.end_tokens >= 0:
            end_stream(exchange, answer)
    elif not isinstance(exchange.answer, StreamAnswer):
        answer_whole = PlainAnswer(
            exchange.client, lines, length=head.length, chunkable=exchange.request.version != "1.0"
        )
        answer_whole.keeps_whole = exchange.cache_key is not None or exchange.captured
        exchange.answer = answer_whole


def end_stream(exchange: "Exchange", answer: StreamAnswer) -> None:
    """After `end_tokens` more, with figures of use if the caller asked for them."""
    ask, attempt = exchange.ask, exchange.attempt
    if ask is not None and attempt is not None and _has_one_choice(ask):
        answer.end_after(exchange.end_tokens, prompt_tokens=-1 if ask.hides_usage else exchange.prompt_tokens)
        attempt.take_first(None)


def _has_one_choice(ask: Ask) -> bool:
    """Of several, which end at different times, an early end cannot be told. What is not known may be several."""
    if ask.path == b"/v1/completions":
        prompt = ask.fields.get("prompt") if ask.fields is not None else None
        if not isinstance(prompt, str):
            return False
    return ask.body.find(b'"n"') < 0


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
