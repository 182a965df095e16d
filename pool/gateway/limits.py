"""Requests and tokens per minute of keys, lanes and models, shared by all gateway processes.

A request is checked against leases in memory. The ledger in Redis moves leases between processes, in the background:
`collect` says what it is to be asked, `absorb` takes its answer. Without Redis each process keeps to its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pool.domain.gateway_settings import ModelSettings
from pool.domain.rate_limits import WINDOW_S, Share, plain_share
from pool.domain.routing_table import KeyRoute, LaneRoute
from pool.gateway.ledger import Answer
from pool.gateway.refusals import RateLimited

SYNC_S = 1.0
"""A limit that is in use meets the ledger so often; one that runs short, at each tick."""
LOST_S = 1.0
"""Without an answer of the ledger for so long, each process keeps to its share."""
_SETTLED_S = 1.0
"""Until the others have heard of a new process it takes less than its share."""
_HOT_S = 3 * SYNC_S
_MOST_KNOWN = 20_000
_MOST_PER_SYNC = 500


class LimitedModel(Protocol):
    """What is read of a model."""

    @property
    def name(self) -> str: ...

    @property
    def lanes(self) -> tuple[LaneRoute, ...]: ...

    @property
    def settings(self) -> ModelSettings: ...


class LeaseMissing(RateLimited):
    """The limit has room, but this process' lease has not: `Limits.wait_for_lease` tells in some milliseconds."""


class Charge:
    """What one request took; `settle` or `give_back` it once."""

    __slots__ = ("shares", "taken_at_s", "tokens")

    def __init__(self, shares: _Shares, tokens: int, taken_at_s: float) -> None:
        self.shares = shares
        self.tokens = tokens
        self.taken_at_s = taken_at_s


class _Shares:
    """The limits that apply to one key, model and lane, as one table names them."""

    __slots__ = ("key", "model", "requests", "tokens")

    def __init__(self, key: KeyRoute, model: LimitedModel) -> None:
        self.key = key
        self.model = model
        self.requests: list[Share] = []
        self.tokens: list[Share] = []


class Limits:
    """All limits of this process. `has_ledger`: Redis is configured, whether it answers or not."""

    def __init__(self, *, processes: int = 1, has_ledger: bool = False, window_s: float = WINDOW_S) -> None:
        self.processes = processes
        self.wake: Callable[[], None] = _ignore
        """Called when a limit should meet the ledger before the next tick."""
        self._window_s = window_s
        self._has_ledger = has_ledger
        self.is_settled = not has_ledger
        """The other processes know of this one, so that it may take its whole share."""
        self._settles_at_s: float | None = None
        self._is_led = has_ledger
        """The ledger answers, or was not asked for long enough to call it gone."""
        self._found: dict[tuple[str, str, str], _Shares] = {}
        self._shares: dict[str, Share] = {}
        self._labels: dict[str, str] = {}
        self._active: dict[str, Share] = {}
        self._waiting: list[Callable[[], None]] = []

    # For each request.
    def check(
        self, key: KeyRoute, model: LimitedModel, lane: str, tokens: int, now_s: float
    ) -> Charge | None:
        """Takes one request and `tokens` of every limit that applies, or nothing. None if no limit applies.

        Raises RateLimited with the time after which it would pass; LeaseMissing is one that waiting may mend.
        """
        shares = self._found.get((key.digest, model.name, lane))
        if shares is None or shares.key is not key or shares.model is not model:
            shares = self._find(key, model, lane)
        if not shares.requests and not shares.tokens:
            return None
        for share in shares.requests:
            if not share.has_room(1, now_s):
                self._refuse(share, 1, now_s)
        for share in shares.tokens:
            if not share.has_room(tokens, now_s):
                self._refuse(share, tokens, now_s)
        return self._charge(shares, tokens, now_s)

    def settle(self, charge: Charge, actual_tokens: int | None, now_s: float) -> None:
        """`actual_tokens`: prompt and output as the engine counted; None = not known, the estimate stands."""
        if actual_tokens is not None and actual_tokens != charge.tokens:
            for share in charge.shares.tokens:
                share.settle(charge.tokens, actual_tokens, taken_at_s=charge.taken_at_s, now_s=now_s)

    def give_back(self, charge: Charge, now_s: float) -> None:
        """The request was refused for another reason before it reached an engine."""
        for share in charge.shares.requests:
            share.settle(1, 0, taken_at_s=charge.taken_at_s, now_s=now_s)
        self.settle(charge, 0, now_s)

    def wait_for_lease(self, retry: Callable[[], None]) -> None:
        """Calls `retry` once, after the next answer of the ledger or when it is found to be gone."""
        self._waiting.append(retry)

    def _charge(self, shares: _Shares, tokens: int, now_s: float) -> Charge:
        for share in shares.requests:
            self._take(share, 1, now_s)
        for share in shares.tokens:
            self._take(share, tokens, now_s)
        return Charge(shares, tokens, now_s)

    def _take(self, share: Share, amount: int, now_s: float) -> None:
        was_pressed = share.is_pressed
        share.take(amount, now_s)
        if not share.is_active:
            self._activate(share)
        if not was_pressed and share.is_pressed and share.cap < share.limit:
            self.wake()

    def _refuse(self, share: Share, amount: int, now_s: float) -> None:
        share.note_refused(amount)
        self._activate(share)
        unit = "tokens" if share.id.endswith(":t") else "requests"
        text = f"The limit of {share.limit} {unit} a minute of {self._labels[share.id]} is used up."
        if amount > share.limit:
            text = f"The request needs {amount} tokens, but {self._labels[share.id]} may use {share.limit} a minute."
        kind: type[RateLimited] = RateLimited
        if self._is_led and amount <= share.limit and not share.is_full_everywhere(amount):
            kind = LeaseMissing
            self.wake()
        raise kind(text, retry_after_s=share.retry_after_s(amount, now_s), limit=share.limit, unit=unit)

    def _activate(self, share: Share) -> None:
        share.is_active = True
        self._active[share.id] = share

    # Which limits there are.
    def _find(self, key: KeyRoute, model: LimitedModel, lane: str) -> _Shares:
        if len(self._found) >= _MOST_KNOWN:
            self._found.clear()
        shares = self._found[key.digest, model.name, lane] = _Shares(key, model)
        for name, label, holder in _list_holders(key, model, lane):
            if holder.requests_per_min is not None:
                shares.requests.append(self._open(f"{name}:r", label, holder.requests_per_min))
            if holder.tokens_per_min is not None:
                shares.tokens.append(self._open(f"{name}:t", label, holder.tokens_per_min))
        return shares

    def _open(self, name: str, label: str, limit: int) -> Share:
        """A changed limit keeps what was used of it."""
        self._labels[name] = label
        share = self._shares.get(name)
        if share is None:
            self._forget_idle()
            share = self._shares[name] = Share(name, limit, window_s=self._window_s)
            share.cap = self._plain_share(limit)
        elif share.limit != limit:
            share.limit = limit
            share.cap = min(share.cap, limit) if share.is_leased else self._plain_share(limit)
            share.is_pressed = True
        return share

    def _forget_idle(self) -> None:
        if len(self._shares) >= _MOST_KNOWN:
            self._shares = dict(self._active)
            self._labels = {name: self._labels[name] for name in self._active if name in self._labels}
            self._found.clear()

    def _plain_share(self, limit: int) -> int:
        return plain_share(limit, self.processes, has_ledger=self._has_ledger, settled=self.is_settled)

    # With the ledger.
    @property
    def needs_ledger(self) -> bool:
        """False while this process is the only one and no limit is in use: nothing is to be learned."""
        return bool(self._active) or self.processes > 1 or not self.is_settled

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def count_processes(self, processes: int, now_s: float) -> None:
        """At each tick; lets a new process settle in."""
        settles_at_s = self._settles_at_s
        settles = not self.is_settled and settles_at_s is not None and now_s >= settles_at_s
        if processes == self.processes and not settles:
            return
        self.processes = processes
        self.is_settled = self.is_settled or settles
        self._renew_caps()

    def collect(self, now_s: float) -> list[Share]:
        """What is to meet the ledger now."""
        due: list[Share] = []
        for share in list(self._active.values()):
            if share.is_pressed or now_s >= share.next_sync_s:
                if not share.is_pressed and share.is_idle(now_s):
                    del self._active[share.id]
                    share.forget_lease(self._plain_share(share.limit))
                elif len(due) < _MOST_PER_SYNC:
                    share.next_sync_s = now_s + SYNC_S
                    due.append(share)
        return due

    def absorb(self, asked: Sequence[Share], answer: Answer, now_s: float) -> bool:
        """True if a cap sank: the ledger is to be told."""
        has_sunk = False
        self._is_led = True
        if self._settles_at_s is None:
            self._settles_at_s = now_s + (_SETTLED_S if self.processes > 1 else 0.0)
            self.count_processes(self.processes, now_s)
        for share, entry in zip(asked, answer.entries, strict=True):
            elsewhere_s = entry.free_elsewhere_in_s
            share.free_elsewhere_at_s = None if elsewhere_s is None else now_s + elsewhere_s
            if share.accept(entry.cap, entry.others_used, used_before=entry.used_before, now_s=now_s):
                share.is_pressed = has_sunk = True
        for name, limit in answer.in_use:
            self._note_in_use(name, limit, now_s)
        for name in answer.short:
            if name in self._active and self._active[name].has_spare:
                self._active[name].is_pressed = True
        self._call_waiting()
        return has_sunk

    def note_lost(self, now_s: float) -> None:
        """At each tick without an answer for LOST_S."""
        self._is_led = False
        if not self.is_settled:
            self.is_settled = True
            self._renew_caps()
        for share in self._active.values():
            share.hold_alone(plain_share(share.limit, self.processes, has_ledger=False), now_s)
        self._call_waiting()

    def _note_in_use(self, name: str, limit: int, now_s: float) -> None:
        share = self._shares.get(name)
        if share is None:
            share = self._open(name, name, limit)
        share.hot_until_s = now_s + _HOT_S
        if not share.is_active:
            self._activate(share)
            share.is_pressed = True

    def _renew_caps(self) -> None:
        for share in self._shares.values():
            if not share.is_leased:
                share.cap = self._plain_share(share.limit)

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for retry in waiting:
            retry()

    def describe(self, now_s: float) -> dict[str, Any]:
        """For pages: the limits in use, with what this process took and may take, and what the others took."""
        return {
            "processes": self.processes,
            "limits": [_describe(share, self._labels[share.id], now_s) for share in self._active.values()],
        }


class _Holder(Protocol):
    @property
    def requests_per_min(self) -> int | None: ...

    @property
    def tokens_per_min(self) -> int | None: ...


def _list_holders(key: KeyRoute, model: LimitedModel, lane: str) -> Iterator[tuple[str, str, _Holder]]:
    """Name in the ledger, name for people, and who has the limit."""
    yield f"key:{key.digest[:16]}", f"the key {key.name!r}", key
    yield f"model:{model.name}", f"the model {model.name!r}", model.settings
    for route in model.lanes:
        if route.name == lane:
            yield f"lane:{model.name}:{lane}", f"the lane {lane!r} of {model.name!r}", route.settings


def _describe(share: Share, label: str, now_s: float) -> dict[str, Any]:
    share.window.expire(now_s)
    others = share.others_used
    return {
        "id": share.id,
        "of": label,
        "unit": "tokens" if share.id.endswith(":t") else "requests",
        "limit": share.limit,
        "used_here": share.window.used,
        "cap_here": share.cap,
        "used": None if others is None else share.window.used + others,
    }


def _ignore() -> None:
    """Nobody carries anything to a ledger."""
