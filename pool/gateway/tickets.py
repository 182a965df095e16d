"""What admission reads, counts and calls of requests and replicas."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pool.domain.breaker import Breaker
from pool.gateway.openai import GatewayError

if TYPE_CHECKING:
    from pool.gateway.places import Admission

# Base classes, not protocols: where they are compiled, a field of a known class is read at once, one of a protocol
# is looked up by its name.


class Replica:
    """What admission reads and counts of a replica."""

    __slots__ = (
        "breaker", "gauges_at_s", "generation", "id", "in_flight", "in_flight_tokens", "kv_tokens", "kv_used_ratio",
        "lane", "lane_in_flight", "long_in_flight", "max_model_len", "others_in_flight", "others_tokens",
        "prefill_tokens", "slots",
    )  # fmt: skip

    id: str
    generation: int
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
    breaker: Breaker


class Ticket:
    """A request on its way in. Compared by identity."""

    __slots__ = (
        "admission", "admitted_at_s", "arrived_at_s", "context_tokens", "deadline_s", "kv_need_tokens", "lane",
        "prompt_tokens", "stream", "tier", "tried", "uncached_tokens",
    )  # fmt: skip

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
    admission: "Admission | None"
    """The gate's own note between entering and leaving; starts as None."""

    def on_admitted(self, replica: Any) -> None:
        """Its turn has come after it was queued. Must not raise."""

    def on_refused(self, error: GatewayError) -> None:
        """It was queued and will not be served. Must not raise."""
