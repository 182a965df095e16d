"""Carries out what the ladder decides about each lane: restrictions begun, prolonged and taken back."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pool.domain.alerting import Level
from pool.domain.errors import PoolError
from pool.domain.ladder import ACTING, LASTS, Claim, Decision, Past, Policy, Step, decide_actions
from pool.domain.resource_rules import Rule
from pool.domain.slo_signals import SloRef
from pool.queries.slos import HeldNow, list_held
from pool.services.alerts import Standing, note_action
from pool.services.audit import loop_actor
from pool.services.restrictions import AUTOMATIC, RestrictionWish, prolong, restrict, take_back

logger = logging.getLogger(__name__)

ACTING_RULE: Final = "ttft_p99"
"""Holding requests back makes the others faster; it mends no errors, so an error budget that burns only tells."""


@dataclass
class Scope:
    """One lane of a model, or all of it; a rehearsal (`dry_run`) has a scope of its own."""

    model: str
    lane: str
    dry_run: bool
    claims: list[Claim] = field(default_factory=list)
    alerts: list[tuple[Level, int]] = field(default_factory=list)
    held: list[HeldNow] = field(default_factory=list)

    @property
    def alert(self) -> int | None:
        """The worst one's id."""
        return max(self.alerts)[1] if self.alerts else None

    def find(self, step: Step) -> list[int]:
        return [one.id for one in self.held if one.past.step is step and one.past.ended_at is None]


def act_on(
    standings: Sequence[Standing], slos: Sequence[SloRef], rules: Mapping[str, Rule], now: datetime
) -> dict[str, object]:
    """What was done, for the loop's report."""
    counts: dict[str, int] = defaultdict(int)
    for scope in _scopes(standings, slos, rules, now):
        try:
            decision = decide_actions(scope.claims, _history(scope), now=now)
            _carry_out(scope, decision, now)
        except PoolError as error:
            # The lane or the model may be gone since the alert began; the others go on.
            logger.warning("an action was refused: %s", error.message, extra={"code": error.code})
            counts["refused"] += 1
            continue
        counts["begun"] += len(decision.begin)
        counts["ended"] += len(decision.end)
        counts["holding"] += len(decision.renew)
    return {name: count for name, count in counts.items() if count}


def _scopes(
    standings: Sequence[Standing], slos: Sequence[SloRef], rules: Mapping[str, Rule], now: datetime
) -> Iterable[Scope]:
    found: dict[tuple[str, str, bool], Scope] = {}
    by_id = {slo.id: slo for slo in slos}
    for standing in standings:
        policy = _policy(standing, by_id, rules)
        if policy is None:
            continue
        signal = standing.signal
        key = (signal.model, signal.lane, policy.dry_run)
        scope = found.setdefault(key, Scope(*key))
        scope.claims.append(Claim(standing.level, policy, signal.reading.is_known))
        if standing.alert is not None and standing.level in ACTING:
            scope.alerts.append((standing.level, standing.alert))
    for held in list_held(AUTOMATIC, since=now - timedelta(hours=1)):
        key = (held.model, held.lane, held.dry_run)
        found.setdefault(key, Scope(*key)).held.append(held)
    return found.values()


def _policy(standing: Standing, slos: Mapping[int, SloRef], rules: Mapping[str, Rule]) -> Policy | None:
    """None where nothing is done about the signal but telling."""
    signal = standing.signal
    if signal.slo is not None:
        if signal.rule != ACTING_RULE:
            return None
        slo = slos[signal.slo]
        holds = [at for at in (slo.held_until, standing.held_until) if at is not None]
        return slo.settings.policy(max(holds, default=None))
    rule = rules.get(signal.rule)
    if rule is None or not rule.steps or not signal.model:
        return None
    return Policy(rule.steps, held_until=standing.held_until)


def _history(scope: Scope) -> list[Past]:
    """What a person made counts as holding, so that it is not made twice."""
    return [one.past for one in scope.held]


def _carry_out(scope: Scope, decision: Decision, now: datetime) -> None:
    for step in decision.begin:
        _begin(scope, step, now)
    if decision.renew:
        prolong([row for step in decision.renew for row in scope.find(step)], until=now + LASTS)
    automatic = {one.id for one in scope.held if one.is_automatic}
    for step in decision.end:
        for row in automatic.intersection(scope.find(step)):
            ended = take_back(row, actor=loop_actor(AUTOMATIC), now=now, reason="recovered")
            if ended.alert_id is not None:
                note_action(ended.alert_id, "ended", now=now, step=step.value, reason="recovered")
    for blocked in decision.blocked:
        if scope.alert is not None:
            note_action(scope.alert, "blocked", now=now, step=blocked.step.value, reason=blocked.reason)


def _begin(scope: Scope, step: Step, now: datetime) -> None:
    wish = RestrictionWish(step.value, scope.lane, lasts=LASTS, reason=f"alert {scope.alert}")
    made = restrict(
        scope.model, wish, actor=loop_actor(AUTOMATIC), now=now, alert=scope.alert, dry_run=scope.dry_run
    )
    if scope.alert is not None:
        note_action(
            scope.alert, "acted", now=now, step=step.value, restriction=made.pk, dry_run=scope.dry_run
        )
