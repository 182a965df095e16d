"""What admission keeps per replica and per lane: room, limits, prefill ahead, watermarks. The gate decides."""

from collections.abc import Sequence
from math import exp

from pool.domain import watermarks
from pool.domain.concurrency import Concurrency
from pool.domain.gateway_settings import ModelSettings
from pool.domain.growth import GrowthBreaker
from pool.domain.prefill import PrefillClock
from pool.domain.qos import FIRST_LANE_OVERDUE_S, LaneQueue, slots_for_tiers
from pool.domain.routing_table import LaneRoute
from pool.gateway.elsewhere import NOBODY, Elsewhere, fair_part
from pool.gateway.openai import GatewayError
from pool.gateway.restraints import Restraint
from pool.gateway.tickets import Replica, Ticket

# Over which a lane's rate of work is taken.
_RATE_S = 60.0
_NEVER = float("inf")
# What fits into one step of an engine waits for nobody: vLLM's default for `max_num_batched_tokens`.
_STEP_TOKENS = 2_048
IDLE_LOAD = 0.01
"""A lane with less load than this counts as idle."""
# Part of a replica's slots that longer lanes leave free for each shorter one that has traffic.
_KEPT_RATIO = 0.125


class Admission:
    """What one admitted request took, so that exactly that is given back."""

    __slots__ = (
        "heavy_rank", "in_flight", "is_oversize", "kv_tokens", "lane", "own_s", "place", "prefill_tokens",
        "release_at_s",
    )  # fmt: skip

    def __init__(
        self, place: "Place", lane: "Lane", kv_tokens: int, *, in_flight: int, is_oversize: bool
    ) -> None:
        self.place = place
        self.lane = lane
        self.kv_tokens = kv_tokens
        self.is_oversize = is_oversize
        self.in_flight = in_flight
        """Of the lane on the replica, by all gateway processes, itself counted."""
        self.own_s = 0.0
        self.prefill_tokens = 0
        """0 once its prefill is over."""
        self.heavy_rank = 0
        """Rank of its lane if its prefill keeps the shortest lane waiting for longer than that lane's target."""
        self.release_at_s = _NEVER
        """A plain answer shows no first token: its prefill counts as done at this time."""


class Lane:
    """Rank 0 is the shortest."""

    __slots__ = (
        "_counted_at_s", "_least_queue", "_recent_requests", "_recent_tokens", "_started_at_s", "claim", "growth",
        "hold_limit", "in_flight", "load", "name", "places", "queue", "queue_limit", "rank", "refused", "restraint",
        "settings", "target_s", "turn",
    )  # fmt: skip

    def __init__(self, route: LaneRoute, rank: int, now_s: float) -> None:
        self.name = route.name
        self.queue: LaneQueue[Ticket] = LaneQueue(overdue_s=0.0)
        self.growth = GrowthBreaker(now_s)
        self.restraint = Restraint()
        self.places: tuple[Place, ...] = ()
        self.claim: tuple[Ticket, Place] | None = None
        """KV tokens kept free for the one that waits longest."""
        self.hold_limit = 1
        """Replicas whose prefill requests of this rank and above may hold at once."""
        self.in_flight = 0
        self.load = 0.0
        """Prefill of what came in lately, in replicas that would do nothing else."""
        self.turn = 0.0
        """Virtual time of its next request: tokens served ÷ weight."""
        self.refused: dict[str, int] = {}
        self._recent_requests = 0.0
        self._recent_tokens = 0.0
        self._counted_at_s = self._started_at_s = now_s
        self.set_route(route, rank, process_count=1)

    def set_route(self, route: LaneRoute, rank: int, *, process_count: int) -> None:
        self.rank = rank
        self.settings = route.settings
        self.target_s = route.settings.ttft_target_ms / 1000
        limit = route.settings.queue_limit
        self._least_queue = self.queue_limit = max(1, limit // process_count) if limit else 0
        self.queue.overdue_s = FIRST_LANE_OVERDUE_S if rank == 0 else self.target_s

    def hear_waiting(self, others: int | None) -> None:
        """How many requests wait in the other processes; None = not known, then each keeps to its share."""
        free = 0 if others is None else self.settings.queue_limit - others
        self.queue_limit = max(self._least_queue, free)

    def count_refusal(self, error: GatewayError) -> GatewayError:
        self.refused[error.code] = self.refused.get(error.code, 0) + 1
        return error

    def note_offered(self, tokens: int, now_s: float) -> None:
        keep = exp((self._counted_at_s - now_s) / _RATE_S)
        self._recent_requests = self._recent_requests * keep + 1.0
        self._recent_tokens = self._recent_tokens * keep + tokens
        self._counted_at_s = now_s

    def rate_tokens_per_s(self, now_s: float) -> float:
        """Of prompts that came in, whatever became of them."""
        return self._recent_tokens * self._rate_factor(now_s)

    def retry_after_s(self, now_s: float) -> float:
        """When as many as wait now will have come again, at the rate of the last minute; 1 to 30."""
        rate = self._recent_requests * self._rate_factor(now_s)
        return min(30.0, max(1.0, len(self.queue) / rate)) if rate else 5.0

    def _rate_factor(self, now_s: float) -> float:
        age_s = max(1.0, now_s - self._started_at_s)
        return exp(min(0.0, self._counted_at_s - now_s) / _RATE_S) / (_RATE_S * (1.0 - exp(-age_s / _RATE_S)))


class Place:
    """One replica, as admission sees it."""

    __slots__ = (
        "_context_tokens", "_kv_budget_tokens", "_marks", "_most_kept", "_process_count", "_seen", "_shares",
        "_slots", "_vip_slots", "claim", "claim_tokens", "clock", "elsewhere", "held_rank", "is_home", "limits",
        "prefilling", "replica", "unexplained_tokens", "watermark",
    )  # fmt: skip

    def __init__(self, replica: Replica, now_s: float) -> None:
        self.replica = replica
        self._seen: tuple[int | None, ...] = ()
        """Of the replica, what `set_facts` went by."""
        self.limits: dict[str, Concurrency] = {}
        self.clock = PrefillClock()
        self.watermark = watermarks.Watermark(now_s)
        self.prefilling: dict[Admission, None] = {}
        self.held_rank = 0
        """Highest rank among the heavy prefills that are not over."""
        self.is_home = False
        """The longest lane goes here first, the others elsewhere first: beside long prefills decoding is slow."""
        self.claim: Ticket | None = None
        self.claim_tokens = 0
        self.unexplained_tokens = 0
        """KV tokens that the engine's gauge shows beyond what the gateways know of."""
        self.elsewhere: Elsewhere = NOBODY
        """What the other processes do with it, where that is known."""

    @property
    def key(self) -> str:
        """Its engine's name among gateway processes."""
        return f"{self.replica.id}.{self.replica.generation}"

    @property
    def top_rank(self) -> int:
        """Of the heavy prefills of all processes."""
        return max(self.held_rank, self.elsewhere.held_rank)

    def tell(self) -> tuple[int, int, dict[str, int]]:
        """As `elsewhere.Hold`."""
        replica = self.replica
        lanes = {name: count for name, count in replica.lane_in_flight.items() if count}
        return replica.long_in_flight, self.held_rank, lanes

    @property
    def is_outdated(self) -> bool:
        """The replica is not as it was when it was looked at, or was never looked at."""
        replica = self.replica
        return self._seen != (replica.max_model_len, replica.slots, replica.kv_tokens)

    def set_facts(self, lanes: Sequence[Lane], settings: ModelSettings, *, process_count: int) -> None:
        replica = self.replica
        self._seen = (replica.max_model_len, replica.slots, replica.kv_tokens)
        self._process_count = process_count
        self._marks = (
            settings.watermark_warn_ratio, settings.watermark_long_ratio, settings.watermark_short_ratio,
        )  # fmt: skip
        self._context_tokens = _NEVER if replica.max_model_len is None else replica.max_model_len
        self._slots = self._vip_slots = None
        if replica.slots:
            self._slots, self._vip_slots = slots_for_tiers(
                replica.slots,
                vip_reserve_ratio=settings.vip_reserve_ratio,
                burst_ratio=settings.burst_ratio,
            )
        # Of the lanes, shortest first: the part of the slots that its weight gives it.
        here = [lane for lane in lanes if replica.lane in (None, lane.name)]
        weights = sum(lane.settings.weight for lane in here) or 1
        self._shares = [
            (lane, (replica.slots or 0) * lane.settings.weight // weights if lane in here else 0)
            for lane in lanes
        ]
        self._most_kept = int((replica.slots or 0) * _KEPT_RATIO)
        self._kv_budget_tokens = int((replica.kv_tokens or 0) * (1.0 - settings.kv_reserve_ratio))
        limits, ceiling = self.limits, self._vip_slots
        self.limits = {}
        for lane in lanes:
            wish, known = lane.settings, limits.get(lane.name)
            if known is None or not (known.adaptive and wish.adaptive):
                known = Concurrency(
                    wish.concurrency, ceiling=ceiling, target_s=lane.target_s, adaptive=wish.adaptive
                )
            known.set_bounds(ceiling=ceiling, target_s=lane.target_s)
            self.limits[lane.name] = known

    def fits(self, ticket: Ticket, now_s: float) -> bool:
        """Whether it could serve this request at all, room aside."""
        replica = self.replica
        if ticket.context_tokens > self._context_tokens:
            return False
        if not replica.breaker.allows(now_s):
            return False
        return replica not in ticket.tried

    def bars(self, lane: Lane, *, is_long: bool, is_vip: bool) -> bool:
        """By its watermark. A long request stays barred for `vip` too: its memory is what is missing."""
        level = self.watermark.level
        if level < watermarks.NO_LONG:
            return False
        return is_long or (level == watermarks.SHORT_ONLY and lane.rank > 0 and not is_vip)

    def is_under_limit(self, lane: Lane) -> bool:
        return self.replica.lane_in_flight.get(lane.name, 0) < self._lane_part(lane)

    def lane_limit(self, lane: Lane) -> int:
        """This process' even share, for pages: what it may really take depends on what the others do."""
        return max(1, int(self.limits[lane.name].limit * lane.restraint.ratio) // self._process_count)

    def has_room(  # noqa: C901, PLR0912 - one function: in pieces it costs twice as much per replica and request
        self, ticket: Ticket, lane: Lane, now_s: float, *, is_oversize: bool, patience_s: float
    ) -> bool:
        """Whether it may be sent now. `patience_s`: the TTFT target to which prefill may be stacked here: the
        lane's, or a shorter one's whose requests wait."""
        replica = self.replica
        if ticket.context_tokens > self._context_tokens or replica in ticket.tried:
            return False
        if not replica.breaker.allows(now_s):
            return False
        slots = self._vip_slots if ticket.tier == "vip" else self._slots
        if slots is not None:
            others = replica.others_in_flight
            if others is None:
                slots = max(1, slots // self._process_count)
            elif self._process_count > 1:
                slots = fair_part(slots, self.elsewhere.slots, held=others)
            free = slots - replica.in_flight
            if free <= 0 or (lane.rank and free <= self._count_kept(lane)):
                return False
        running = replica.lane_in_flight.get(lane.name, 0)
        if self._process_count > 1:
            if running >= self._lane_part(lane):
                return False
        elif running and running >= self.limits[lane.name].limit * lane.restraint.ratio:
            return False
        if is_oversize and (replica.long_in_flight or self.elsewhere.long):
            return False
        ahead = replica.prefill_tokens
        if ahead and ahead + ticket.uncached_tokens > _STEP_TOKENS:
            wait_s = self.clock.busy_until_s - now_s
            if wait_s > 0.0:
                own_s = self.clock.own_s(ticket.uncached_tokens)
                if wait_s > max(patience_s - own_s, min(own_s, patience_s)):
                    return False
        budget = self._kv_budget_tokens
        if not budget:
            return True
        if replica.others_tokens is None:
            budget //= self._process_count
        # Alone it may always try: the engine's own limit of the context holds.
        used = replica.in_flight_tokens + (replica.others_tokens or 0)
        if not used:
            return True
        if self.claim is ticket:
            # The reserve is for growth; who waited for so long may use it.
            return used + ticket.kv_need_tokens <= (replica.kv_tokens or 0)
        return used + self.claim_tokens + self.unexplained_tokens + ticket.kv_need_tokens <= budget

    def is_idle(self, ticket: Ticket, lane: Lane, now_s: float) -> bool:
        """Room that nobody else could miss: for shadow requests."""
        return (
            not self.replica.prefill_tokens
            and self.watermark.level == watermarks.NORMAL
            and self.claim is None
            and self.has_room(ticket, lane, now_s, is_oversize=False, patience_s=lane.target_s)
        )

    def take(self, ticket: Ticket, lane: Lane, now_s: float, *, is_oversize: bool, light_s: float) -> None:
        """`light_s`: a prefill that takes no longer than this holds up nobody."""
        replica = self.replica
        counts = replica.lane_in_flight
        counts[lane.name] = running = counts.get(lane.name, 0) + 1
        if self._process_count > 1:
            running = self._count_everywhere(lane.name, running)
        admission = Admission(self, lane, ticket.kv_need_tokens, in_flight=running, is_oversize=is_oversize)
        replica.in_flight += 1
        replica.in_flight_tokens += admission.kv_tokens
        replica.long_in_flight += is_oversize
        lane.in_flight += 1
        ticket.admission = admission
        ticket.admitted_at_s = now_s
        clock, tokens = self.clock, ticket.uncached_tokens
        admission.own_s = clock.own_s(tokens)
        if tokens > 0:
            clock.add(tokens, ahead_tokens=replica.prefill_tokens, now_s=now_s)
            admission.prefill_tokens = tokens
            replica.prefill_tokens += tokens
            self.prefilling[admission] = None
            if not ticket.stream:
                admission.release_at_s = clock.busy_until_s
            if admission.own_s > light_s:
                admission.heavy_rank = lane.rank
                self.held_rank = max(self.held_rank, lane.rank)

    def give_back(self, admission: Admission, now_s: float) -> None:
        replica, name = self.replica, admission.lane.name
        if admission.prefill_tokens:
            self._end_prefill(admission)
            self.clock.cancel(left_tokens=replica.prefill_tokens, now_s=now_s)
        replica.in_flight -= 1
        replica.lane_in_flight[name] -= 1
        replica.in_flight_tokens -= admission.kv_tokens
        replica.long_in_flight -= admission.is_oversize
        admission.lane.in_flight -= 1

    def finish_prefill(self, admission: Admission, now_s: float) -> None:
        """Its first byte is there. Engines prefill in order, so that plain ones sent before it are done too."""
        done_tokens = 0
        in_order = list(self.prefilling)
        for earlier in in_order[: in_order.index(admission) + 1]:
            if earlier is admission or earlier.release_at_s != _NEVER:
                done_tokens += earlier.prefill_tokens
                self._end_prefill(earlier)
        self.clock.finish(done_tokens, left_tokens=self.replica.prefill_tokens, now_s=now_s)

    def refresh(self, now_s: float) -> None:
        """From time and gauges: prefills of plain answers, memory that nobody explains, the watermark."""
        replica = self.replica
        for admission in list(self.prefilling):
            if admission.release_at_s > now_s:
                break
            self.clock.credit(admission.prefill_tokens)
            self._end_prefill(admission)
        own_tokens = replica.in_flight_tokens + (replica.others_tokens or 0)
        ratio, source = watermarks.read_use(
            replica.kv_used_ratio,
            replica.gauges_at_s,
            own_tokens=own_tokens,
            kv_tokens=replica.kv_tokens,
            now_s=now_s,
        )
        is_measured = source == "engine" and ratio is not None and replica.kv_tokens
        used_tokens = int(ratio * replica.kv_tokens) if is_measured and ratio and replica.kv_tokens else 0
        self.unexplained_tokens = max(0, used_tokens - own_tokens)
        self.watermark.observe(ratio, source=source, marks=self._marks, now_s=now_s)

    def _lane_part(self, lane: Lane) -> int:
        """What this process may hold of the lane's limit here."""
        name = lane.name
        limit = max(1, int(self.limits[name].limit * lane.restraint.ratio))
        if self.replica.others_in_flight is None:
            return max(1, limit // self._process_count)
        part = self.elsewhere.lanes.get(name)
        return limit if part is None else fair_part(limit, part, held=part.held)

    def _count_everywhere(self, name: str, running: int) -> int:
        """Of the lane here, by all processes: what they together use of the limit."""
        if self.replica.others_in_flight is None:
            return running * self._process_count
        part = self.elsewhere.lanes.get(name)
        return running if part is None else running + part.held

    def _count_kept(self, lane: Lane) -> int:
        """Slots that a longer lane leaves free: an answer in a slot gives it back late, not at once."""
        kept = 0
        counts = self.replica.lane_in_flight
        for shorter, share in self._shares[: lane.rank]:
            if shorter.load >= IDLE_LOAD:
                kept += min(self._most_kept, max(0, share - counts.get(shorter.name, 0)))
        return kept

    def _end_prefill(self, admission: Admission) -> None:
        self.replica.prefill_tokens -= admission.prefill_tokens
        admission.prefill_tokens = 0
        del self.prefilling[admission]
        if admission.heavy_rank:
            self.held_rank = max((one.heavy_rank for one in self.prefilling), default=0)
