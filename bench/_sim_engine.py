"""An engine on a virtual clock that schedules as vLLM's chunked prefill does (vLLM 0.32, v1 scheduler).

Each step has a budget of tokens: running requests first (one token each for those that decode, the next chunk
for one that is not prefilled yet), then waiting ones in the order of arrival while slots are free. A step
takes as long as its tokens do at the prefill speed, and never less than a step that only decodes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLOTS = 32
CHUNK_TOKENS = 2_048
PREFILL_TOKENS_PER_S = 8_000.0
DECODE_STEP_S = 0.015
KV_TOKENS = 524_288


class Job(Protocol):
    prompt_tokens: int
    answer_tokens: int

    def on_first_token(self, now_s: float) -> None: ...

    def on_finished(self, now_s: float) -> None: ...


class SimEngine:
    def __init__(self, schedule: Callable[[float, Callable[[float], None]], None]) -> None:
        """`schedule(at_s, call)` calls at that time of the virtual clock."""
        self._schedule = schedule
        self._waiting: deque[Job] = deque()
        # Prefilled in part, in order; what is left of each.
        self._prefilling: deque[tuple[Job, int]] = deque()
        # (number of the step in which its last token is made, serial, job)
        self._decoding: list[tuple[int, int, Job]] = []
        self._step = 0
        self._serial = 0
        self._is_running = False
        self.prefilled_tokens = 0

    def submit(self, job: Job, now_s: float) -> None:
        self._waiting.append(job)
        if not self._is_running:
            self._is_running = True
            self._begin_step(now_s)

    def _begin_step(self, now_s: float) -> None:
        budget = CHUNK_TOKENS - len(self._decoding)
        done: list[Job] = []
        spent = len(self._decoding)
        while budget > 0:
            if not self._prefilling:
                if not self._waiting or len(self._decoding) + len(done) >= SLOTS:
                    break
                job = self._waiting.popleft()
                self._prefilling.append((job, job.prompt_tokens))
            job, left = self._prefilling[0]
            chunk = min(left, budget)
            budget -= chunk
            spent += chunk
            self.prefilled_tokens += chunk
            if chunk == left:
                self._prefilling.popleft()
                done.append(job)
            else:
                self._prefilling[0] = (job, left - chunk)
        ends_at_s = now_s + max(DECODE_STEP_S, spent / PREFILL_TOKENS_PER_S)
        self._schedule(ends_at_s, lambda at_s: self._end_step(done, at_s))

    def _end_step(self, done: list[Job], now_s: float) -> None:
        self._step += 1
        while self._decoding and self._decoding[0][0] <= self._step:
            heapq.heappop(self._decoding)[2].on_finished(now_s)
        for job in done:
            job.on_first_token(now_s)
            if job.answer_tokens <= 1:
                job.on_finished(now_s)
                continue
            self._serial += 1
            heapq.heappush(self._decoding, (self._step + job.answer_tokens - 1, self._serial, job))
        if self._decoding or self._prefilling or self._waiting:
            self._begin_step(now_s)
        else:
            self._is_running = False
