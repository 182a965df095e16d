"""Choice of a replica among those that may serve a request: score, then pick with a load bound.

The filter (ready, lane, context, breaker, room, not tried before) is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pool.domain.affinity import PrefixIndex, ReplicaCache

# Weights turn everything into prompt tokens to compute. They are measured (`sluice bench affinity`, docs/gateway.md):
# full weight on the queue scatters prefixes, and the cluster then computes them again and again, so that every
# prompt waits longer. A replica with the prefix is left once its queue is longer by 12.5 times what it saves.
QUEUE_WEIGHT = 0.08
"""Of prompt tokens that wait for their first byte."""
IN_FLIGHT_WEIGHT = 0.005
"""Of all tokens in flight: they slow decoding down."""
SENT_WEIGHT = 0.01
"""Of tokens sent lately (`affinity.SENT_MEMORY_S`): evens out what is idle."""
BOUND_RATIO, BOUND_REQUESTS = 1.5, 4.0
"""No more requests in flight than the mean times the one plus the other, while another replica has fewer."""
ERROR_TOKENS = 1024.0
"""A replica that always fails looks as if the prompt were computed twice, plus so much."""
KV_FULL_RATIO = 0.9
"""Tokens over this part of the KV cache weigh fully: they wait for others to end, or push them out."""
GAUGE_FRESH_S = 3.0
"""Engine gauges come each second; older ones are unknown."""
MANY = 16
"""With more candidates the holder of the prefix and half so many others are scored."""

_OVER_BOUND = 1e12
_NO_END = 1e15
_CALM_RATIO = 0.7
_NO_GAUGES = (0.0, 0.0)
_Gauges = tuple[float, float]
"""Waiting requests, part of the KV cache in use."""


class Ticket(Protocol):
    """What the choice reads of a request, and the one thing that it sets."""

    prompt_tokens: int
    kv_need_tokens: int
    uncached_tokens: int
    """Set to the prompt tokens that the chosen engine must probably compute."""

    @property
    def blocks(self) -> Sequence[int]: ...


class Scored(Protocol):
    """What the choice reads of a replica. None is not known."""

    in_flight: int
    in_flight_tokens: int
    prefill_tokens: int
    others_in_flight: int | None
    others_tokens: int | None
    kv_tokens: int | None
    kv_used_ratio: float | None
    waiting: int | None
    gauges_at_s: float | None
    cached: ReplicaCache | None

    @property
    def error_score(self) -> float: ...


S = TypeVar("S", bound=Scored)


def choose_by_score(
    candidates: Sequence[S],
    ticket: Ticket,
    *,
    now_s: float,
    draw: Callable[[], float],
    index: PrefixIndex | None,
) -> S | None:
    """The cheapest replica; None if there is no candidate. `draw` gives a number in [0, 1) that breaks ties.

    Without an index, prefixes count nothing. Its `note_sent` is the caller's, once the request goes out.
    """
    count = len(candidates)
    if count < 2:
        return _take_only(candidates[0], ticket, index) if count else None
    if count > MANY:
        candidates = _shorten(candidates, ticket, draw, index)
    return _take_cheapest(candidates, ticket, now_s, int(draw() * len(candidates)), index)


def _take_only(replica: S, ticket: Ticket, index: PrefixIndex | None) -> S:
    saved = 0.0
    if index is not None and ticket.blocks and replica.cached is not None:
        saved = index.weigh_block(ticket) * replica.cached.count_match(ticket.blocks)
    ticket.uncached_tokens = max(0, ticket.prompt_tokens - int(saved))
    return replica


def _take_cheapest(
    candidates: Sequence[S], ticket: Ticket, now_s: float, start: int, index: PrefixIndex | None
) -> S:
    # One loop without calls where nothing is unusual: in smaller pieces 8 candidates cost twice as much.
    need, blocks, sent_weight, worth = ticket.kv_need_tokens, ticket.blocks, 0.0, 0.0
    if index is not None:
        sent_weight, worth = SENT_WEIGHT * index.sent_scale(now_s), index.weigh_block(ticket)
    usual = _usual_gauges(candidates, now_s)
    running = sum([one.in_flight + (one.others_in_flight or 0) for one in candidates])
    limit = BOUND_REQUESTS + BOUND_RATIO * running / len(candidates)
    least, best, saved_by_best = math.inf, candidates[0], 0.0
    for place in range(start - len(candidates), start):
        replica = candidates[place]
        held = replica.in_flight_tokens + (replica.others_tokens or 0)
        cost = QUEUE_WEIGHT * replica.prefill_tokens + IN_FLIGHT_WEIGHT * held
        if (
            usual is not None
            or replica.error_score
            or held + need > KV_FULL_RATIO * (replica.kv_tokens or _NO_END)
        ):
            cost += _weigh_trouble(replica, ticket, usual or _NO_GAUGES, now_s)
        if replica.in_flight + (replica.others_in_flight or 0) >= limit:
            cost += _OVER_BOUND
        cached, saved = replica.cached, 0.0
        if cached is not None:
            cost += sent_weight * cached.sent
            if worth and blocks[0] in cached.blocks:
                saved = worth * cached.count_match(blocks)
        if cost - saved < least:
            least, best, saved_by_best = cost - saved, replica, saved
    ticket.uncached_tokens = max(0, ticket.prompt_tokens - int(saved_by_best))
    return best


def _shorten(
    candidates: Sequence[S], ticket: Ticket, draw: Callable[[], float], index: PrefixIndex | None
) -> Sequence[S]:
    """Every n-th from a drawn place on, and whoever holds the prompt's beginning."""
    step = len(candidates) * 2 // MANY
    few = list(candidates[int(draw() * step) :: step])
    holder = index.find_holder(ticket.blocks) if index is not None else None
    if holder is not None:
        few += [replica for replica in candidates if replica.cached is holder and replica not in few]
    return few


def _usual_gauges(candidates: Sequence[Scored], now_s: float) -> _Gauges | None:
    """Means of those that tell; None: nobody does, or nobody is busy."""
    told = [one for one in candidates if one.gauges_at_s is not None]
    if not told:
        return None
    fresh = [one for one in told if now_s - (one.gauges_at_s or 0.0) <= GAUGE_FRESH_S]
    waiting = [one.waiting for one in fresh if one.waiting is not None]
    used = [one.kv_used_ratio for one in fresh if one.kv_used_ratio is not None]
    if not any(waiting) and max(used, default=0.0) < _CALM_RATIO:
        return None
    return sum(waiting) / max(1, len(waiting)), sum(used) / max(1, len(used))


def _weigh_trouble(replica: Scored, ticket: Ticket, usual: _Gauges, now_s: float) -> float:
    """Gauges lag by a second: they only add what the gateway's own counts do not show.

    A failed scrape is unknown load, not zero: zero would attract all traffic.
    """
    waiting, used_ratio = usual
    prompt, kv_tokens = ticket.prompt_tokens, replica.kv_tokens
    if replica.gauges_at_s is not None and now_s - replica.gauges_at_s <= GAUGE_FRESH_S:
        waiting = waiting if replica.waiting is None else replica.waiting
        used_ratio = used_ratio if replica.kv_used_ratio is None else replica.kv_used_ratio
    cost = replica.error_score * (prompt + ERROR_TOKENS)
    if waiting * prompt > replica.prefill_tokens:
        cost += QUEUE_WEIGHT * (waiting * prompt - replica.prefill_tokens)
    if kv_tokens is not None:
        held = max(replica.in_flight_tokens + (replica.others_tokens or 0), used_ratio * kv_tokens)
        cost += max(0.0, held + ticket.kv_need_tokens - KV_FULL_RATIO * kv_tokens)
    return cost
