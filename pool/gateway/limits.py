"""Requests and tokens per minute of keys, lanes and models, shared by all gateway processes.

A request is checked against leases in memory. The ledger in Redis moves leases between processes, in the background:
`collect` says what it is to be asked, `absorb` takes its answer. Without Redis each process keeps to its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from pool.domain.gateway_settings import ModelSettings
from pool.domain.rate_limits import WINDOW_S, Share, plain_share
from pool.domain.routing_table import KeyRoute, LaneRoute
from pool.gateway.refusals import RateLimited

SYNC_S = 1.0
"""A limit that is in use meets the ledger so often; one that runs short, at each tick."""
LOST_S = 1.0
"""Without an answer of the ledger for so long, each process keeps to its share."""
_FORGOTTEN_AFTER_S = 3 * WINDOW_S
_MOST_CACHED = 20_000
_MOST_PER_SYNC = 1000
_SETTLED_S = 1.0
# One request per tick and limit; `settle` adds what the answer really took.


class LimitedModel(Protocol):
    """What is read of a model."""

    @property
    def name(self) -> str: ...

    @property
    def lanes(self) -> tuple[LaneRoute, ...]: ...

    @property
    def settings(self) -> ModelSettings: ...


class LeaseMissing(RateLimited):
    """The limit has room, but this process' lease of it has not: a few milliseconds' wait will tell."""


class Charge:
    """What one request took; `settle` or `give_back` it once."""

    __slots__ = ("requests", "taken_at_s", "tokens", "tokens_reserved")

    def __init__(
        self, requests: Sequence[Share], tokens: Sequence[Share], reserved: int, taken_at_s: float
    ) -> None:
        self.requests = requests
        self.tokens = tokens
        self.tokens_reserved = reserved
        self.taken_at_s = taken_at_s


class Limits:
    """All limits of this process."""

    def __init__(
        self, *, processes: int = 1, has_ledger: bool = False, window_s: float = WINDOW_S
    ) -> None: ...

    def check(
        self, key: KeyRoute, model: LimitedModel, lane: str, tokens: int, now_s: float
    ) -> Charge | None:
        """Takes one request and `tokens` of every limit that applies, or nothing. None if no limit applies.

        Raises RateLimited with the time after which it would pass; LeaseMissing is one that a `wait_for_lease` may mend.
        """
        raise NotImplementedError

    def settle(self, charge: Charge, actual_tokens: int | None, now_s: float) -> None:
        """`actual_tokens`: prompt and output as the engine counted; None = not known, the estimate stands."""

    def give_back(self, charge: Charge, now_s: float) -> None:
        """The request was refused for another reason before it reached an engine."""

    def wait_for_lease(self, retry: Callable[[], None]) -> None:
        """Calls `retry` once after the next answer of the ledger, or when it is found to be gone."""

    def describe(self, now_s: float) -> dict[str, Any]:
        raise NotImplementedError

    def collect(self, now_s: float) -> list[Share]:
        raise NotImplementedError

    def absorb(self, asked: Iterable[Share], answers: Sequence[Any], now_s: float) -> None: ...

    def note_lost(self, now_s: float) -> None: ...


__all__ = ["LOST_S", "SYNC_S", "Charge", "LeaseMissing", "LimitedModel", "Limits", "plain_share"]
