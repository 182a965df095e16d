"""One request's life after authentication: from its arrival to its account, whatever happens in between.

Written as callbacks, not as a task: no await lies between looking at a replica's load and taking its slot,
and a task per request would cost more than all the rest of this module.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from pool.domain.breaker import Fault, read_fault
from pool.domain.gateway_settings import LaneSettings
from pool.domain.quarantine import hash_request
from pool.domain.routing_table import KeyRoute
from pool.gateway import arrival, opening, overdue, response
from pool.gateway.admission import Gate
from pool.gateway.answer import CUT, LATE, PlainAnswer, StreamAnswer
from pool.gateway.answer_store import Answer
from pool.gateway.ask import Ask, ask_of
from pool.gateway.attempt import Attempt, read_engine_fault
from pool.gateway.caching import build_hit, settle
from pool.gateway.following import enter_again, follow
from pool.gateway.limits import Charge
from pool.gateway.metrics import Series
from pool.gateway.openai import (
    GatewayError,
    NoReadyReplica,
    UpstreamFailed,
    read_engine_error,
)
from pool.gateway.reading.body import Reading
from pool.gateway.reading.jobs import Job
from pool.gateway.refusals import ContextLengthExceeded
from pool.gateway.replicas import LiveReplica
from pool.gateway.request import Request
from pool.gateway.response import ResponseHead
from pool.gateway.retrying import is_freed_for_another
from pool.gateway.routes import ModelView
from pool.gateway.server import ClientConnection
from pool.gateway.surroundings import Plane
from pool.gateway.timeline import Timeline

_NEVER = float("inf")
_USUAL_LANE = LaneSettings()


class Exchange(Timeline):
    """The gate's ticket with its timeline, the owner of its attempts, and what accounting reads."""

    __slots__ = (
        "answer", "ask", "attempt", "attempts", "blocks", "cache_key", "caller", "captured", "charge", "client",
        "client_tag", "done", "end_tokens", "from_cache", "gate", "is_placed", "is_slow", "job", "losses", "model",
        "no_retry", "output_tokens", "pinned", "plane", "release", "replica", "request", "request_id", "series",
        "session", "settings", "spilled", "status", "total_at_s", "truncated_tokens",
    )  # fmt: skip

    def __init__(  # noqa: PLR0915  one object for a request's whole life costs less than several
        self, plane: Plane, client: ClientConnection, request: Request, caller: KeyRoute
    ) -> None:
        super().__init__()
        self.client = client
        self.plane = plane
        self.request = request
        self.caller = caller
        self.tier = caller.tier
        self.captured = caller.capture_ratio > 0.0 and random.random() < caller.capture_ratio
        """Its texts are kept: its key has opted in."""
        self.request_id = plane.new_request_id()
        headers = request.headers
        self.client_tag = headers.get(b"x-request-id", b"")
        self.no_retry = headers.get(b"x-sluice-no-retry") == b"1"
        self.ask: Ask | None = None
        self.job: Job | None = None
        """What a reader does for it."""
        self.model: ModelView | None = None
        self.lane = ""
        self.settings = _USUAL_LANE
        self.release: int | None = None
        """The wished one; the replica tells which one served."""
        self.pinned = False
        self.session = -1
        """Hash of what its release was chosen by, 31 bits; -1 = there was no choice."""
        self.stream = False
        self.charge: Charge | None = None
        self.cache_key: bytes | None = None
        """Set while the cache must be told of its end."""
        self.from_cache = False
        self.truncated_tokens = 0
        self.series: Series | None = None
        """Where it is counted, once its model and lane are known."""
        self.gate: Gate | None = None
        self.attempt: Attempt | None = None
        self.replica: LiveReplica | None = None
        """The one that serves, or served, this request."""
        self.answer: PlainAnswer | StreamAnswer | None = None
        self.is_placed = False
        """Its release was chosen."""
        self.is_slow = False
        """The client does not read."""
        self.tried: Sequence[Any] = ()
        self.end_tokens = -1
        """Its stream ends after so many more; -1 = when the engine ends it."""
        self.attempts = 0
        self.losses = 0
        self.spilled = False
        self.status = 0
        self.done = False
        self.blocks: tuple[int, ...] = ()
        self.prompt_tokens = self.output_tokens = self.uncached_tokens = 0
        self.context_tokens = self.kv_need_tokens = 0
        self.admission = None
        self.deadline_s = _NEVER
        """Of its wait in the queue."""
        self.total_at_s = _NEVER

    @property
    def started(self) -> bool:
        """Content has left for the client."""
        return self.answer is not None and self.answer.started

    @property
    def keeps_open(self) -> bool:
        request = self.request
        return request.keep_alive and request.version != "1.0" and not self.plane.draining

    def start(self) -> None:
        """May answer at once (`done`), when the request is refused."""
        self.plane.exchanges.add(self)
        self._step(arrival.read, self)

    # From the client's side.
    def on_client_gone(self) -> None:
        self.status = 499
        self._end("client_gone")

    def on_client_slow(self, *, slow: bool) -> None:
        if slow and not self.is_slow:
            self.slow_from_s = time.monotonic()
        elif self.is_slow and not slow:
            self.stalled_s += time.monotonic() - self.slow_from_s
        self.is_slow = slow
        if not slow and isinstance(self.answer, StreamAnswer):
            self.answer.resume()
        if self.attempt is not None:
            self.attempt.set_slow(slow=slow)

    # From the clock.
    def check_deadline(self, now_s: float) -> None:
        overdue.check(self, now_s)

    def cut_off(self) -> None:
        """Ends a request that outlives the drain."""
        self.fail(UpstreamFailed("The gateway shuts down. Try again."))

    # From readers, ledger and cache.
    def on_read(self, result: Reading | GatewayError) -> None:
        self.job = None
        self.end_wait(time.monotonic())
        if isinstance(result, GatewayError):
            self.on_refused(result)
        else:
            self._step(arrival.classify, self, ask_of(self.request.path, result))

    def on_counted(self, tokens: int | None) -> None:
        """None: it could not be counted, the guess stands."""
        self.job = None
        self.end_wait(time.monotonic())
        assert self.ask is not None
        self._step(arrival.place, self, self.ask.prompt_tokens if tokens is None else tokens)

    def on_lease(self) -> None:
        self.end_wait(time.monotonic())
        self._step(arrival.charge, self)
        self._step(arrival.choose, self)

    def on_answer(self, answer: Answer) -> None:
        if self.done:
            return
        self.status = 200
        self.from_cache = True
        keeps_open = self.keeps_open
        self.client.write(build_hit(self, answer, close=not keeps_open))
        self._end("ok")
        self.client.finish(keep_alive=keeps_open)

    def on_turn(self) -> None:
        # Its own wait in a queue begins now.
        now_s = time.monotonic()
        self.end_wait(now_s)
        self.deadline_s = now_s + self.settings.queue_timeout_s
        self._step(arrival.go_on, self)

    def on_table(self) -> None:
        """A newer one is in force, and no engine has this request."""
        self._step(follow, self)

    # From the gate.
    def on_admitted(self, replica: LiveReplica) -> None:
        ask = self.ask
        if self.done or ask is None:
            return
        self.replica = replica
        self.queue_s += self.admitted_at_s - self.queued_from_s
        if self.wait_reason:
            self.end_wait(self.admitted_at_s)
        self.tried = (*self.tried, replica)
        self.attempts += 1
        upstream_id = self.request_id if self.attempts == 1 else f"{self.request_id}-{self.attempts}"
        lines = b"POST %b HTTP/1.1\r\nx-request-id: %b\r\n" % (ask.path, upstream_id.encode())
        settings = self.settings
        attempt = self.attempt = Attempt(
            self, replica, lines, ask.body, timeout_s=settings.first_byte_timeout_s
        )
        self.plane.note_sent(self, self.admitted_at_s)
        attempt.start(self.admitted_at_s, connect_timeout_s=settings.connect_timeout_s)

    def on_refused(self, error: GatewayError) -> None:
        if self.done:
            return
        if self.gate is not None and isinstance(error, NoReadyReplica | ContextLengthExceeded):
            # The replica that it waited for is gone. Not now: the table that said so is not in force everywhere.
            asyncio.get_running_loop().call_soon(self._step, enter_again, self)
        else:
            self._refuse(error)

    # From the attempt.
    def on_head(self, attempt: Attempt, head: ResponseHead) -> None:
        self.status = head.status
        opening.open_answer(self, attempt, head)

    def on_first_byte(self, attempt: Attempt, now_s: float) -> None:
        self.first_byte_at_s = now_s
        if self.gate is not None:
            self.gate.first_byte(self, now_s)

    def on_body(self, attempt: Attempt, body: bytes, *, complete: bool) -> None:
        answer = self.answer
        assert answer is not None
        if self.status != 200 and isinstance(answer, StreamAnswer):
            # Its head has left with a comment, so the engine's own answer can only be told as an event.
            whole = answer.hold_refusal(body, complete=complete)
            if whole is not None:
                self._pass_on_refusal(attempt, answer, whole)
        elif self.status >= 500 and complete and self._is_taken_elsewhere(attempt, answer, body):
            return
        elif not answer.feed(body, complete=complete):
            attempt.take_first(answer if isinstance(answer, StreamAnswer) and answer.can_take else None)
        elif answer.finished:
            self._finish(attempt)
        elif isinstance(answer, StreamAnswer) and not self.done:
            fault = read_fault(500, answer.failure_text) if answer.failure_text else Fault.BROKEN
            self._give_up(attempt, fault, "The engine broke off its answer.")

    def on_closed(self, attempt: Attempt) -> bool:
        if isinstance(self.answer, StreamAnswer) and self.answer.end_unframed():
            self._finish(attempt)
            return True
        return False

    def on_fault(self, attempt: Attempt, fault: Fault, text: str) -> None:
        self._give_up(attempt, fault, text)

    # Inside.
    def _step(self, step: Callable[..., None], *arguments: Any) -> None:
        if self.done:
            return
        try:
            step(*arguments)
        except GatewayError as error:
            self._refuse(error)

    def on_late(self) -> None:
        if self.settings.late_gap_policy == "end":
            self.fail(LATE)

    def count_gaps(self, gaps: list[float]) -> None:
        model, replica = self.model, self.replica
        if model is not None and replica is not None and gaps:
            labels = (model.name, str(replica.release), self.lane, self.tier)
            self.plane.metrics.series(labels).itl.observe_many(gaps)
            self.note_gaps(gaps)

    def _is_taken_elsewhere(self, attempt: Attempt, answer: PlainAnswer | StreamAnswer, body: bytes) -> bool:
        """An engine's own failure that another engine may spare the client."""
        if not isinstance(answer, PlainAnswer) or answer.started:
            return False
        return self._goes_elsewhere(attempt, read_engine_fault(self.status, answer.peek(body)))

    def _goes_elsewhere(self, attempt: Attempt, fault: Fault | None) -> bool:
        if not is_freed_for_another(self, attempt, fault):
            return False
        self._step(arrival.enter, self, time.monotonic())
        return True

    def _pass_on_refusal(self, attempt: Attempt, answer: StreamAnswer, body: bytes) -> None:
        fault = read_engine_fault(self.status, body)
        if self._goes_elsewhere(attempt, fault):
            return
        if fault is None:
            attempt.note_success(time.monotonic())
        error = read_engine_error(self.status, body)
        self._end("client_error" if self.status < 500 else "engine_error")
        answer.break_off(error, request_id=self.request_id)

    def _give_up(self, attempt: Attempt, fault: Fault | None, failure: str) -> None:
        """Another replica, if nothing has left for the client; else the failure is told."""
        if not self._goes_elsewhere(attempt, fault):
            self.fail(UpstreamFailed(f"{failure} Try again."))

    def fail(self, error: GatewayError) -> None:
        """Tells the client in the way that is still open."""
        answer = self.answer
        if answer is None or not answer.started:
            self._refuse(error)
        elif error is LATE:
            self._end("late")
            answer.break_off(error, request_id=self.request_id)
        else:
            self._end("interrupted")
            answer.break_off(CUT, request_id=self.request_id)

    def _refuse(self, error: GatewayError) -> None:
        self.status = error.status
        answer, keeps_open = self.answer, self.keeps_open
        self._end(error.code)
        if isinstance(answer, StreamAnswer) and answer.opened:
            answer.break_off(error, request_id=self.request_id)
            return
        told = response.refusal(error, request_id=self.request_id, close=not keeps_open, lane=self.lane)
        self.client.write(told)
        self.client.finish(keep_alive=keeps_open)

    def _finish(self, attempt: Attempt) -> None:
        """The whole answer has been written."""
        status, keeps_open = self.status, self.keeps_open
        now_s = attempt.replica.last_byte_at_s = time.monotonic()
        if status < 500:
            attempt.note_success(now_s)
            quarantine = self.plane.quarantine
            if quarantine.active and self.ask is not None:
                quarantine.note_completed(hash_request(self.ask.path, self.ask.body), now_s)
        self._end("ok" if status < 400 else "client_error" if status < 500 else "engine_error")
        self.client.finish(keep_alive=keeps_open)

    def give_back(self, now_s: float) -> None:
        """The slot or the place in the queue."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.give_back()
            if attempt.fault is not None:
                self.note_failed_try(attempt.replica.id, attempt.fault)
        if self.gate is not None:
            if self.admission is None:
                self.gate.abandon(self)
            else:
                self.gate.leave(self, now_s)

    def _end(self, outcome: str) -> None:
        """The one place where an exchange ends: everything that it took is given back here."""
        if self.done:
            return
        self.done = True
        self.ended_at_s = time.monotonic()
        self.end_wait(self.ended_at_s)
        self.plane.exchanges.discard(self)
        if isinstance(self.answer, StreamAnswer):
            self.answer.stop()
        if self.job is not None:
            self.job.cancel()
        self.give_back(self.ended_at_s)
        self.plane.account(self, outcome=outcome)
        if self.cache_key is not None and not self.from_cache:
            # Last, since others that waited for this answer go on now.
            settle(self, self.cache_key, outcome)
