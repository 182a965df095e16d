"""Filter and pick of a replica: least loaded by the gateway's own count, ties at random."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    in_flight: int
    ejected_until_s: float
    """Passed over before this time; 0 = not ejected."""


C = TypeVar("C", bound=Candidate)


def pick_replica(
    replicas: Sequence[C], *, tried: Collection[C], now_s: float, draw: Callable[[], float]
) -> C | None:
    """None if all were tried. `draw` gives a number in [0, 1).

    Ejected replicas are the last resort: the only replica left gets a trial instead of a hard refusal.
    """
    if len(replicas) == 1 and not tried:
        return replicas[0]
    fresh = [replica for replica in replicas if replica not in tried]
    if not fresh:
        return None
    sound = [replica for replica in fresh if replica.ejected_until_s <= now_s] or fresh
    least = min(replica.in_flight for replica in sound)
    tied = [replica for replica in sound if replica.in_flight == least]
    return tied[int(draw() * len(tied))]


def ejection_s(failures: int) -> float:
    """How long a replica is passed over after so many failures to connect in a row."""
    return min(10.0, 0.5 * 2.0 ** max(0, failures - 1))
