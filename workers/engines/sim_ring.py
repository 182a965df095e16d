"""The simulated engine's step ring: the same records as a real engine's, of simulated steps, and marked as such."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field

from workers.engines.sim_model import SimModel, SimRequest, Step
from workers.plugin.sluice_engine import ring

logger = logging.getLogger(__name__)

MAP_EVERY_NS = 500_000_000
WATCHED_EVERY_NS = 200_000_000


@dataclass
class Times:
    """Of one request, in ns of the monotonic clock; 0 = not yet."""

    request_id: str
    came_ns: int
    began_ns: int = 0
    first_ns: int = 0

    def finish(self, request: SimRequest, now: int, outcome: int) -> ring.FinishedFields:
        began, first = self.began_ns, self.first_ns
        return ring.FinishedFields(
            at_ns=now,
            queue_ns=began - self.came_ns if began else -1,
            prefill_ns=first - began if first else -1,
            decode_ns=now - first if first else -1,
            preemptions=request.preempted,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached,
            output_tokens=request.generated,
            outcome=outcome,
            request_id=self.request_id,
        )


@dataclass
class SimRing:
    """`writer` None: no ring was asked for, or its file could not be had. Nothing here may stop the engine."""

    writer: ring.RingWriter | None
    model: SimModel
    _seen: dict[int, Times] = field(default_factory=dict)
    _step_began_ns: int = 0
    _preemptions: int = 0
    _mapped_ns: int = 0

    @classmethod
    def open(cls, path: str, model: SimModel) -> SimRing:
        settings = model.settings
        writer = None
        if path:
            try:
                writer = ring.RingWriter(
                    path,
                    blocks=model.total_blocks + 1,
                    block_size=settings.block_size,
                    engine="sim-1",
                    flags=ring.SIMULATED,
                    max_sequences=settings.max_num_seqs,
                )
            except OSError as exc:
                logger.warning("no step ring: %s", exc.strerror)
        return cls(writer, model)

    def note_arrival(self, request: SimRequest, request_id: str) -> None:
        if self.writer is not None:
            self._seen[id(request)] = Times(request_id, time.monotonic_ns())

    def note_begin(self) -> None:
        """Right before the model makes a step."""
        if self.writer is not None:
            self._step_began_ns = time.monotonic_ns()

    def note_end(self, step: Step) -> None:
        """At the step's end, before its tokens are delivered."""
        writer = self.writer
        if writer is None:
            return
        now = time.monotonic_ns()
        self._note_starts(now)
        decoding = step.decoding
        prefilling = step.prefilling
        kind = ring.MIXED if decoding and prefilling else ring.PREFILL if prefilling else ring.DECODE
        took = max(1, now - self._step_began_ns)
        fields = ring.StepFields(
            started_ns=self._step_began_ns,
            schedule_ns=0,
            execute_ns=took,
            update_ns=0,
            busy_ns=took,
            kind=kind,
            prefill_tokens=step.prefilled_tokens,
            decode_tokens=decoding,
            prefill_sequences=prefilling,
            decode_sequences=decoding,
            running=len(self.model.running),
            waiting=len(self.model.waiting),
            preempted=self.model.preemptions - self._preemptions,
            cached_tokens=0,
            used_blocks=self.model.used_blocks,
            finished=sum(one.finished for one in step.produced),
        )
        self._preemptions = self.model.preemptions
        writer.put_step(fields)
        writer.add(ring.STEP_NS, took)
        for request in step.produced:
            self._note_token(request, now)
        self._note_state(now)

    def note_gone(self, request: SimRequest) -> None:
        """A client that left before its answer was whole."""
        times = self._seen.pop(id(request), None)
        if self.writer is not None and times is not None:
            self.writer.put_finished(times.finish(request, time.monotonic_ns(), ring.ABORTED))
            self._note_state(time.monotonic_ns())

    def _note_starts(self, now: int) -> None:
        for request in self.model.running:
            times = self._seen.get(id(request))
            if times is not None and not times.began_ns:
                times.began_ns = self._step_began_ns

    def _note_token(self, request: SimRequest, now: int) -> None:
        times = self._seen.get(id(request))
        if times is None or self.writer is None:
            return
        times.began_ns = times.began_ns or self._step_began_ns
        times.first_ns = times.first_ns or now
        if request.finished:
            del self._seen[id(request)]
            self.writer.put_finished(times.finish(request, now, ring.DONE))

    def _note_state(self, now: int) -> None:
        writer, model = self.writer, self.model
        assert writer is not None
        writer.words[ring.RUNNING] = len(model.running)
        writer.words[ring.WAITING] = len(model.waiting)
        writer.words[ring.USED_BLOCKS] = model.used_blocks
        every = WATCHED_EVERY_NS if writer.is_watched(now) else MAP_EVERY_NS
        if now - self._mapped_ns >= every or not model.running:
            self._mapped_ns = now
            with contextlib.suppress(ValueError):
                self._put_map(writer)

    def _put_map(self, writer: ring.RingWriter) -> None:
        """Blocks in the order of the running requests: the simulation counts blocks, it has no places for them."""
        states = bytearray([ring.FREE]) * writer.blocks
        owners = bytearray(b"\xff\xff") * writer.blocks
        states[0] = ring.NULL
        at, rows = 1, []
        size = self.model.settings.block_size
        for number, request in enumerate(self.model.running[: writer.request_rows]):
            held = min(request.held_blocks, writer.blocks - at)
            states[at : at + held] = bytes([ring.USED]) * held
            owners[2 * at : 2 * (at + held)] = number.to_bytes(2, "little") * held
            at += held
            tokens = min(request.done + request.generated, held * size)
            times = self._seen.get(id(request))
            rows.append(
                ring.MapRequest(times.request_id if times else "", held, tokens, held * size - tokens)
            )
        reusable = min(self.model.cached_blocks, writer.blocks - at)
        states[at : at + reusable] = bytes([ring.REUSABLE]) * reusable
        writer.put_map(
            bytes(states), bytes(owners), rows, first_step=writer.newest_step, last_step=writer.newest_step
        )
