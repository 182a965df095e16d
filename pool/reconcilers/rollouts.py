"""Moves rollouts on, and takes back what does harm. Both read the database alone; neither needs Redis.

Two passes, so that a slow advance never delays the guard: `run_guard` judges and takes back in every phase in which the
candidate has weight, `run_pass` does everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial

from django.db import DatabaseError, InterfaceError, transaction

from pool.domain.golden import stage_of
from pool.domain.rollout import Phase, RollBack, decide, guard, has_weight
from pool.models import Rollout
from pool.queries.rollouts import list_active, load_facts, state_of
from pool.services.beside_rollouts import find_other_plan
from pool.services.golden import ask_golden
from pool.services.rollout_moves import apply, ask_replicas
from pool.services.rollout_room import look_after_room
from pool.services.rollouts import lock_rollout
from pool.services.verdicts import judge

logger = logging.getLogger(__name__)
_COMING = (Phase.PREPARING, Phase.WARMING)
_UNWEIGHTED = (Phase.PLANNED, *_COMING)


def run_pass(now: datetime) -> dict[str, object]:
    """One action for each active rollout; one that fails holds no other up."""
    moved = [rollout.pk for rollout in list_active() if _try(partial(advance, rollout.pk, now), rollout.pk)]
    return {"moved": moved} if moved else {}


def run_guard(now: datetime) -> dict[str, object]:
    """Judges every candidate with weight; returns those that it took back."""
    taken = [rollout.pk for rollout in list_active() if _try(partial(_watch, rollout, now), rollout.pk)]
    return {"taken_back": taken} if taken else {}


def _watch(rollout: Rollout, now: datetime) -> bool:
    if not has_weight(state_of(rollout)):
        return False
    try:
        judge(rollout, now)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # What was found before still counts, and so do the golden prompts.
        logger.exception("the gates of rollout %s could not be read", rollout.pk)
        rollout.refresh_from_db()
    danger = guard(state_of(rollout), load_facts(rollout, now))
    return danger is not None and _act(rollout.pk, danger, now)


def _try(work: Callable[[], bool], name: str) -> bool:
    """Database errors end the pass: the next one begins anew."""
    try:
        return work()
    except (DatabaseError, InterfaceError):
        raise
    except Exception:
        logger.exception("rollout %s: a pass failed", name)
        return False


def advance(rollout_id: str, now: datetime) -> bool:
    """Decided and done under the model's lock: nothing moves in between."""
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        other = find_other_plan(rollout) if rollout.phase in _UNWEIGHTED else None
        if other is not None:
            return apply(rollout, other, now=now)
        if rollout.phase == Phase.PLANNED:
            ask_replicas(rollout)
        room = look_after_room(rollout, now=now) if rollout.phase in _COMING else None
        if room is not None:
            return apply(rollout, room, now=now)
        if rollout.phase in (Phase.WARMING, Phase.STEPPING, Phase.HOLDING):
            ask_golden(rollout, stage_of(rollout.step, len(rollout.steps)), now)
        return apply(rollout, decide(state_of(rollout), load_facts(rollout, now)), now=now)


def _act(rollout_id: str, danger: RollBack, now: datetime) -> bool:
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        if not has_weight(state_of(rollout)):
            return False
        return apply(rollout, danger, now=now)
