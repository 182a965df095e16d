"""Lanes against one FIFO queue in front of the same replicas, on a virtual clock.

    python -m bench.lanes [--quick] [--trace PATH …] [--seed N]

The real admission (`pool.gateway.admission.Gate`) and choice of a replica (`pool.domain.routing`) with the
default lanes and settings, over four simulated engines at 80 % of their capacity; chat, code and long-context
requests in one mix, with arrivals as recorded and at random. The worse of both is the figure.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench import _sim_engine as sim
from bench._figures import print_figure, say
from bench._mix import Call, draw_arrivals, make_mix, read_traces, scale_arrivals
from pool.domain.breaker import Breaker
from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.lanes import Lane, default_lanes, lane_of
from pool.domain.qos import slots_for_tiers
from pool.domain.routing import choose_by_score
from pool.domain.routing_table import LaneRoute
from pool.gateway import tickets
from pool.gateway.admission import Gate
from pool.gateway.openai import GatewayError

REPLICAS = 4
LOAD_RATIO = 0.8
CONTEXT_TOKENS = 131_072
TTFT_LIMIT, GOODPUT_LIMIT = 0.35, 0.95
TICK_S = 0.02
# What the gateway assumes of an answer whose length nobody limited.
EXPECTED_OUTPUT_TOKENS = 512
WARM_UP_RATIO = 0.1
QUICK_RATIO = 0.125
CAPACITY_CALLS = 8_000
SHORT_P99_SLO_S = 2.0
LANES: tuple[Lane, ...] = default_lanes(CONTEXT_TOKENS)
FIFO_LIMITS = LaneSettings()


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = 0

    def schedule(self, at_s: float, call: Callable[[float], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at_s, self._serial, call))

    def run(self) -> None:
        while self._events:
            self.now_s, _, call = heapq.heappop(self._events)
            call(self.now_s)


@dataclass(eq=False, slots=True)
class Replica(tickets.Replica):
    """As `pool.gateway.replicas.LiveReplica`, with the engine behind it."""

    id: str
    engine: sim.SimEngine
    generation: int = 1
    lane: str | None = None
    max_model_len: int | None = CONTEXT_TOKENS
    slots: int | None = sim.SLOTS
    kv_tokens: int | None = sim.KV_TOKENS
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
    waiting: int | None = None
    error_score: float = 0.0
    cached: Any = None


class Run(tickets.Ticket):
    """One request in one arm: the gateway's ticket and the engine's job."""

    __slots__ = (
        "answer_tokens", "arm", "blocks", "finished_at_s", "first_token_at_s", "refused", "replica",
    )  # fmt: skip

    def __init__(self, arm: Arm, call: Call, *, stream: bool) -> None:
        self.arm = arm
        self.lane = lane_of(call.prompt_tokens, LANES).name
        self.tier = "standard"
        self.stream = stream
        self.prompt_tokens = self.uncached_tokens = call.prompt_tokens
        self.answer_tokens = call.output_tokens
        self.context_tokens = call.prompt_tokens + 1
        self.kv_need_tokens = call.prompt_tokens + EXPECTED_OUTPUT_TOKENS
        self.arrived_at_s = call.at_s
        self.deadline_s = math.inf
        self.tried: Sequence[Any] = ()
        self.blocks: Sequence[int] = ()
        self.admitted_at_s = 0.0
        self.admission: Any = None
        self.replica: Replica | None = None
        self.first_token_at_s: float | None = None
        self.finished_at_s: float | None = None
        self.refused = False

    @property
    def ttft_s(self) -> float:
        """From arrival; only of an answered one."""
        assert self.first_token_at_s is not None
        return self.first_token_at_s - self.arrived_at_s

    def on_admitted(self, replica: Replica) -> None:
        self.replica = replica
        replica.engine.submit(self, self.arm.clock.now_s)

    def on_refused(self, error: GatewayError) -> None:
        self.refused = True

    def on_first_token(self, now_s: float) -> None:
        self.first_token_at_s = now_s
        if self.stream:
            self.arm.note_first_byte(self, now_s)

    def on_finished(self, now_s: float) -> None:
        self.finished_at_s = now_s
        if not self.stream:
            self.arm.note_first_byte(self, now_s)
        self.arm.note_end(self, now_s)


class Arm:
    """What stands in front of the engines."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.replicas = [Replica(f"r{n}", sim.SimEngine(self.clock.schedule)) for n in range(REPLICAS)]

    def serve(self, calls: Sequence[Call]) -> list[Run]:
        runs = [Run(self, call, stream=number % 4 != 3) for number, call in enumerate(calls)]
        for run in runs:
            self.clock.schedule(run.arrived_at_s, partial(self.accept, run))
        self.clock.run()
        return runs

    def accept(self, run: Run, now_s: float) -> None:
        raise NotImplementedError

    def note_first_byte(self, run: Run, now_s: float) -> None:
        raise NotImplementedError

    def note_end(self, run: Run, now_s: float) -> None:
        raise NotImplementedError


class LaneArm(Arm):
    def __init__(self) -> None:
        super().__init__()
        # Without block hashes, as in a mix without common beginnings: this bench measures the order of service.
        self.gate = Gate(self._pick)
        self._draw = random.Random(0)
        routes = [
            LaneRoute(
                lane.name,
                lane.max_prompt_tokens,
                LaneSettings(
                    concurrency=lane.concurrency, ttft_target_ms=lane.ttft_target_ms, weight=lane.weight
                ),
            )
            for lane in LANES
        ]
        self.gate.configure(routes, ModelSettings(), self.replicas, now_s=0.0)
        self._is_ticking = False
        self._refreshed_at_s = 0.0

    def _pick(self, candidates: Sequence[Replica], run: Run, now_s: float) -> Replica | None:
        return choose_by_score(candidates, run, now_s=now_s, draw=self._draw.random, index=None)

    def accept(self, run: Run, now_s: float) -> None:
        try:
            replica = self.gate.enter(run, now_s)
        except GatewayError:
            run.refused = True
            return
        if replica is not None:
            run.on_admitted(replica)
        self._watch(now_s)

    def note_first_byte(self, run: Run, now_s: float) -> None:
        self.gate.first_byte(run, now_s)

    def note_end(self, run: Run, now_s: float) -> None:
        self.gate.leave(run, now_s)

    def _watch(self, now_s: float) -> None:
        """The gateway's timer: each 20 ms while somebody waits, else each second."""
        if now_s - self._refreshed_at_s >= 1.0:
            self._refreshed_at_s = now_s
            self.gate.tick(now_s)
        if self.gate.waiting and not self._is_ticking:
            self._is_ticking = True
            self.clock.schedule(now_s + TICK_S, self._tick)

    def _tick(self, now_s: float) -> None:
        self._is_ticking = False
        self._refreshed_at_s = now_s
        self.gate.tick(now_s)
        self._watch(now_s)


class FifoArm(Arm):
    """In the order of arrival, each to the replica with the fewest tokens in flight; the limits are those
    that all lanes have together."""

    def __init__(
        self,
        *,
        queue_limit: int = FIFO_LIMITS.queue_limit * len(LANES),
        timeout_s: float = FIFO_LIMITS.queue_timeout_s,
    ) -> None:
        super().__init__()
        settings = ModelSettings()
        self._slots, _ = slots_for_tiers(
            sim.SLOTS, vip_reserve_ratio=settings.vip_reserve_ratio, burst_ratio=settings.burst_ratio
        )
        self._queue: deque[Run] = deque()
        self._queue_limit = queue_limit
        self._timeout_s = timeout_s

    def accept(self, run: Run, now_s: float) -> None:
        self._expire(now_s)
        if len(self._queue) >= self._queue_limit:
            run.refused = True
            return
        self._queue.append(run)
        self._hand_out()

    def note_first_byte(self, run: Run, now_s: float) -> None:
        """A FIFO queue learns nothing from it."""

    def note_end(self, run: Run, now_s: float) -> None:
        replica = run.replica
        assert replica is not None
        replica.in_flight -= 1
        replica.in_flight_tokens -= run.kv_need_tokens
        self._expire(now_s)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue:
            free = [replica for replica in self.replicas if replica.in_flight < self._slots]
            if not free:
                return
            run = self._queue.popleft()
            replica = min(free, key=lambda one: one.in_flight_tokens)
            replica.in_flight += 1
            replica.in_flight_tokens += run.kv_need_tokens
            run.on_admitted(replica)

    def _expire(self, now_s: float) -> None:
        while self._queue and self._queue[0].arrived_at_s + self._timeout_s <= now_s:
            self._queue.popleft().refused = True


@dataclass(frozen=True)
class Result:
    """Of one arm, without the warm-up."""

    p99_ttft_s: dict[str, float]
    long_tokens_per_s: float
    """Prompt and answer tokens of long requests that were answered."""
    long_in_slo_ratio: float
    refused: dict[str, int]


def main() -> int:
    options = _parse_options()
    draw = random.Random(options.seed)
    base = read_traces(options.trace) if options.trace else make_mix(draw)
    capacity = measure_capacity(base, draw)
    say(f"capacity of {REPLICAS} replicas with this mix: {capacity:,.0f} tokens/s")
    # A part of the hour has a load of its own: it is cut before it is scaled.
    part = base[: int(len(base) * QUICK_RATIO)] if options.quick else base
    recorded = scale_arrivals(part, LOAD_RATIO * capacity)
    arrivals = {"recorded": recorded, "poisson": draw_arrivals(recorded, draw)}
    ratios = [_compare(name, calls) for name, calls in arrivals.items()]
    good = print_figure("lanes", "capacity_tokens_per_s", round(capacity), unit="tokens/s")
    for name, (ttft, goodput, in_slo) in zip(arrivals, ratios, strict=True):
        good &= print_figure("lanes", f"short_p99_ttft_ratio_{name}", ttft, unit="ratio", against="fifo")
        good &= print_figure("lanes", f"long_goodput_ratio_{name}", goodput, unit="ratio", against="fifo")
        good &= print_figure("lanes", f"long_in_slo_ratio_{name}", in_slo, unit="ratio", against="fifo")
    worst_ttft, worst_goodput = max(one[0] for one in ratios), min(one[1] for one in ratios)
    good &= print_figure(
        "lanes", "short_p99_ttft_ratio", worst_ttft, unit="ratio", against="fifo", limit=TTFT_LIMIT
    )
    good &= print_figure(
        "lanes",
        "long_goodput_ratio",
        worst_goodput,
        unit="ratio",
        against="fifo",
        limit=GOODPUT_LIMIT,
        at_least=True,
    )
    return 0 if good else 1


def measure_capacity(calls: Sequence[Call], draw: random.Random) -> float:
    """Tokens per second (prompt and answer) that the replicas serve while more waits than they can serve."""
    sample = draw.sample(calls, min(CAPACITY_CALLS, len(calls)))
    at_once = [Call(0.0, call.prompt_tokens, call.output_tokens) for call in sample]
    arm = FifoArm(queue_limit=len(at_once), timeout_s=math.inf)
    runs = sorted(arm.serve(at_once), key=lambda run: run.finished_at_s or 0.0)
    quarter = len(runs) // 4
    middle = runs[quarter:-quarter]
    tokens = sum(run.prompt_tokens + run.answer_tokens for run in middle)
    return tokens / ((middle[-1].finished_at_s or 0.0) - (middle[0].finished_at_s or 0.0))


def _compare(name: str, calls: Sequence[Call]) -> tuple[float, float, float]:
    """Lanes ÷ FIFO: P99 TTFT of the short lane, goodput of the long one, its share of requests in the SLO."""
    lanes = _summarise(LaneArm().serve(calls))
    say(f"{name}, lanes: {lanes}")
    fifo = _summarise(FifoArm().serve(calls))
    say(f"{name}, fifo: {fifo}")
    short = LANES[0].name
    return (
        round(lanes.p99_ttft_s[short] / fifo.p99_ttft_s[short], 4),
        round(lanes.long_tokens_per_s / fifo.long_tokens_per_s, 4),
        round(lanes.long_in_slo_ratio / fifo.long_in_slo_ratio, 4),
    )


def _summarise(runs: Sequence[Run]) -> Result:
    measured = runs[int(len(runs) * WARM_UP_RATIO) :]
    span_s = measured[-1].arrived_at_s - measured[0].arrived_at_s
    by_lane = {lane.name: [run for run in measured if run.lane == lane.name] for lane in LANES}
    long = by_lane[LANES[-1].name]
    answered = [run for run in long if not run.refused]
    # The P99 of the short lane's SLO, scaled by the lane's target, beyond what the prompt takes alone.
    slo_s = SHORT_P99_SLO_S * LANES[-1].ttft_target_ms / LANES[0].ttft_target_ms
    in_slo = [run for run in answered if run.ttft_s <= slo_s + run.prompt_tokens / sim.PREFILL_TOKENS_PER_S]
    return Result(
        p99_ttft_s={name: round(_quantile(mine, 0.99), 3) for name, mine in by_lane.items()},
        long_tokens_per_s=sum(run.prompt_tokens + run.answer_tokens for run in answered) / span_s,
        long_in_slo_ratio=len(in_slo) / len(long),
        refused={name: sum(run.refused for run in mine) for name, mine in by_lane.items()},
    )


def _quantile(runs: Sequence[Run], share: float) -> float:
    """A refused request counts as the worst: refusing the slow ones is no way to a better figure."""
    times = sorted(math.inf if run.refused else run.ttft_s for run in runs)
    return times[min(len(times) - 1, int(len(times) * share))]


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sluice bench lanes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an eighth of the hour")
    parser.add_argument(
        "--trace", type=Path, nargs="+", action="extend", default=[], help="recorded requests"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
