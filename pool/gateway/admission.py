"""Who is served next, and where: the queues of one release's lanes over its replicas.

Synchronous state without an await; time is passed in. A gate owns the counts on its replicas (`in_flight`,
`lane_in_flight`, `in_flight_tokens`, `prefill_tokens`, `long_in_flight`): nobody else writes them.

The order of service stays with the gate because an engine gets no more prefill than it does within the lane's
TTFT target: what waits, waits here. Longer lanes hold the prefill of as many replicas at once as their share
of the load asks for (`hold_limit`), never of all while shorter ones have traffic: a long prompt stands in
front of nobody. One replica more when the longer lane waited for long: it never starves.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pool.domain import watermarks
from pool.domain.gateway_settings import ModelSettings
from pool.domain.qos import BATCH, rank_of
from pool.domain.routing_table import LaneRoute
from pool.gateway import barriers
from pool.gateway.elsewhere import NOBODY, GateNote, sum_up, sum_waits
from pool.gateway.gate_view import describe_gate
from pool.gateway.holds import claim_memory, has_long_wait, load_of, share_prefill
from pool.gateway.openai import GatewayError
from pool.gateway.places import Lane, Place
from pool.gateway.restraints import Held
from pool.gateway.tickets import Replica, Ticket

Pick = Callable[[Sequence[Any], Any, float], Any]
"""(candidates with room, ticket, now_s) → one of them, or None. May lower `ticket.uncached_tokens`."""

_NEVER = float("inf")
_REFRESH_S = 0.25
# `batch` waits in this part of a lane's queue only.
_BATCH_QUEUE_RATIO = 0.5


class Gate:
    """Per model and release. Call `tick` every 20 ms while `waiting`, else each second."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self._terms: tuple[Any, ...] = ()
        """Lanes, settings and process count, as the last table had them."""
        self._settings = ModelSettings()
        self._lanes: dict[str, Lane] = {}
        self._order: list[Lane] = []
        self._places: dict[Replica, Place] = {}
        self._share_tokens = _NEVER
        self._turn = 0.0
        self._is_guarded = False
        self._has_homes = False
        self._is_pumping = False
        self._hears = True
        self._refreshed_at_s = -_NEVER
        self.waiting = 0

    def configure(
        self,
        lanes: Sequence[LaneRoute],
        settings: ModelSettings,
        replicas: Sequence[Replica],
        *,
        process_count: int = 1,
        restrictions: Sequence[Held] = (),
        now_s: float,
        pumps: bool = True,
    ) -> None:
        """From the routing table; may be called at any time. Counts and learnt limits stay; what waits for a
        lane or a replica that is gone is refused or waits on in the longest lane. Needs at least one lane.
        `pumps`: whether it hands out at once what has become free."""
        terms = (tuple(lanes), settings, process_count)
        same_terms = terms == self._terms
        self._terms, self._settings = terms, settings
        old = self._lanes
        if not same_terms:
            self._set_lanes(lanes, process_count, now_s)
        # Most tables change little, and the loop has streams to serve: what is as it was is not set again.
        places = {one: self._places.get(one) or Place(one, now_s) for one in replicas}
        changed = [one for one in places.values() if not same_terms or one.is_outdated]
        for place in changed:
            place.set_facts(self._order, settings, process_count=process_count)
        if not same_terms or changed or len(places) != len(self._places):
            for lane in self._order:
                lane.places = tuple(one for one in places.values() if one.replica.lane in (None, lane.name))
            largest = max((replica.kv_tokens or 0 for replica in replicas), default=0)
            self._share_tokens = largest * settings.kv_share_ratio if largest else _NEVER
        self._places = places
        for lane in self._order:
            lane.restraint.hold(restrictions, lane.name)
        self._move_waiting([lane for name, lane in old.items() if name not in self._lanes], now_s)
        self._refresh(now_s, changed)
        if pumps:
            self.pump(now_s)

    def _set_lanes(self, lanes: Sequence[LaneRoute], process_count: int, now_s: float) -> None:
        old, self._lanes = self._lanes, {}
        for rank, route in enumerate(lanes):
            lane = old.get(route.name) or Lane(route, rank, now_s)
            lane.set_route(route, rank, process_count=process_count)
            self._lanes[route.name] = lane
        self._order = list(self._lanes.values())

    def can_serve(self, ticket: Ticket, now_s: float) -> bool:
        """A replica exists that could serve it, now or later; else another release may (spill)."""
        return any(place.fits(ticket, now_s) for place in self._find_lane(ticket).places)

    def enter(self, ticket: Ticket, now_s: float) -> Any | None:
        """The replica whose slot it has, or None: queued. Raises GatewayError.

        A retry enters again with its `tried` replicas; its older arrival puts it in front.
        """
        lane = self._find_lane(ticket)
        lane.note_offered(ticket.prompt_tokens, now_s)
        is_oversize = ticket.kv_need_tokens > self._share_tokens
        if is_oversize and self._settings.oversize == "refuse":
            raise lane.count_refusal(barriers.too_large(ticket))
        if self._is_guarded:
            self._guard(ticket, lane, is_long=is_oversize or self._is_longest(lane))
        if not self.waiting or not (lane.rank or lane.queue):
            place = self._find_place(ticket, lane, now_s, lane.target_s)
            if place is not None:
                return self._admit(ticket, lane, place, now_s)
        if not self.can_serve(ticket, now_s):
            raise lane.count_refusal(barriers.unservable(ticket, lane.places))
        self._enqueue(ticket, lane, now_s)
        if not lane.rank and lane.queue.peek(now_s) is ticket:
            # A `vip` whose reserve is free; the other lanes' turn is decided by the next pump.
            place = self._find_place(ticket, lane, now_s, lane.target_s)
            if place is not None:
                self._unqueue(ticket, lane)
                return self._admit(ticket, lane, place, now_s)
        return None

    def enter_shadow(self, ticket: Ticket, now_s: float) -> Any | None:
        """Only into an idle slot, never queued; None: not now. Ends with `leave` too."""
        if self.waiting:
            return None
        lane = self._find_lane(ticket)
        idle = [place.replica for place in lane.places if place.is_idle(ticket, lane, now_s)]
        replica = self._pick(idle, ticket, now_s) if idle else None
        if replica is None:
            return None
        return self._admit(ticket, lane, self._places[replica], now_s)

    def first_byte(self, ticket: Ticket, now_s: float) -> None:
        """The first byte of the answer's body. A second one, or one after `leave`, changes nothing."""
        admission = ticket.admission
        if admission is None or not admission.prefill_tokens:
            return
        admission.place.finish_prefill(admission, now_s)
        if ticket.stream:
            limit = admission.place.limits.get(admission.lane.name)
            if limit is not None:
                limit.note_ttft(
                    now_s - ticket.admitted_at_s,
                    own_s=admission.own_s,
                    in_flight=admission.in_flight,
                    admitted_at_s=ticket.admitted_at_s,
                    now_s=now_s,
                )
        if self.waiting:
            self.pump(now_s)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Once per admission, whatever happened, also before the first byte. A second call changes nothing."""
        admission, ticket.admission = ticket.admission, None
        if admission is None:
            return
        admission.place.give_back(admission, now_s)
        if self.waiting:
            self.pump(now_s)

    def abandon(self, ticket: Ticket) -> None:
        """The client went while it was queued. Nothing happens if it is not queued."""
        if ticket.admission is None:
            for lane in self._order:
                if ticket in lane.queue:
                    self._unqueue(ticket, lane)

    def pump(self, now_s: float) -> None:
        """Hands out free room: lanes by weight, work-conserving."""
        if self._is_pumping:
            # From inside a ticket's on_admitted: the pass that called it looks again.
            return
        self._is_pumping = True
        try:
            while self.waiting and self._hand_out(now_s):
                pass
        finally:
            self._is_pumping = False

    def expire(self, now_s: float) -> None:
        """Refuses what waited too long."""
        for lane in self._order:
            for ticket in lane.queue.list_expired(now_s) if lane.queue else ():
                self._turn_away(ticket, lane, barriers.queue_timeout(ticket, lane, now_s))

    def describe(self, now_s: float, *, replicas: bool = True) -> dict[str, Any]:
        """For pages: JSON. Without replicas it takes no time that grows with their number."""
        return describe_gate(self._order, self._places.values() if replicas else (), now_s)

    def tick(self, now_s: float) -> None:
        if now_s - self._refreshed_at_s >= _REFRESH_S:
            self._refreshed_at_s = now_s
            self._refresh(now_s, self._places.values())
        if self.waiting:
            self.expire(now_s)
            self.pump(now_s)

    # Among gateway processes.
    def tell(self) -> dict[str, Any] | None:
        """As `read_note` reads it; None while there is nothing to tell."""
        waits = {lane.name: len(lane.queue) for lane in self._order if lane.queue}
        holds = {place.key: place.tell() for place in self._places.values() if place.replica.in_flight}
        return {"waits": waits, "holds": holds} if waits or holds else None

    def hear(self, notes: Sequence[GateNote] | None, now_s: float) -> None:
        """What the other processes tell of this release, each time; None while that is not known."""
        if not notes and not self._hears and notes is not None:
            return
        self._hears = notes is None or bool(notes)
        for lane in self._order:
            lane.hear_waiting(None if notes is None else sum_waits(notes, lane.name))
        for place in self._places.values():
            if notes:
                served = [lane.name for lane in self._order if place.replica.lane in (None, lane.name)]
                place.elsewhere = sum_up(notes, place.key, served)
            else:
                place.elsewhere = NOBODY
        if self.waiting:
            self.pump(now_s)

    # Inside.
    def _find_lane(self, ticket: Ticket) -> Lane:
        """A request that holds a large part of a replica's KV tokens counts as long."""
        if ticket.kv_need_tokens > self._share_tokens:
            return self._order[-1]
        return self._lanes.get(ticket.lane) or self._order[-1]

    def _find_place(self, ticket: Ticket, lane: Lane, now_s: float, patience_s: float) -> Place | None:
        is_oversize = ticket.kv_need_tokens > self._share_tokens
        places: Sequence[Place] = lane.places
        if lane.rank and self._count_held(lane.rank) >= lane.hold_limit:
            # It may still stand behind another long one, or be light there.
            light_s, tokens = self._order[0].target_s, ticket.uncached_tokens
            places = [
                place
                for place in places
                if place.top_rank >= lane.rank or place.clock.own_s(tokens) <= light_s
            ]
        if self._is_guarded:
            is_long, is_vip = is_oversize or self._is_longest(lane), ticket.tier == "vip"
            places = [place for place in places if not place.bars(lane, is_long=is_long, is_vip=is_vip)]
        with_room = [
            place
            for place in places
            if place.has_room(ticket, lane, now_s, is_oversize=is_oversize, patience_s=patience_s)
        ]
        if len(with_room) > 1 and self._has_homes:
            is_longest = self._is_longest(lane)
            with_room = [place for place in with_room if place.is_home is is_longest] or with_room
        if not with_room:
            return None
        replica = self._pick([place.replica for place in with_room], ticket, now_s)
        return None if replica is None else self._places[replica]

    def _admit(self, ticket: Ticket, lane: Lane, place: Place, now_s: float) -> Any:
        is_oversize = ticket.kv_need_tokens > self._share_tokens
        place.take(ticket, lane, now_s, is_oversize=is_oversize, light_s=self._order[0].target_s)
        tokens = ticket.uncached_tokens
        # Start-time fair queueing: a lane that was idle starts at the present turn, with nothing saved up.
        self._turn = max(lane.turn, self._turn)
        lane.turn = self._turn + tokens / lane.settings.weight
        return place.replica

    def _hand_out(self, now_s: float) -> bool:
        """Admits one; False if nobody can be.

        Work-conserving but for one case: while the shortest lane's turn is due and it is overdue for want of
        slots, longer ones start no prefill, since that slows the answers whose slots it waits for.
        """
        lanes = [lane for lane in self._order if lane.queue]
        if len(lanes) > 1:
            lanes.sort(key=_turn)
        patience_s = _NEVER
        is_short_late = False
        for lane in lanes:
            # Whose turn is later stacks no more prefill than those before it can bear: else the longer lane,
            # which is content to wait behind more, would always be first at a replica that becomes free.
            patience_s = min(patience_s, lane.target_s)
            ticket = lane.queue.peek(now_s)
            assert ticket is not None
            if is_short_late and lane.rank:
                continue
            place = self._find_place(ticket, lane, now_s, patience_s)
            if place is not None:
                lane.queue.take(ticket, now_s)
                self.waiting -= 1
                self._drop_claim(ticket, lane)
                ticket.on_admitted(self._admit(ticket, lane, place, now_s))
                return True
            if not lane.rank and lane.queue.oldest_wait_s(now_s) > lane.queue.overdue_s:
                # Held back by its own limit, it gains nothing from others who wait.
                is_short_late = any(place.is_under_limit(lane) for place in lane.places)
        return False

    def _enqueue(self, ticket: Ticket, lane: Lane, now_s: float) -> None:
        rank = rank_of(ticket.tier)
        length, limit = len(lane.queue), lane.queue_limit
        if rank == BATCH and length >= limit * _BATCH_QUEUE_RATIO:
            raise lane.count_refusal(barriers.shed(lane, now_s))
        if length >= limit:
            batch = lane.queue.find_newest(BATCH)
            if batch is None:
                raise lane.count_refusal(barriers.queue_full(lane, now_s))
            self._turn_away(batch, lane, barriers.shed(lane, now_s))
        if not lane.queue:
            lane.turn = max(lane.turn, self._turn)
        timeout_s = lane.settings.queue_timeout_s
        lane.queue.add(
            ticket,
            due_s=min(ticket.deadline_s, ticket.arrived_at_s + timeout_s),
            until_s=min(ticket.deadline_s, now_s + timeout_s),
        )
        self.waiting += 1

    def _unqueue(self, ticket: Ticket, lane: Lane) -> None:
        lane.queue.remove(ticket)
        self.waiting -= 1
        self._drop_claim(ticket, lane)

    def _turn_away(self, ticket: Ticket, lane: Lane, error: GatewayError) -> None:
        self._unqueue(ticket, lane)
        ticket.on_refused(lane.count_refusal(error))

    def _guard(self, ticket: Ticket, lane: Lane, *, is_long: bool) -> None:
        try:
            barriers.check_growth(ticket, lane)
            barriers.check_restrictions(ticket, lane, is_long=is_long)
            barriers.check_watermarks(ticket, lane, is_long=is_long)
        except GatewayError as error:
            lane.count_refusal(error)
            raise

    def _is_longest(self, lane: Lane) -> bool:
        """A model with one lane has no long one."""
        return lane.rank > 0 and lane is self._order[-1]

    def _count_held(self, rank: int) -> int:
        return sum(place.top_rank >= rank for place in self._places.values())

    def _move_waiting(self, gone: Sequence[Lane], now_s: float) -> None:
        """After a change of the table."""
        longest = self._order[-1]
        for lane in gone:
            for ticket in lane.queue.list_waiting():
                self._unqueue(ticket, lane)
                try:
                    self._enqueue(ticket, longest, now_s)
                except GatewayError as error:
                    ticket.on_refused(error)
        for lane in self._order:
            if lane.claim is not None and lane.claim[1] not in self._places.values():
                lane.claim = None
            for ticket in lane.queue.list_waiting():
                if not self.can_serve(ticket, now_s):
                    self._turn_away(ticket, lane, barriers.unservable(ticket, lane.places))

    def _refresh(self, now_s: float, places: Iterable[Place]) -> None:
        for place in places:
            place.refresh(now_s)
        guarded = any(place.watermark.level >= watermarks.NO_LONG for place in self._places.values())
        for lane in self._order:
            lane.load = load_of(lane, now_s)
            waiting = len(lane.queue)
            lane.growth.observe(
                pending=waiting + lane.in_flight,
                waiting=waiting,
                limit_ratio=self._settings.growth_ratio,
                now_s=now_s,
            )
            guarded |= lane.restraint.refresh(now_s) or lane.growth.stage > 0
            while lane.restraint.sheds_batch and (batch := lane.queue.find_newest(BATCH)) is not None:
                self._turn_away(batch, lane, barriers.shed_by_restriction(lane))
            if has_long_wait(lane, now_s):
                claim_memory(lane, now_s)
        self._has_homes = share_prefill(self._order, now_s)
        self._is_guarded = guarded

    def _drop_claim(self, ticket: Ticket, lane: Lane) -> None:
        if lane.claim is not None and lane.claim[0] is ticket:
            place = lane.claim[1]
            place.claim, place.claim_tokens = None, 0
            lane.claim = None


def _turn(lane: Lane) -> float:
    return lane.turn
