"""Answers to deterministic requests: kept in memory, then in Redis, and shared by equal ones in flight.

Off unless the operator switches it on, since answers are kept then. A caller's key only ever finds answers to
requests of the same key and the same release. Streams are neither kept nor shared.
"""

import enum
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import Any, Protocol

import redis.asyncio

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.answer_keys import digest_ask, make_key, release_of
from pool.gateway.answer_store import Answer, AnswerStore

HIT = b"x-sluice-cache: hit\r\n"
MISS = b"x-sluice-cache: miss\r\n"
_MAX_ANSWER_BYTES = 256 * 1024
# What an entry takes beside its body, measured with sys.getsizeof.
_ENTRY_BYTES = 500
# All of them are answered in one callback, which must not hold the loop.
_MOST_FOLLOWERS = 256


class Turn(enum.Enum):
    GO = "go"
    """The asker goes to an engine."""
    WAIT = "wait"
    """The asker is told later, by one of its callbacks, unless it settles before."""


class Asker(Protocol):
    """A request that may get its answer from another one. It is told at most once."""

    def on_answer(self, answer: Answer) -> None: ...

    def on_turn(self) -> None:
        """Nobody has the answer: go to an engine."""


class Tally:
    """Of one model. `hits`: in memory; `shared_hits`: in Redis; `coalesced`: got the answer of an equal request."""

    __slots__ = ("coalesced", "hits", "misses", "shared_hits")

    def __init__(self) -> None:
        self.hits = self.shared_hits = self.coalesced = self.misses = 0

    def describe(self) -> dict[str, Any]:
        """`hit_ratio` None = nothing was asked yet."""
        spared = self.hits + self.shared_hits + self.coalesced
        asked = spared + self.misses
        return {
            "hits": self.hits,
            "shared_hits": self.shared_hits,
            "coalesced": self.coalesced,
            "misses": self.misses,
            "hit_ratio": spared / asked if asked else None,
        }


class _Flight:
    """Equal requests of which one, the leader, goes to Redis and then to an engine."""

    __slots__ = ("followers", "is_looking", "is_over", "key", "leader", "settings", "tally")

    def __init__(self, key: bytes, leader: Asker, tally: Tally, settings: ModelSettings) -> None:
        self.key = key
        self.leader = leader
        self.followers: dict[Asker, None] = {}
        self.is_looking = False
        self.is_over = False
        self.tally = tally
        self.settings = settings


class AnswerCache:
    """One per process. `settle` follows each `ask` once, when the asker's request is over."""

    def __init__(self, *, secret: str, capacity_bytes: int = 64 << 20) -> None:
        self._secret = blake2b(secret.encode(), person=b"sluice-answers", digest_size=32).digest()
        self._store = AnswerStore(secret=self._secret)
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[Answer, float]] = OrderedDict()
        """Key → answer and when it was made, the one used longest ago first."""
        self._flights: dict[bytes, _Flight] = {}
        """Those that others may join."""
        self._places: dict[Asker, _Flight] = {}
        self._tallies: dict[str, Tally] = {}

    def attach(self, client: "redis.asyncio.Redis | None", *, prefix: str) -> None:
        """Redis as second layer, or None while it is away. `prefix`: `sluice:<installation>`."""
        self._store.attach(client, prefix=prefix)

    def key_of(
        self, path: bytes, fields: dict[str, Any], *, settings: ModelSettings, scope: str, release: int
    ) -> bytes | None:
        """None = not for this request. `scope`: digest of the caller's key, whose answers nobody else gets."""
        if not settings.cache_s and not settings.coalesce:
            return None
        digest = digest_ask(path, fields)
        return None if digest is None else self.make_key(digest, scope=scope, release=release)

    def make_key(self, digest: bytes, *, scope: str, release: int) -> bytes:
        """For a digest that was made elsewhere, by `digest_ask`."""
        return make_key(digest, secret=self._secret, scope=scope, release=release)

    def ask(
        self, key: bytes, asker: Asker, *, model: str, settings: ModelSettings, now_s: float
    ) -> Answer | Turn:
        """An answer that is there already, or what to do instead."""
        tally = self._tallies.get(model) or self._tallies.setdefault(model, Tally())
        if settings.cache_s and (answer := self._find(key, settings, now_s)) is not None:
            tally.hits += 1
            return answer
        flight = self._flights.get(key) if settings.coalesce else None
        if flight is not None and len(flight.followers) < _MOST_FOLLOWERS:
            flight.followers[asker] = None
            self._places[asker] = flight
            return Turn.WAIT
        new = _Flight(key, asker, tally, settings)
        if settings.coalesce and flight is None:
            self._flights[key] = self._places[asker] = new
        if settings.cache_s and self._store.is_open(now_s):
            self._places[asker] = new
            new.is_looking = True
            self._store.look(key, lambda found: self._end_look(new, found))
            return Turn.WAIT
        tally.misses += 1
        return Turn.GO

    def leads(self, asker: Asker) -> bool:
        """Of one that was told to wait: it waits for Redis, not for the answer to an equal request."""
        flight = self._places.get(asker)
        return flight is not None and flight.leader is asker

    def settle(
        self,
        key: bytes,
        asker: Asker,
        answer: Answer | None,
        *,
        settings: ModelSettings,
        now_s: float,
        is_gone: bool = False,
    ) -> None:
        """The asker's request is over. `answer`: what its engine said with status 200, else None. `is_gone`: its
        client has left, which says nothing about the engine."""
        if answer is not None and settings.cache_s:
            self._keep(key, answer, settings, now_s)
        flight = self._places.pop(asker, None)
        if flight is None:
            return
        if flight.leader is not asker:
            del flight.followers[asker]
        elif answer is not None:
            flight.tally.coalesced += len(flight.followers)
            self._answer_all(flight, tuple(flight.followers), answer)
        elif is_gone or flight.is_looking:
            self._hand_over(flight)
        else:
            self._disband(flight)

    def describe(self) -> dict[str, Any]:
        return {
            "entries": len(self._kept),
            "bytes": self._bytes,
            "capacity_bytes": self._capacity_bytes,
            "store_failures": self._store.failures,
            "store_drops": self._store.drops,
            "models": {model: tally.describe() for model, tally in self._tallies.items()},
        }

    def _find(self, key: bytes, settings: ModelSettings, now_s: float) -> Answer | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now_s - kept[1] >= settings.cache_s:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept[0]

    def _keep(self, key: bytes, answer: Answer, settings: ModelSettings, now_s: float) -> None:
        # One that was spilled came from another release than was asked for.
        if answer.release != release_of(key) or len(answer.body) > _MAX_ANSWER_BYTES:
            return
        self._remember(key, answer, now_s)
        self._store.keep(key, answer, cache_s=settings.cache_s, now_s=now_s)

    def _remember(self, key: bytes, answer: Answer, made_at_s: float) -> None:
        if key in self._kept:
            self._drop(key)
        self._kept[key] = (answer, made_at_s)
        self._bytes += len(answer.body) + _ENTRY_BYTES
        while self._bytes > self._capacity_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        answer, _ = self._kept.pop(key)
        self._bytes -= len(answer.body) + _ENTRY_BYTES

    def _end_look(self, flight: _Flight, found: tuple[Answer, float] | None) -> None:
        flight.is_looking = False
        if flight.is_over:
            return
        if found is None or found[1] >= flight.settings.cache_s:
            flight.tally.misses += 1
            flight.leader.on_turn()
            return
        answer, age_s = found
        self._remember(flight.key, answer, time.monotonic() - age_s)
        askers = (flight.leader, *flight.followers)
        flight.tally.shared_hits += len(askers)
        self._answer_all(flight, askers, answer)

    def _answer_all(self, flight: _Flight, askers: tuple[Asker, ...], answer: Answer) -> None:
        self._close(flight)
        for asker in askers:
            asker.on_answer(answer)

    def _hand_over(self, flight: _Flight) -> None:
        """To the follower that has waited longest."""
        leader = next(iter(flight.followers), None)
        if leader is None:
            self._close(flight)
            return
        flight.leader = leader
        del flight.followers[leader]
        if not flight.is_looking:
            flight.tally.misses += 1
            leader.on_turn()

    def _disband(self, flight: _Flight) -> None:
        """Each goes on its own: to wait for the next leader could take as long again."""
        followers = tuple(flight.followers)
        self._close(flight)
        flight.tally.misses += len(followers)
        for asker in followers:
            asker.on_turn()

    def _close(self, flight: _Flight) -> None:
        """Before anybody is told, since who is told may ask again."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        for asker in (flight.leader, *flight.followers):
            self._places.pop(asker, None)
        flight.is_over = True
