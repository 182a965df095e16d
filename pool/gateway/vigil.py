"""The clock of what is known about failures: hung engines, scores that time forgives, suspects that are forgotten,
and what the gateway processes tell each other of both.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pool.domain.progress import Sign
from pool.domain.quarantine import Quarantine
from pool.gateway.replicas import LiveReplica
from pool.gateway.shared_view import SharedView

BREAKERS, QUARANTINE = "breakers", "quarantine"
"""Sections of the shared view: engine → opinion, and hash → seconds left."""


class Vigil:
    """`replicas`: all that are known, listed or not. Call `sweep` with the time-outs and `hear` after each absorb."""

    def __init__(self, replicas: Callable[[], Iterable[LiveReplica]], quarantine: Quarantine) -> None:
        self._replicas = replicas
        self._quarantine = quarantine
        self._swept_at_s: float | None = None

    def share(self, view: SharedView) -> None:
        view.provide(BREAKERS, self.list_opinions)
        view.provide(QUARANTINE, self._quarantine.share)

    def list_opinions(self, now_s: float) -> dict[str, Any]:
        """By engine (replica and generation); only what is open by own experience."""
        found = (
            (replica.engine, replica.breaker.share_opinion(now_s))
            for replica in self._replicas()
            if not replica.breaker.closed
        )
        return {engine: opinion for engine, opinion in found if opinion is not None}

    def hear(self, view: SharedView, now_s: float) -> None:
        """While Redis is silent nobody says anything: each process goes by what it knows itself."""
        opinions: dict[str, list[Mapping[str, Any]]] = {}
        for _, told in view.list_sections(BREAKERS, now_s):
            for engine, opinion in _read_opinions(told):
                opinions.setdefault(engine, []).append(opinion)
        for replica in self._replicas():
            if replica.breaker.heard or replica.engine in opinions:
                replica.breaker.hear_opinions(opinions.get(replica.engine, ()), now_s)
        self._quarantine.hear(
            (_read_arrests(told) for _, told in view.list_sections(QUARANTINE, now_s)), now_s
        )

    def sweep(self, now_s: float) -> None:
        passed_s = now_s - self._swept_at_s if self._swept_at_s is not None else 0.0
        self._swept_at_s = now_s
        for replica in self._replicas():
            breaker = replica.breaker
            sign = replica.watch.look(replica, now_s)
            if sign is Sign.HUNG:
                breaker.note_hung(now_s)
            elif sign is Sign.MOVED:
                breaker.note_progress(now_s)
            if breaker.error_score:
                breaker.fade(passed_s)
        if self._quarantine.active:
            self._quarantine.sweep(now_s)


def _read_opinions(told: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A process of another version may say it in another way: then it is as if it said nothing."""
    for engine, opinion in told.items() if isinstance(told, dict) else ():
        if isinstance(opinion, dict) and all(_is_number(opinion.get(name)) for name in ("age_s", "left_s")):
            yield engine, {"reason": "", **opinion}


def _read_arrests(told: object) -> dict[str, float]:
    entries = told.items() if isinstance(told, dict) else ()
    return {request: left_s for request, left_s in entries if _is_number(left_s)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
