"""Which replicas go first when there are more than wished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pool.domain.replica import Phase

_VICTIM_ORDER = (Phase.FAILED, Phase.PENDING, Phase.STARTING, Phase.LOADING, Phase.WARMING, Phase.READY)


@dataclass(frozen=True, kw_only=True)
class Victim:
    id: str
    phase: Phase
    in_flight: int | None = None
    """None: not known, which counts as loaded."""


def pick_victims(replicas: Iterable[Victim], *, count: int) -> list[str]:
    """Ids of the surplus replicas that cost least to lose: failed, pending, coming up, idle, least loaded."""
    candidates = [replica for replica in replicas if replica.phase in _VICTIM_ORDER]
    candidates.sort(key=_cost_of_losing)
    return [victim.id for victim in candidates[:count]]


def _cost_of_losing(victim: Victim) -> tuple[int, bool, int, str]:
    return (_VICTIM_ORDER.index(victim.phase), victim.in_flight is None, victim.in_flight or 0, victim.id)
