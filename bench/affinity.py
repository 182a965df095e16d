"""How many prompt tokens 8 prefix caches serve that the gateway's code cannot see, and how even the work is.

    python -m bench.affinity [--trace PATH] [--quick] [--vllm-router PATH]

Against round robin, one pooled cache of the same size (the oracle) and, where installed, vllm-router's `cache_aware`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench._figures import print_figure, say
from bench._prefix_sim import CACHE_BLOCKS, REPLICAS, Agenda, Engines, Outcome, Replica, Served, run_blind
from bench._prefix_trace import BLOCK_TOKENS, Call, make_trace, read_trace
from bench._router_peer import find_router, run_router
from pool.domain.affinity import PrefixIndex
from pool.domain.routing import choose_by_score

ORACLE_LIMIT, LOAD_LIMIT, WINDOW_LIMIT = 0.97, 1.05, 1.05
QUICK_S = 600.0
PROCESSES = 4
SHARED_EVERY_S = 0.2


class Request:
    """A ticket, as the choice and the index see it."""

    def __init__(self, call: Call) -> None:
        self.prompt_tokens = self.uncached_tokens = call.prompt_tokens
        self.output_tokens = call.output_tokens
        self.kv_need_tokens = call.prompt_tokens + call.output_tokens
        self.blocks = call.blocks


class Gateway:
    """One gateway process: its index, its counts on its replicas."""

    def __init__(self, seed: int) -> None:
        self.index = PrefixIndex(block_tokens=BLOCK_TOKENS)
        self.replicas = [Replica(number) for number in range(REPLICAS)]
        for replica in self.replicas:
            replica.cached = self.index.add(str(replica.number), 0, replica.kv_tokens)
        self._draw = random.Random(seed).random

    def send(self, call: Call, engines: Engines, agenda: Agenda) -> None:
        request = Request(call)
        replica = choose_by_score(self.replicas, request, now_s=call.at_s, draw=self._draw, index=self.index)
        assert replica is not None
        assert replica.cached is not None
        self.index.note_sent(replica.cached, request, call.at_s)
        replica.in_flight += 1
        replica.in_flight_tokens += request.kv_need_tokens
        replica.prefill_tokens += request.uncached_tokens
        served = engines.serve(replica.number, call)
        agenda.add(served.first_token_at_s, partial(self._begin, replica, request))
        agenda.add(served.finished_at_s, partial(self._end, replica, request, served))

    def _begin(self, replica: Replica, request: Request) -> None:
        replica.prefill_tokens -= request.uncached_tokens

    def _end(self, replica: Replica, request: Request, served: Served) -> None:
        replica.in_flight -= 1
        replica.in_flight_tokens -= request.kv_need_tokens
        self.index.note_result(
            prompt_tokens=request.prompt_tokens,
            expected_tokens=request.prompt_tokens - request.uncached_tokens,
            engine_tokens=served.cached_tokens,
        )


def main() -> int:
    options = _parse_options()
    calls = read_trace(options.trace) if options.trace else make_trace(random.Random(1))
    if options.quick:
        calls = [call for call in calls if call.at_s < QUICK_S]
    say(f"{len(calls)} requests, {sum(call.prompt_tokens for call in calls):,} prompt tokens")
    oracle = run_blind(calls, replicas=1, cache_blocks=REPLICAS * CACHE_BLOCKS)
    in_turn = run_blind(calls, replicas=REPLICAS, cache_blocks=CACHE_BLOCKS)
    ours = run_gateways(calls, 1)
    several = run_gateways(calls, PROCESSES)
    for name, outcome in (
        ("oracle", oracle),
        ("round_robin", in_turn),
        ("sluice", ours),
        ("processes", several),
    ):
        _say_outcome(name, outcome)
    good = _print_figures(ours, oracle, in_turn)
    _print_ratio("cached_tokens_ratio_4_processes", several, oracle, "oracle")
    router = find_router(options.vllm_router)
    if router is not None:
        peers = [run_router(router, calls) for _ in range(1 if options.quick else 2)]
        for peer in peers:
            _say_outcome("vllm-router", peer)
        best = max(peers, key=lambda peer: peer.cached_tokens)
        _print_ratio("cached_tokens_ratio", ours, best, "vllm-router")
    return 0 if good else 1


def run_gateways(calls: Sequence[Call], processes: int) -> Outcome:
    """Each request comes to one of the processes at random; they tell each other what they sent five times a second."""
    engines, agenda, draw = Engines(REPLICAS, CACHE_BLOCKS), Agenda(), random.Random(processes)
    gateways = [Gateway(seed) for seed in range(processes)]
    next_share_at_s = 0.0
    for call in calls:
        while processes > 1 and next_share_at_s <= call.at_s:
            agenda.run_until(next_share_at_s)
            _share(gateways, next_share_at_s)
            next_share_at_s += SHARED_EVERY_S
        agenda.run_until(call.at_s)
        draw.choice(gateways).send(call, engines, agenda)
    say(f"index: {gateways[0].index.describe()}")
    return engines.outcome


def _share(gateways: Sequence[Gateway], now_s: float) -> None:
    told = [gateway.index.read_notes(now_s) for gateway in gateways]
    for reader in gateways:
        for number, writer in enumerate(gateways):
            if writer is not reader:
                reader.index.absorb_notes(str(number), told[number])
    for place, replicas in enumerate(zip(*(gateway.replicas for gateway in gateways), strict=True)):
        requests = sum(replica.in_flight for replica in replicas)
        tokens = sum(replica.in_flight_tokens for replica in replicas)
        for gateway in gateways:
            own = gateway.replicas[place]
            own.others_in_flight, own.others_tokens = requests - own.in_flight, tokens - own.in_flight_tokens


def _print_figures(ours: Outcome, oracle: Outcome, in_turn: Outcome) -> bool:
    good = _print_ratio("cached_tokens_ratio", ours, oracle, "oracle", limit=ORACLE_LIMIT)
    _print_ratio("cached_tokens_ratio", ours, in_turn, "round_robin")
    load = round(ours.max_mean_load, 4)
    good &= print_figure("affinity", "max_mean_load_ratio", load, unit="ratio", limit=LOAD_LIMIT)
    window = round(ours.window_load / in_turn.window_load, 4)
    return good & print_figure(
        "affinity", "window_load_ratio", window, unit="ratio", against="round_robin", limit=WINDOW_LIMIT
    )


def _print_ratio(figure: str, ours: Outcome, peer: Outcome, against: str, limit: float | None = None) -> bool:
    value = round(ours.cached_tokens / peer.cached_tokens, 4)
    return print_figure("affinity", figure, value, unit="ratio", against=against, limit=limit, at_least=True)


def _say_outcome(name: str, outcome: Outcome) -> None:
    text = f"{name}: cached {outcome.cached_ratio:.2%} of prompt tokens"
    if len(outcome.sent) > 1:
        marks = statistics.quantiles(outcome.first_tokens_s, n=100)
        text += f", load max/mean {outcome.max_mean_load:.3f}, in windows {outcome.window_load:.3f}"
        text += f", TTFT p50 {marks[49]:.2f} s, p99 {marks[98]:.2f} s"
    say(text)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file in the form of the Mooncake conversation trace")
    parser.add_argument("--quick", action="store_true", help="the first ten minutes")
    parser.add_argument("--vllm-router", type=Path, help="its program, if it is not on the path")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
