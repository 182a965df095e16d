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
    Phase.ROLLING_BACK: frozenset({Phase.ROLLED_BACK, Phase.FAILED}),
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
    """What is stored of a rollout. `step`: index into `steps`, -1 before the first weight. `resumes`: while paused, the
    phase that was left. `weighted`: the candidate had weight once."""

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
    stable_complete: bool = True
    """Stable's ready replicas carry all of its weight."""


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
    """Put the plan from before in force and go to `rolling_back`."""

    code: str
    text: str


Action = Wait | Enter | RollBack
