"""A gate with replicas and tickets as small as they can be, and an engine that prefills in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pool.domain.breaker import Breaker
from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.routing_table import LaneRoute
from pool.gateway import tickets
from pool.gateway.admission import Gate
from pool.gateway.openai import GatewayError

LANES = (("short", 4096, 32, 300, 4), ("mid", 16_384, 8, 800, 2), ("long", None, 2, 2000, 1))


@dataclass(eq=False)
class Replica(tickets.Replica):
    id: str = "r0"
    generation: int = 1
    lane: str | None = None
    max_model_len: int | None = 131_072
    slots: int | None = 32
    kv_tokens: int | None = None
    in_flight: int = 0
    lane_in_flight: dict[str, int] = field(default_factory=dict)
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    long_in_flight: int = 0
    others_in_flight: int | None = 0
    others_tokens: int | None = 0
    kv_used_ratio: float | None = None
    gauges_at_s: float | None = None
    breaker: Breaker = field(default_factory=Breaker)

    def counts(self) -> tuple[int, ...]:
        held = sum(self.lane_in_flight.values())
        return (self.in_flight, held, self.in_flight_tokens, self.prefill_tokens, self.long_in_flight)


@dataclass(eq=False)
class Ticket(tickets.Ticket):
    lane: str = "short"
    tier: str = "standard"
    prompt_tokens: int = 10
    stream: bool = True
    kv_need_tokens: int = 0
    context_tokens: int = 0
    arrived_at_s: float = 0.0
    deadline_s: float = float("inf")
    tried: Sequence[Any] = ()
    admitted_at_s: float = 0.0
    admission: Any = None
    replica: Any = None
    error: GatewayError | None = None
    uncached_tokens: int = 0

    def __post_init__(self) -> None:
        self.uncached_tokens = self.prompt_tokens
        self.kv_need_tokens = self.kv_need_tokens or self.prompt_tokens
        self.context_tokens = self.context_tokens or self.prompt_tokens + 1

    def on_admitted(self, replica: Any) -> None:
        assert self.replica is None
        assert self.error is None
        self.replica = replica

    def on_refused(self, error: GatewayError) -> None:
        assert self.replica is None
        assert self.error is None
        self.error = error


class OpenBreaker(Breaker):
    def allows(self, now_s: float) -> bool:
        return False


def pick_least(candidates: Sequence[Any], ticket: Any, now_s: float) -> Any:
    return min(candidates, key=lambda one: (one.prefill_tokens, one.in_flight))


def make_routes(**settings: Any) -> list[LaneRoute]:
    """The default lanes, fixed unless told otherwise; `settings` go to each of them."""
    routes = []
    for name, bound, concurrency, ttft_target_ms, weight in LANES:
        usual = {
            "concurrency": concurrency, "ttft_target_ms": ttft_target_ms, "weight": weight, "adaptive": False,
        }  # fmt: skip
        routes.append(LaneRoute(name, bound, LaneSettings(**(usual | settings))))
    return routes


def make_gate(
    *replicas: Replica, model: ModelSettings | None = None, process_count: int = 1, **settings: Any
) -> Gate:
    gate = Gate(pick_least)
    gate.configure(
        make_routes(**settings),
        model or ModelSettings(),
        replicas or (Replica(),),
        process_count=process_count,
        now_s=0.0,
    )
    return gate


def enter(gate: Gate, ticket: Ticket, now_s: float = 0.0) -> Ticket:
    """As the gateway does: what it gets at once is noted like what it gets later."""
    ticket.arrived_at_s = now_s
    replica = gate.enter(ticket, now_s)
    if replica is not None:
        ticket.on_admitted(replica)
    return ticket


def fill(gate: Gate, count: int, now_s: float = 0.0, **fields: Any) -> list[Ticket]:
    return [enter(gate, Ticket(**fields), now_s) for _ in range(count)]


def teach_speed(gate: Gate, replicas: Sequence[Replica], speed: float = 8000.0) -> None:
    """One prompt of 1,600 tokens at each: 0.2 s."""
    for _ in replicas:
        tickets = fill(gate, len(replicas), prompt_tokens=int(speed * 0.2))
        for ticket in tickets:
            gate.first_byte(ticket, 0.2)
            gate.leave(ticket, 0.2)
