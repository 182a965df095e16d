"""What a request waits for in the gate's queue, said when it begins to wait: for its record, not for a decision."""

from itertools import islice

from pool.gateway.admission import Gate
from pool.gateway.places import Lane, Place
from pool.gateway.tickets import Ticket

# Looked at of a lane's replicas: the answer costs time when there is least of it.
_MOST_PLACES = 4


def find_hold(gate: Gate, ticket: Ticket, now_s: float) -> str:
    """`breaker`, `watermark`, `lane_limit`, `slots`, `kv_memory`, `prefill`; `queue`: only others who are in front.

    Of some replicas, the reason at the one with the fewest requests.
    """
    lane = gate._find_lane(ticket)  # noqa: SLF001  as the gate places it
    places = [place for place in islice(lane.places, _MOST_PLACES) if place.replica not in ticket.tried]
    if not places:
        return "queue"
    return _find_reason(min(places, key=_load_of), lane, ticket, now_s)


def _find_reason(place: Place, lane: Lane, ticket: Ticket, now_s: float) -> str:
    replica = place.replica
    if not replica.breaker.allows(now_s):
        return "breaker"
    if place.bars(lane, is_long=lane.rank > 0, is_vip=ticket.tier == "vip"):
        return "watermark"
    if place.has_room(ticket, lane, now_s, is_oversize=False, patience_s=lane.target_s):
        # A longer lane may hold the prefill of so many replicas and no more.
        return "prefill" if lane.rank and not len(lane.queue) > 1 else "queue"
    if not place.is_under_limit(lane):
        return "lane_limit"
    if replica.slots is not None and replica.in_flight + (replica.others_in_flight or 0) >= replica.slots:
        return "slots"
    if replica.prefill_tokens:
        return "prefill"
    return "kv_memory" if replica.kv_tokens else "slots"


def _load_of(place: Place) -> int:
    return place.replica.in_flight
