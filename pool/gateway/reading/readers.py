"""The pool of readers: a bounded queue, time limits, and new readers for those that died. Serving never waits for it.

A count that cannot be had in time leaves the guess in force; a body that cannot be read in time is refused.
"""

import asyncio
import contextlib
import logging
import subprocess
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pool.domain.gateway_settings import changed_settings
from pool.domain.routing_table import ModelRoute
from pool.gateway.config import Config
from pool.gateway.openai import GatewayError, InvalidRequest
from pool.gateway.reading.body import Reading
from pool.gateway.reading.child import Child, start_child
from pool.gateway.reading.jobs import Job, OnCount, OnCut, OnRead, Pair
from pool.gateway.reading.prompt import USUAL, Measures, count_with
from pool.gateway.reading.tokenizer_state import TokenizerStates
from pool.gateway.refusals import Overloaded

logger = logging.getLogger(__name__)

INLINE_BYTES = 64 * 1024
"""Bodies up to this length are cheaper to read on the loop: about 0.2 ms."""
READ_TIMEOUT_S = 10.0
COUNT_TIMEOUT_S = 0.25
_QUEUE_LIMIT = 64
# A pathological text may take longer than anybody waits for its count; only one that hangs costs a reader.
_COUNT_HANG_S = 2.0
_LOAD_TIMEOUT_S = 60.0
_BACK_OFF_S = (0.0, 0.1, 0.5, 1.0, 5.0)
# A reader that answered so many questions has earned a quick successor.
_PROVEN_ANSWERS = 3
_REAP_S = 0.5


class Readers:
    """Of one gateway process. All calls come from the loop's thread; no callback runs inside of a call."""

    def __init__(self, config: Config, *, size: int = 2, queue_limit: int = _QUEUE_LIMIT) -> None:
        self._size = size
        self._queue_limit = queue_limit
        self._loop = asyncio.get_running_loop()
        self._states = TokenizerStates(config, on_ready=self._dispatch)
        self._settings: dict[str, dict[str, Any]] = {}
        self._configuration = 1
        self._reads: deque[Job] = deque()
        self._counts: deque[Job] = deque()
        self._children: dict[Child, Job | None] = {}
        self._answers: dict[Child, int] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._ended: set[subprocess.Popen[bytes]] = set()
        """Killed, and not yet seen to be gone."""
        self._failures = 0
        self._may_start_at_s = 0.0
        self._closed = False
        self._totals = {"reads": 0, "counts": 0, "timeouts": 0, "restarts": 0, "refused": 0}

    def follow(self, models: Iterable[ModelRoute]) -> None:
        """What the newest routing table names: settings for the guards, tokenizers to hold ready."""
        known = list(models)
        settings = {model.name: changed_settings(model.settings) for model in known}
        if settings != self._settings:
            self._settings = settings
            self._configuration += 1
        self._states.follow(known)

    def measures(self, model: str) -> Measures:
        """What guesses for this model are made with; the usual ones until its tokenizer was measured."""
        return self._states.measures.get(model, USUAL)

    def counts(self, model: str) -> Callable[[str], int]:
        """Guesses at texts of this model."""
        return count_with(self.measures(model))

    def read(
        self, path: bytes, body: bytes | bytearray, *, on_done: OnRead, timeout_s: float = READ_TIMEOUT_S
    ) -> Job:
        """`body` must not change before the end. Raises Overloaded when too many wait."""
        if len(self._reads) >= self._queue_limit or self._closed:
            self._totals["refused"] += 1
            raise Overloaded("Too many large requests wait to be read. Send it again later.", retry_after_s=1)

        def on_end(answer: dict[str, Any], payload: bytearray) -> None:
            on_done(_reading_of(answer, payload or body))

        job = Job({"do": "read", "path": path.decode()}, body, on_end)
        self._totals["reads"] += 1
        self._reads.append(job)
        self._limit(job, timeout_s)
        self._dispatch()
        return job

    def count(
        self,
        pair: Pair | None,
        path: bytes,
        body: bytes | bytearray,
        *,
        on_done: OnCount,
        timeout_s: float = COUNT_TIMEOUT_S,
    ) -> Job | None:
        """Exact prompt tokens, or None to `on_done` where the guess must do. Returns None, and calls nobody, when
        no reader is ready for this tokenizer."""
        if pair is None or len(self._counts) >= self._queue_limit or not self._has_loaded(pair):
            return None
        question = {"do": "count", "tokenizer": pair[0], "template": pair[1], "path": path.decode()}
        job = Job(question, body, lambda answer, _: on_done(answer.get("tokens")), needs=pair)
        self._totals["counts"] += 1
        self._counts.append(job)
        self._limit(job, timeout_s)
        self._dispatch()
        return job

    def truncate(
        self,
        path: bytes,
        body: bytes | bytearray,
        *,
        model: str,
        how: str,
        excess_tokens: int,
        on_done: OnCut,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Job | None:
        """As `pool.gateway.truncation`; 0 tokens are gone where it cannot be done in time, or at all. Returns None,
        and calls nobody, when too many wait."""
        if len(self._reads) >= self._queue_limit or self._closed:
            self._totals["refused"] += 1
            return None

        def on_end(answer: dict[str, Any], payload: bytearray) -> None:
            cut = answer.get("cut", 0)
            on_done(cut, payload if cut else body)

        question = {
            "do": "truncate",
            "path": path.decode(),
            "model": model,
            "how": how,
            "excess": excess_tokens,
        }
        job = Job(question, body, on_end)
        self._totals["reads"] += 1
        self._reads.append(job)
        self._limit(job, timeout_s)
        self._dispatch()
        return job

    def describe(self) -> dict[str, Any]:
        """For pages and metrics. `degraded`: releases whose prompts can only be guessed, with the reason."""
        return {
            **self._totals,
            "children": len(self._children),
            "busy": sum(child.busy for child in self._children),
            "queued": len(self._reads) + len(self._counts),
            "queue_limit": self._queue_limit,
            **self._states.describe(),
        }

    def close(self) -> None:
        self._closed = True
        self._states.close()
        for task in self._starting:
            task.cancel()
        for child in list(self._children):
            child.kill()
            self._ended.add(child.process)
        for process in self._ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)

    # Questions.
    def _has_loaded(self, pair: Pair) -> bool:
        return any(pair in child.loaded for child in self._children)

    def _limit(self, job: Job, timeout_s: float) -> None:
        job.timer = self._loop.call_later(timeout_s, self._expire, job)

    def _expire(self, job: Job) -> None:
        self._totals["timeouts"] += not job.done
        child = next((one for one, own in self._children.items() if own is job), None)
        is_count = job.needs is not None
        job.fail("timeout")
        if child is not None:
            patience_s = _COUNT_HANG_S if is_count else 0.0
            self._loop.call_later(patience_s, self._kill_if_at, child, job)

    def _kill_if_at(self, child: Child, job: Job) -> None:
        if self._children.get(child) is job:
            logger.warning("a reader hangs and is ended", extra={"work": job.question["do"]})
            child.kill()

    def _dispatch(self) -> None:
        for child in list(self._children):
            if not child.busy:
                self._employ(child)
        self._drop_done()
        if self._reads or self._counts or (self._states.loadable and not self._children):
            self._start_one()

    def _employ(self, child: Child) -> None:
        job = self._next_job(child)
        if job is None:
            return
        self._children[child] = job
        child.ask(job.question, job.body)

    def _next_job(self, child: Child) -> Job | None:
        if child.configuration != self._configuration:
            return self._configure(child)
        self._drop_done()
        if self._counts and self._counts[0].needs in child.loaded:
            return self._counts.popleft()
        if self._reads:
            return self._reads.popleft()
        missing = next((pair for pair in self._states.loadable if pair not in child.loaded), None)
        return None if missing is None else self._load(child, missing)

    def _drop_done(self) -> None:
        for queue in (self._reads, self._counts):
            while queue and queue[0].done:
                queue.popleft()

    def _configure(self, child: Child) -> Job:
        child.configuration = self._configuration
        measures = {model: list(one) for model, one in self._states.measures.items()}
        question = {"do": "configure", "settings": self._settings, "measures": measures}
        return Job(question, b"", lambda answer, payload: None)

    def _load(self, child: Child, pair: Pair) -> Job:
        kept = list(self._states.loadable)
        folder = str(self._states.folder)
        question = {"do": "load", "tokenizer": pair[0], "template": pair[1], "folder": folder, "keep": kept}

        def on_end(answer: dict[str, Any], _: bytearray) -> None:
            if "measures" not in answer:
                self._states.note_failure(pair, answer.get("failure", "failed"))
                return
            child.loaded.intersection_update(kept)
            child.loaded.add(pair)
            if self._states.note_loaded(pair, answer["measures"]):
                self._configuration += 1

        job = Job(question, b"", on_end)
        self._limit(job, _LOAD_TIMEOUT_S)
        return job

    # Readers.
    def _on_answer(self, child: Child, answer: dict[str, Any], payload: bytearray) -> None:
        job, self._children[child] = self._children[child], None
        self._answers[child] += 1
        if self._answers[child] >= _PROVEN_ANSWERS:
            self._failures = 0
        assert job is not None
        job.end(answer, payload)
        self._dispatch()

    def _start_one(self) -> None:
        """If all have work, and there may be one more."""
        if self._closed or len(self._children) + len(self._starting) >= self._size:
            return
        if self._starting or any(_is_soon_free(child, job) for child, job in self._children.items()):
            return
        wait_s = self._may_start_at_s - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._dispatch)
            return
        task = self._loop.create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._note_start)

    async def _start(self) -> None:
        try:
            child = await start_child(on_answer=self._on_answer, on_gone=self._on_gone)
        except OSError as exc:
            self._back_off()
            logger.warning("no reader can be started", extra={"error": exc.strerror or type(exc).__name__})
            return
        self._children[child] = None
        self._answers[child] = 0

    def _note_start(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if not self._closed:
            self._dispatch()

    def _back_off(self) -> None:
        self._failures = min(self._failures + 1, len(_BACK_OFF_S) - 1)
        self._may_start_at_s = self._loop.time() + _BACK_OFF_S[self._failures]

    def _on_gone(self, child: Child) -> None:
        job = self._children.pop(child, None)
        self._answers.pop(child, None)
        if self._closed:
            return
        self._totals["restarts"] += 1
        self._back_off()
        self._reap(child)
        if job is not None:
            job.fail("reader_died")
        self._loop.call_soon(self._dispatch)

    def _reap(self, child: Child) -> None:
        self._ended.add(child.process)
        if child.process.poll() is None:
            self._loop.call_later(_REAP_S, self._reap, child)
        else:
            self._ended.discard(child.process)


def _is_soon_free(child: Child, job: Job | None) -> bool:
    """Idle, or only taking in its settings."""
    return not child.busy or (job is not None and job.question["do"] == "configure")


def _reading_of(answer: dict[str, Any], body: bytes | bytearray) -> Reading | GatewayError:
    if "reading" in answer:
        fields = answer["reading"]
        fields["blocks"] = tuple(fields["blocks"])
        fields["changed"] = tuple(fields["changed"])
        return Reading(**fields, body=body)
    refusal = answer.get("refusal")
    if refusal is not None:
        return InvalidRequest(refusal["message"], **refusal["details"])
    return InvalidRequest("The body could not be read in time.", reason=answer.get("failure"))
