"""What the clock does to a request: time-outs of the whole, the first byte and silence, and comments meanwhile."""

from typing import TYPE_CHECKING

from pool.domain.breaker import Fault
from pool.gateway.answer import StreamAnswer
from pool.gateway.comments import keep_alive
from pool.gateway.openai import UpstreamTimeout

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange


def check(exchange: "Exchange", now_s: float) -> None:
    """Some times a second, while the request is under way."""
    attempt, answer = exchange.attempt, exchange.answer
    if now_s >= exchange.total_at_s:
        exchange.fail(UpstreamTimeout("The answer was not complete in time."))
    elif exchange.is_slow or attempt is None:
        # The client's own time-out counts while it holds up the stream; the gate's while it waits there.
        keep_alive(exchange, now_s)
    elif answer is not None and answer.started and isinstance(answer, StreamAnswer):
        attempt.replica.last_byte_at_s = max(attempt.replica.last_byte_at_s, answer.last_at_s)
        if now_s >= answer.last_at_s + exchange.settings.idle_timeout_s:
            attempt.note_fault(Fault.IDLE_TIMEOUT, now_s)
            exchange.fail(UpstreamTimeout("The engine fell silent."))
    elif exchange.stream and now_s >= attempt.timeout_at_s:
        attempt.note_fault(Fault.FIRST_BYTE_TIMEOUT, now_s)
        exchange.fail(UpstreamTimeout("The engine did not answer in time."))
    else:
        keep_alive(exchange, now_s)
