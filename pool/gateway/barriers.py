"""Why a request is not let in: the guards that refuse at once, and the words of each refusal."""

from collections.abc import Sequence

from pool.domain import growth
from pool.domain.qos import BATCH, VIP, rank_of
from pool.gateway.openai import GatewayError, NoReadyReplica, RequestTooLarge
from pool.gateway.places import Lane, Place
from pool.gateway.refusals import ContextLengthExceeded, Overloaded, QueueFull, QueueTimeout, Shed
from pool.gateway.tickets import Ticket

# The hold of a watermark.
_OVERLOADED_RETRY_S = 5.0
# One sample of the growth breaker.
_GROWTH_RETRY_S = growth.SAMPLE_S
# Restrictions last for minutes, and nobody knows beforehand when one is taken back.
_RESTRICTED_RETRY_S = 30.0


def check_growth(ticket: Ticket, lane: Lane) -> None:
    """Raises Shed."""
    stage = lane.growth.stage
    if not stage:
        return
    rank = rank_of(ticket.tier)
    if rank == BATCH or (stage == growth.NO_STANDARD and rank != VIP):
        raise Shed(
            f"Requests of the lane {lane.name!r} grow faster than they are served; the tier "
            f"{ticket.tier!r} is refused for now.",
            retry_after_s=_GROWTH_RETRY_S,
        )


def check_restrictions(ticket: Ticket, lane: Lane, *, is_long: bool) -> None:
    """Raises Shed or Overloaded."""
    restraint = lane.restraint
    if restraint.is_closed and rank_of(ticket.tier) != VIP:
        raise Shed(
            f"The lane {lane.name!r} is closed for now to all tiers but 'vip'. Try again later.",
            retry_after_s=_RESTRICTED_RETRY_S,
        )
    if restraint.sheds_batch and rank_of(ticket.tier) == BATCH:
        raise shed_by_restriction(lane)
    if restraint.bars_long and is_long:
        raise Overloaded(
            "Long requests are refused for now, so that the others keep their times. Try again later.",
            retry_after_s=_RESTRICTED_RETRY_S,
        )


def check_watermarks(ticket: Ticket, lane: Lane, *, is_long: bool) -> None:
    """Raises Overloaded if every replica of the lane bars it; else it may wait for the others."""
    is_vip = ticket.tier == "vip"
    if lane.places and all(place.bars(lane, is_long=is_long, is_vip=is_vip) for place in lane.places):
        raise Overloaded(
            f"The replicas' KV cache is too full for another request of the lane {lane.name!r}. Try again.",
            retry_after_s=_OVERLOADED_RETRY_S,
        )


def too_large(ticket: Ticket) -> RequestTooLarge:
    return RequestTooLarge(
        "The request would hold a larger part of a replica's memory than this model lets one request hold. "
        "Send a shorter prompt or ask for a shorter answer.",
        needed_tokens=ticket.kv_need_tokens,
    )


def unservable(ticket: Ticket, places: Sequence[Place]) -> GatewayError:
    """No replica of the release can ever serve it, or none that was not tried."""
    lengths = [place.replica.max_model_len for place in places]
    known = [length for length in lengths if length is not None]
    if known and len(known) == len(lengths) and ticket.context_tokens > max(known):
        return ContextLengthExceeded(
            f"The prompt and the asked output need {ticket.context_tokens} tokens; the context holds {max(known)}.",
            param="max_tokens" if ticket.prompt_tokens < max(known) else "messages",
            needed_tokens=ticket.context_tokens,
            context_tokens=max(known),
        )
    return NoReadyReplica("No replica can take the request now. Try again shortly.")


def shed(lane: Lane, now_s: float) -> Shed:
    return Shed(
        f"The lane {lane.name!r} is busy; requests of the tier 'batch' are given up first. Try again later.",
        retry_after_s=lane.retry_after_s(now_s),
    )


def shed_by_restriction(lane: Lane) -> Shed:
    return Shed(
        f"The lane {lane.name!r} misses its targets; requests of the tier 'batch' are refused for now. Try later.",
        retry_after_s=_RESTRICTED_RETRY_S,
    )


def queue_full(lane: Lane, now_s: float) -> QueueFull:
    waiting = len(lane.queue)
    return QueueFull(
        f"The lane {lane.name!r} has {waiting} waiting requests, as many as may wait. Try again.",
        retry_after_s=lane.retry_after_s(now_s),
        waiting=waiting,
    )


def queue_timeout(ticket: Ticket, lane: Lane, now_s: float) -> QueueTimeout:
    waited_s = round(now_s - ticket.arrived_at_s, 3)
    return QueueTimeout(
        f"The request waited for {waited_s:g} s without a free slot. Try again.",
        retry_after_s=lane.retry_after_s(now_s),
        waited_s=waited_s,
    )
