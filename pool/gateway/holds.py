"""How many replicas' prefill the longer lanes may hold at once, and which ones they go to first."""

from collections.abc import Sequence
from math import ceil

from pool.gateway.places import IDLE_LOAD, Lane, Place

# A replica whose prefill is busier than this makes a queue that does not end.
_FULLEST = 0.85
# A lane whose oldest waited for so many times its target gets one replica more.
_LONG_WAIT_TARGETS = 5.0


def load_of(lane: Lane, now_s: float) -> float:
    """In replicas that do nothing but the lane's prefill."""
    speeds = [place.clock.speed_tokens_per_s for place in lane.places]
    return lane.rate_tokens_per_s(now_s) * len(speeds) / sum(speeds) if speeds else 0.0


def has_long_wait(lane: Lane, now_s: float) -> bool:
    return lane.queue.oldest_wait_s(now_s) > _LONG_WAIT_TARGETS * lane.target_s


def claim_memory(lane: Lane, now_s: float) -> None:
    """What becomes free on one replica is kept for the lane's next request, which needs much of it."""
    ticket = lane.queue.peek(now_s)
    if lane.claim is not None or ticket is None:
        return
    free = [
        place
        for place in lane.places
        if place.claim is None and place.replica.kv_tokens and place.fits(ticket, now_s)
    ]
    if free:
        place = min(free, key=_tokens_in_flight)
        place.claim, place.claim_tokens = ticket, ticket.kv_need_tokens
        lane.claim = (ticket, place)


def share_prefill(lanes: Sequence[Lane], now_s: float) -> bool:
    """Sets each lane's `hold_limit` from the lanes' loads, and the longest lane's homes among its replicas.
    False if no replica is one: nobody goes anywhere first."""
    longer_load = sum(lane.load for lane in lanes)
    shorter_load = 0.0
    for lane in lanes:
        count = len(lane.places)
        lane.hold_limit = limit_holds(count, shorter_load=shorter_load, longer_load=longer_load)
        most = count - (shorter_load >= IDLE_LOAD)
        if lane.hold_limit < most and has_long_wait(lane, now_s):
            lane.hold_limit += 1
        shorter_load += lane.load
        longer_load -= lane.load
    longest = lanes[-1]
    homes = longest.hold_limit if longest.rank and longest.load >= IDLE_LOAD else 0
    for number, place in enumerate(longest.places):
        place.is_home = number < homes
    return 0 < homes < len(longest.places)


def limit_holds(replicas: int, *, shorter_load: float, longer_load: float) -> int:
    """In proportion to their load, rounded in favour of the shorter lanes as long as it carries the load. Loads
    are in replicas; at least one, and one less than there are: what begins to prefill does not give way, and the
    next short request may come at any time."""
    if replicas < 2:
        return 1
    if shorter_load < IDLE_LOAD:
        return replicas - 1
    share = int(replicas * longer_load / (shorter_load + longer_load))
    return min(replicas - 1, max(1, share, ceil(longer_load / _FULLEST)))


def _tokens_in_flight(place: Place) -> int:
    return place.replica.in_flight_tokens
