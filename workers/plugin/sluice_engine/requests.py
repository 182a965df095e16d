"""The times of each request inside the engine: queue, prefill, decode, by the scheduler's own clock.

As the engine defines them: queued → first scheduled → first token → last token. What ended by an abort has its last
time from the step that noticed it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sluice_engine import ring
from sluice_engine.ring import FinishedFields, RingWriter

# More than an engine ever holds at once; beyond it the end of requests was missed, and the oldest are forgotten.
MAX_TRACKED: Final = 16_384
_OUTCOMES: Final = {"FINISHED_ABORTED": ring.ABORTED, "FINISHED_ERROR": ring.FAILED}


class Prefill(NamedTuple):
    """What of a step computes prompts (or computes again what a preemption gave up)."""

    tokens: int
    sequences: int
    cached_tokens: int


NO_PREFILL: Final = Prefill(0, 0, 0)


class _Track:
    __slots__ = ("cached_tokens", "first_ns", "queue_ns", "request", "scheduled_ns")

    def __init__(self, request: Any, started_ns: int) -> None:
        queued_ns, scheduled_ns = _read_events(request)
        stats = getattr(request, "prefill_stats", None)
        self.request = request
        self.scheduled_ns = scheduled_ns or started_ns
        self.queue_ns = max(0, self.scheduled_ns - queued_ns) if queued_ns else -1
        self.first_ns = 0
        self.cached_tokens = int(getattr(stats, "num_cached_tokens", -1))


class RequestLog:
    """Requests between their first step and their end; both bounded."""

    def __init__(self, scheduler: Any, writer: RingWriter) -> None:
        self._scheduler = scheduler
        self._writer = writer
        self._tracks: dict[str, _Track] = {}
        self._without_token: dict[str, _Track] = {}

    def note_scheduled(self, output: Any, started_ns: int) -> Prefill:
        if output.finished_req_ids:
            self._settle(output.finished_req_ids, started_ns)
        new = output.scheduled_new_reqs
        cached = output.scheduled_cached_reqs
        resumed, outputs = cached.resumed_req_ids, cached.num_output_tokens
        if not new and not resumed and 0 not in outputs:
            return NO_PREFILL
        hits = sum([self._begin(each.req_id, started_ns) for each in new])
        computing = {each.req_id for each in new}
        computing.update(resumed)
        computing.update([name for name, count in zip(cached.req_ids, outputs, strict=True) if not count])
        counts = output.num_scheduled_tokens
        return Prefill(sum([counts[name] for name in computing]), len(computing), hits)

    def note_updated(self, ended_ns: int) -> int:
        """How many requests ended."""
        if self._without_token:
            for name in [n for n, track in self._without_token.items() if track.request.num_output_tokens]:
                self._without_token.pop(name).first_ns = ended_ns
        ended = self._scheduler.finished_req_ids
        return self._settle(ended, ended_ns) if ended else 0

    def _begin(self, name: str, started_ns: int) -> int:
        """Prompt tokens that were in the cache; 0 for what came before (a resumed one)."""
        if name in self._tracks:
            return 0
        if len(self._tracks) >= MAX_TRACKED:
            self._tracks.clear()
            self._without_token.clear()
        track = _Track(self._scheduler.requests[name], started_ns)
        self._tracks[name] = self._without_token[name] = track
        return max(0, track.cached_tokens)

    def _settle(self, names: Any, now_ns: int) -> int:
        count = 0
        for name in names:
            track = self._tracks.pop(name, None)
            if track is not None:
                self._without_token.pop(name, None)
                self._writer.put_finished(_make_fields(name, track, now_ns))
                count += 1
        return count


def _make_fields(name: str, track: _Track, now_ns: int) -> FinishedFields:
    request = track.request
    outcome = _OUTCOMES.get(getattr(request.status, "name", ""), ring.DONE)
    has_output = bool(track.first_ns)
    prefill_end = track.first_ns or (now_ns if outcome == ring.DONE else 0)
    return FinishedFields(
        at_ns=now_ns,
        queue_ns=track.queue_ns,
        prefill_ns=prefill_end - track.scheduled_ns if prefill_end else -1,
        decode_ns=now_ns - track.first_ns if has_output else -1,
        preemptions=request.num_preemptions,
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=track.cached_tokens,
        output_tokens=request.num_output_tokens,
        outcome=outcome,
        request_id=name,
    )


def _read_events(request: Any) -> tuple[int, int]:
    """When it was queued and first scheduled, in ns; 0 where the engine keeps no events."""
    found = {}
    for event in getattr(request, "events", None) or ():
        found.setdefault(getattr(event.type, "name", ""), int(event.timestamp * 1e9))
    return found.get("QUEUED", 0), found.get("SCHEDULED", 0)
