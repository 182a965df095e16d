"""Who is served next, and where: the queues of one release's lanes over its replicas.

Synchronous state without an await; time is passed in. A gate owns the counts on its replicas (`in_flight`,
`lane_in_flight`, `in_flight_tokens`, `prefill_tokens`, `long_in_flight`): nobody else writes them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pool.domain.gateway_settings import ModelSettings
from pool.domain.routing_table import LaneRoute
from pool.gateway.openai import GatewayError


class Breaker(Protocol):
    def allows(self, now_s: float) -> bool: ...


class Replica(Protocol):
    """What admission reads and counts of a replica."""

    lane: str | None
    max_model_len: int | None
    slots: int | None
    kv_tokens: int | None
    in_flight: int
    lane_in_flight: dict[str, int]
    in_flight_tokens: int
    prefill_tokens: int
    long_in_flight: int
    others_in_flight: int | None
    """Of the other gateway processes; None = not known (older than the staleness bound)."""
    others_tokens: int | None
    kv_used_ratio: float | None
    gauges_at_s: float | None
    breaker: Breaker | None


class Ticket(Protocol):
    """A request on its way in. Compared by identity."""

    lane: str
    tier: str
    stream: bool
    prompt_tokens: int
    uncached_tokens: int
    """Prompt tokens that the engine must compute: `prompt_tokens`, or what the pick lowered it to."""
    context_tokens: int
    """What the replica's context must hold: the prompt and the asked output, at least one token."""
    kv_need_tokens: int
    arrived_at_s: float
    deadline_s: float
    tried: Sequence[Any]
    admitted_at_s: float
    """Set by the gate."""
    admission: Any
    """The gate's own note between entering and leaving; starts as None."""

    def on_admitted(self, replica: Any) -> None:
        """Its turn has come after it was queued. Must not raise."""

    def on_refused(self, error: GatewayError) -> None:
        """It was queued and will not be served. Must not raise."""


Pick = Callable[[Sequence[Any], Any, float], Any]
"""(candidates with room, ticket, now_s) → one of them, or None."""


class Gate:
    """Per model and release. Call `tick` every 20 ms while `waiting`, else each second."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self.waiting = 0

    def configure(
        self,
        lanes: Sequence[LaneRoute],
        settings: ModelSettings,
        replicas: Sequence[Replica],
        *,
        process_count: int = 1,
        now_s: float,
    ) -> None:
        """From the routing table; may be called at any time, counts and learnt limits stay."""

    def can_serve(self, ticket: Ticket, now_s: float) -> bool:
        """A replica exists that could serve it, now or later; else another release may (spill)."""
        raise NotImplementedError

    def enter(self, ticket: Ticket, now_s: float) -> Any | None:
        """The replica whose slot it has, or None: queued. Raises Refusal and other GatewayErrors."""
        raise NotImplementedError

    def enter_shadow(self, ticket: Ticket, now_s: float) -> Any | None:
        """Only into an idle slot; None: not now. Ends with `leave` too."""
        raise NotImplementedError

    def first_byte(self, ticket: Ticket, replica: Any, now_s: float) -> None:
        """The first byte of the answer's body; at most once per admission."""

    def leave(self, ticket: Ticket, replica: Any, now_s: float, *, outcome: str = "ok") -> None:
        """Exactly once per admission, whatever happened. A second call changes nothing."""

    def abandon(self, ticket: Ticket) -> None:
        """The client went while it was queued."""

    def pump(self, now_s: float) -> None:
        """Hands out free room."""

    def expire(self, now_s: float) -> None:
        """Refuses what waited too long."""

    def tick(self, now_s: float) -> None:
        """expire, watermarks, growth, pump."""

    def describe(self, now_s: float) -> dict[str, Any]:
        """For pages: JSON."""
        raise NotImplementedError
