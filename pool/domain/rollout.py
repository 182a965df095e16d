"""Life of a rollout: its phases, what may follow on what, and the next action of the control side. Pure.

`decide` sees the stored state and the facts of this moment and names one action; it remembers nothing, so that a loop
that was killed at any point goes on from what is stored. Only `pool/services/rollouts.py` writes a phase, by
compare-and-set on (id, phase, step), along MOVES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from pool.domain.spans import span_in_words

PLAN_WAIT = timedelta(minutes=2)
"""From a wish to replicas that exist."""
PREPARE_WAIT = timedelta(hours=2)
"""Loading with progress: as long as one replica may start at all."""
WARM_WAIT = timedelta(minutes=30)
"""Warm-up and golden prompts after the last replica has loaded."""
STEP_WAIT = timedelta(hours=24)
"""A step that is neither passed nor refuted by then waits for a person, and says so."""
ROLLBACK_WAIT = timedelta(minutes=10)
"""Until every gateway has acknowledged and stable carries its weight."""


class Phase(StrEnum):
    PLANNED = "planned"
    """Accepted; the candidate's replicas are not wished yet. Control moves it on."""
    PREPARING = "preparing"
    """The candidate's replicas load. Nodes work; control watches."""
    WARMING = "warming"
    """All loaded; warm-up, prefixes and golden prompts. No user request goes there."""
    STEPPING = "stepping"
    """The candidate has the weight of the step; the gates gather evidence."""
    HOLDING = "holding"
    """The candidate has all of it, stable is still warm."""
    PROMOTED = "promoted"
    """Final: stable may stop. Only a plan rollback goes back from here."""
    ROLLING_BACK = "rolling_back"
    """The plan from before is in force; gateways acknowledge, streams end as chosen, stable fills up if it has to."""
    ROLLED_BACK = "rolled_back"
    """Final: the candidate has no weight and, at every gateway, no request of this rollout."""
    PAUSED = "paused"
    """An operator stopped the clock; weights stay and the guard watches on."""
    FAILED = "failed"
    """Final: it never had weight and cannot get there, or its rollback could not be proven complete."""


FINAL = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.FAILED})
ACTIVE = frozenset(Phase) - FINAL

MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.PLANNED: frozenset({Phase.PREPARING, Phase.PAUSED, Phase.ROLLED_BACK, Phase.FAILED}),
    Phase.PREPARING: frozenset({Phase.WARMING, Phase.PAUSED, Phase.ROLLED_BACK, Phase.FAILED}),
    Phase.WARMING: frozenset(
        {Phase.STEPPING, Phase.PREPARING, Phase.PAUSED, Phase.ROLLED_BACK, Phase.FAILED}
    ),
    Phase.STEPPING: frozenset({Phase.STEPPING, Phase.HOLDING, Phase.PAUSED, Phase.ROLLING_BACK}),
    Phase.HOLDING: frozenset({Phase.PROMOTED, Phase.PAUSED, Phase.ROLLING_BACK}),
    Phase.PAUSED: frozenset(
        {Phase.PLANNED, Phase.PREPARING, Phase.WARMING, Phase.STEPPING, Phase.HOLDING}
        | {Phase.ROLLING_BACK, Phase.ROLLED_BACK}
    ),
    Phase.ROLLING_BACK: frozenset({Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.FAILED}),
    Phase.PROMOTED: frozenset(),
    Phase.ROLLED_BACK: frozenset(),
    Phase.FAILED: frozenset(),
}

OWNERS: dict[Phase, str] = {
    Phase.PLANNED: "control",
    Phase.PREPARING: "nodes",
    Phase.WARMING: "nodes",
    Phase.STEPPING: "control",
    Phase.HOLDING: "control",
    Phase.ROLLING_BACK: "gateways",
    Phase.PAUSED: "operator",
    Phase.PROMOTED: "",
    Phase.ROLLED_BACK: "",
    Phase.FAILED: "",
}

LIMITS: dict[Phase, timedelta] = {
    Phase.PLANNED: PLAN_WAIT,
    Phase.PREPARING: PREPARE_WAIT,
    Phase.WARMING: WARM_WAIT,
    Phase.STEPPING: STEP_WAIT,
    Phase.ROLLING_BACK: ROLLBACK_WAIT,
}
"""`holding` ends after the rollout's own hold time; `paused` only by a person."""


class Judgement(StrEnum):
    """What the gates say together: the worst of them that acts (dry-run gates only report)."""

    WORSE = "worse"
    NOT_YET = "not_yet"
    NOT_WORSE = "not_worse"


@dataclass(frozen=True, slots=True)
class Step:
    """`lanes` empty: all of them. `min_requests`: of the candidate in each lane of the step, since it began."""

    weight: int
    soak_s: int = 300
    min_requests: int = 200
    lanes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What is stored of a rollout. `step`: index into `steps`, -1 before the first weight, their number while holding.
    `resumes`: while paused, the phase that was left. `weighted`: the candidate had weight once."""

    phase: Phase
    step: int
    entered_at: datetime
    steps: tuple[Step, ...]
    hold_s: int
    resumes: Phase | None = None
    weighted: bool = False
    promote_asked: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds now. Texts are empty where nothing is in the way.

    `lacks_capacity`: why the candidate cannot carry the next (or current) step's weight. `requests`: of the candidate
    per lane since the step began; a lane without any traffic of either release is not in `lanes_in_use`.
    """

    now: datetime
    replicas_exist: bool = False
    loaded: bool = False
    ready: bool = False
    failed: str = ""
    """Why the candidate cannot start: permanent, or given up."""
    golden: Judgement = Judgement.NOT_YET
    golden_text: str = ""
    judgement: Judgement = Judgement.NOT_YET
    judgement_text: str = ""
    broken_limit: str = ""
    """A fixed limit that the candidate breaks."""
    lacks_capacity: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    lanes_in_use: frozenset[str] = frozenset()
    in_force: bool = True
    """The plan that this rollout wrote last is still the model's plan in force."""
    acknowledged: bool = False
    """Every live gateway has applied the table of the rollback."""
    silent: tuple[str, ...] = ()
    """Gateways that say nothing."""
    drained: bool = False
    """Nothing runs at the candidate that has to be waited for."""
    stable_percent: int = 100
    """Share of its weight, in whole percents, that stable's ready replicas carry now."""
    stable_grew: bool = False
    """While rolling back: it carries more, in some lane, than the plan in force gives it."""
    given_back_percent: int = 100
    """While rolling back: the share of its weight that stable has in the plan in force."""
    gave_room: bool = False
    """Stable's replicas had stopped for the candidate's: they load again once those are gone."""
    places: str = ""
    """Why a replica of the candidate has no place yet."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now. `next_action`: what is waited for, in words."""

    next_action: str


@dataclass(frozen=True, slots=True)
class Enter:
    """Move to the phase; with `step`, put that step's weights in force in the same transaction."""

    phase: Phase
    code: str
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RollBack:
    """Put the plan from before in force, as far as stable carries it, and go to (or stay in) `rolling_back`."""

    code: str
    text: str


Action = Wait | Enter | RollBack


_WRONG_ANSWER = "A golden prompt is answered in another way."


def decide(state: State, facts: Facts) -> Action:
    """The next action. What guards the weights comes first, whatever the phase."""
    danger = guard(state, facts)
    if danger is not None:
        return danger
    if state.phase in FINAL:
        return Wait("")
    if state.phase is Phase.PAUSED:
        return Wait("paused: an operator resumes it or takes it back; the guard watches on")
    return _NEXT[state.phase](state, facts)


def guard(state: State, facts: Facts) -> RollBack | None:
    """In every phase in which the candidate has weight, paused and holding included: whether it must be taken back."""
    if not has_weight(state):
        return None
    if facts.broken_limit:
        return RollBack("limit_broken", facts.broken_limit)
    if facts.judgement is Judgement.WORSE:
        return RollBack("worse", facts.judgement_text or "A gate calls the candidate worse.")
    if facts.golden is Judgement.WORSE:
        return RollBack("golden_prompts", facts.golden_text or _WRONG_ANSWER)
    return None


def has_weight(state: State) -> bool:
    if state.phase is Phase.PAUSED:
        return state.weighted and state.resumes in (Phase.STEPPING, Phase.HOLDING)
    return state.phase in (Phase.STEPPING, Phase.HOLDING)


def coming_step(state: State, now: datetime) -> int | None:
    """Number of the step that could begin now if nothing were in the way: their count stands for full weight. None:
    none could."""
    if state.phase is Phase.WARMING:
        return 0
    if state.phase is not Phase.STEPPING:
        return None
    if state.promote_asked:
        return len(state.steps)
    soaked = (now - state.entered_at).total_seconds() >= state.steps[state.step].soak_s
    return state.step + 1 if soaked else None


def deadline_of(phase: Phase, hold_s: int, now: datetime) -> datetime | None:
    if phase is Phase.HOLDING:
        return now + timedelta(seconds=hold_s)
    limit = LIMITS.get(phase)
    return None if limit is None else now + limit


def _from_planned(state: State, facts: Facts) -> Action:
    if facts.failed:
        return Enter(Phase.FAILED, "candidate_failed", facts.failed)
    if facts.replicas_exist:
        return Enter(Phase.PREPARING, "replicas_asked", "The candidate's replicas are on their way.")
    return _late(state, facts) or Wait("the candidate's replicas are asked for")


def _from_preparing(state: State, facts: Facts) -> Action:
    if facts.failed:
        return Enter(Phase.FAILED, "candidate_failed", facts.failed)
    if facts.loaded:
        return Enter(Phase.WARMING, "loaded", "Every replica of the candidate has loaded.")
    return _late(state, facts) or Wait(facts.places or "the candidate's replicas load")


def _from_warming(state: State, facts: Facts) -> Action:
    if facts.failed:
        return Enter(Phase.FAILED, "candidate_failed", facts.failed)
    if not facts.loaded:
        return Enter(Phase.PREPARING, "replica_lost", "A replica of the candidate has to load again.")
    if facts.golden is Judgement.WORSE:
        return Enter(Phase.FAILED, "golden_prompts", facts.golden_text or _WRONG_ANSWER)
    late = _late(state, facts)
    if not facts.ready:
        return late or Wait("the candidate's replicas warm up")
    if facts.golden is not Judgement.NOT_WORSE:
        return late or Wait(facts.golden_text or "the golden prompts are asked")
    if facts.lacks_capacity:
        return late or Wait(facts.lacks_capacity)
    return _to_step(state, 0)


def _from_stepping(state: State, facts: Facts) -> Action:
    if not facts.in_force:
        return Wait("another plan was put in force: take the rollout back, or put its plan in force again")
    if state.promote_asked:
        return Wait(facts.lacks_capacity) if facts.lacks_capacity else _to_holding(state, "promote_asked")
    step = state.steps[state.step]
    held_up = _soaking(step, state, facts) or _short_of_requests(step, facts)
    if held_up:
        return Wait(held_up)
    if facts.judgement is not Judgement.NOT_WORSE:
        return Wait(facts.judgement_text or "the gates have not seen enough yet")
    if facts.golden is not Judgement.NOT_WORSE:
        return Wait(facts.golden_text or "the golden prompts are asked")
    if facts.lacks_capacity:
        return Wait(facts.lacks_capacity)
    if state.step + 1 < len(state.steps):
        return _to_step(state, state.step + 1)
    return _to_holding(state, "steps_passed")


def _from_holding(state: State, facts: Facts) -> Action:
    if not facts.in_force:
        return Wait("another plan was put in force: take the rollout back, or put its plan in force again")
    left_s = state.hold_s - (facts.now - state.entered_at).total_seconds()
    if left_s > 0:
        return Wait(f"holding for another {span_in_words(left_s)}; the stable release stays warm")
    if not sum(facts.requests.values()):
        return Wait("no request came while it was held: nothing is known, so nothing is promoted")
    return Enter(Phase.PROMOTED, "held", "It was held at full weight without a broken limit.")


def _from_rolling_back(state: State, facts: Facts) -> Action:
    if facts.stable_grew:
        return RollBack("stable_grew", f"Stable carries {facts.stable_percent} % of its weight now.")
    if facts.given_back_percent < 100:
        return Wait(f"stable starts: it carries {facts.given_back_percent} % of its weight so far")
    if not facts.acknowledged or facts.silent:
        return _unproven(state, facts)
    if not facts.drained:
        return Wait("streams end at the candidate")
    if facts.gave_room and facts.stable_percent < 100:
        return _stable_returns(state, facts)
    return Enter(
        Phase.ROLLED_BACK, "proven", "Every gateway serves the plan, and nothing runs at the candidate."
    )


def _unproven(state: State, facts: Facts) -> Action:
    if facts.silent:
        return Wait(
            f"not proven: {', '.join(facts.silent)} is silent and may still send. "
            "Fencing stops the candidate's engines"
        )
    if facts.now - state.entered_at >= ROLLBACK_WAIT:
        return Enter(Phase.FAILED, "not_acknowledged", "Gateways did not apply the rollback's plan in time.")
    return Wait("gateways apply the plan")


def _stable_returns(state: State, facts: Facts) -> Action:
    if facts.now - state.entered_at >= PREPARE_WAIT:
        return Enter(Phase.FAILED, "stable_incomplete", "The stable release did not come back in time.")
    return Wait(f"the stable release loads again: {facts.stable_percent} % of its replicas are ready")


_NEXT = {
    Phase.PLANNED: _from_planned,
    Phase.PREPARING: _from_preparing,
    Phase.WARMING: _from_warming,
    Phase.STEPPING: _from_stepping,
    Phase.HOLDING: _from_holding,
    Phase.ROLLING_BACK: _from_rolling_back,
}


def _late(state: State, facts: Facts) -> Action | None:
    """Past the deadline before the first weight nothing is lost by giving up, and much by waiting unseen (FC-18)."""
    if facts.now - state.entered_at < LIMITS[state.phase]:
        return None
    why = facts.lacks_capacity if state.phase is Phase.WARMING else facts.places
    return Enter(
        Phase.FAILED,
        "deadline",
        f"It stayed in '{state.phase}' for over {span_in_words(LIMITS[state.phase].total_seconds())}"
        f"{f': {why}' if why else ''}. Nothing was sent to the candidate.",
    )


def _to_step(state: State, number: int) -> Enter:
    step = state.steps[number]
    where = f" in {', '.join(step.lanes)}" if step.lanes else ""
    text = f"Step {number + 1} of {len(state.steps)}: {step.weight} %{where}."
    return Enter(Phase.STEPPING, "step", text, step=number)


def _to_holding(state: State, code: str) -> Enter:
    return Enter(Phase.HOLDING, code, "The candidate has all of the traffic.", step=len(state.steps))


def _soaking(step: Step, state: State, facts: Facts) -> str:
    left_s = step.soak_s - (facts.now - state.entered_at).total_seconds()
    return f"soaking for another {span_in_words(left_s)}" if left_s > 0 else ""


def _short_of_requests(step: Step, facts: Facts) -> str:
    """A lane that nobody uses holds nothing up, but without any traffic at all nothing passes (FC-11)."""
    lanes = facts.lanes_in_use & frozenset(step.lanes) if step.lanes else facts.lanes_in_use
    if not lanes:
        return "no traffic: nothing is known of the candidate, so nothing moves"
    short = {lane: facts.requests.get(lane, 0) for lane in sorted(lanes)}
    missing = [
        f"{lane} {seen} of {step.min_requests}" for lane, seen in short.items() if seen < step.min_requests
    ]
    return f"waiting for requests: {', '.join(missing)}" if missing else ""
