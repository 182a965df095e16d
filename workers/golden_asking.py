"""Asks a node's engines the golden prompts that the pool wishes: one run at a time, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from pool.domain.golden import BUDGET_S, Given, Outcome, Question, compare, question_from_json
from pool.models import GoldenRun, Intent, Replica
from pool.ports import EngineSpec
from pool.services.golden import begin_run, fail_run, note_outcomes, store_recording, store_run
from pool.services.intents import claim_intent, finish_intent
from workers import golden_answers
from workers.engines.http import EngineUnreachable
from workers.golden_answers import REQUEST_LIMIT_S, Target

logger = logging.getLogger(__name__)

_TOO_LATE = "too_late"


class _Ended(Exception):
    """The run is over: its replica left, or it was given up."""


@dataclass
class GoldenAsker:
    holder: uuid.UUID
    make_spec: Callable[[Replica], EngineSpec]
    busy: threading.Lock = field(default_factory=threading.Lock)
    """One run at a time, so that the questions take little of what users get. Further wishes wait for a later pass."""
    clock: Callable[[], float] = time.monotonic

    def carry_out(self, intent: Intent) -> bool:
        """Returns at once; False: another run is under way."""
        if not self.busy.acquire(blocking=False):
            return False
        # It may be cut by the end of the process: the next worker asks anew.
        work = partial(self._work, intent)
        threading.Thread(target=work, name=f"golden-{intent.replica_id}", daemon=True).start()
        return True

    def _work(self, intent: Intent) -> None:
        try:
            self.ask_all(intent)
        except (DatabaseError, InterfaceError) as exc:
            logger.info("golden prompts of %s: no database: %s", intent.replica_id, exc)
        finally:
            close_old_connections()
            self.busy.release()

    def ask_all(self, intent: Intent) -> None:
        """Blocking. What goes wrong is stored with the run."""
        if not (
            claim_intent(intent, holder=self.holder, now=timezone.now()) or intent.claimed_by == self.holder
        ):
            return
        run = begin_run(intent, now=timezone.now())
        result = _TOO_LATE if run is None else self._ask(intent.replica, run)
        finish_intent(intent, holder=self.holder, now=timezone.now(), result=result, failed=result != "asked")

    def _ask(self, replica: Replica, run: GoldenRun) -> str:
        """The intent's result."""
        try:
            target = self._target(replica)
            questions = [question_from_json(content) for content in run.questions]
            if run.rollout_id is None:
                kept = self._record(target, run, questions)
            else:
                kept = self._compare(target, run, questions)
            return "asked" if kept else _TOO_LATE
        except _Ended:
            return _TOO_LATE
        except EngineUnreachable:
            code, text = "engine_unreachable", "The engine gave no answer in time."
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            # The edge of this loop: without a reason stored, the run would be begun again at each pass.
            logger.exception("golden prompts of %s failed", replica.pk)
            code, text = "internal_error", "The prompts could not be asked. The worker's log says more."
        fail_run(run.pk, code, text, now=timezone.now())
        return code

    def _compare(self, target: Target, run: GoldenRun, questions: list[Question]) -> bool:
        outcomes: list[Outcome] = []
        deadline = self.clock() + BUDGET_S
        for question in questions:
            left_s = deadline - self.clock()
            if left_s <= 0:
                break
            given = golden_answers.ask(target, question, limit_s=min(left_s, REQUEST_LIMIT_S))
            outcomes.append(compare(question, given))
            close_old_connections()
            if not note_outcomes(run.pk, outcomes):
                raise _Ended
        return store_run(run.pk, outcomes, now=timezone.now())

    def _record(self, target: Target, run: GoldenRun, questions: list[Question]) -> bool:
        answers: dict[str, Given] = {}
        deadline = self.clock() + BUDGET_S
        for question in questions:
            left_s = deadline - self.clock()
            if left_s <= 0:
                break
            answers[question.name] = golden_answers.record(
                target, question, limit_s=min(left_s, REQUEST_LIMIT_S)
            )
        close_old_connections()
        return store_recording(run.pk, answers, now=timezone.now())

    def _target(self, replica: Replica) -> Target:
        spec = self.make_spec(replica)
        facts = replica.release.version.facts or {}
        # As in the warm-up: a version whose config brings no template cannot chat.
        route = "chat" if facts.get("has_chat_template", True) else "completions"
        return Target(spec.address, spec.served_model_name, spec.engine_key, route)
