"""How often the gates of a rollout are wrong, and how soon they are right, on simulated hours of requests.

    python -m bench.verdict [--quick] [--runs N] [--processes N] [--only NAME ...]

5 requests/s, half of the sessions to the candidate, six gates at margin 0, 5 % for all together. The evidence changes
at the end of a block of 10 s only, so that a look at each of them is a look at every second.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench._figures import print_figure, say
from bench._verdict_sim import LANES, Scenario, make_blocks
from pool.domain.gates import ALPHA, GATES, read_gates
from pool.domain.rollout import Judgement
from pool.domain.strata import BLOCK_S, Sample
from pool.domain.verdict import FAIR_BAR, Verdict

BENCH: Final = "verdict"
MARGIN_ZERO = read_gates({gate: {"margin_ratio": 0.0} for gate in GATES})
USUAL = read_gates({})
WORSE_BAR = math.log(len(GATES) / ALPHA)
SLOW = Scenario(slow={"short": 1.2})
POWER: Final = 0.9
Curve = list[tuple[int, float]]
_QUANTILES: Final = {"per_gate": 2.394, "single": 1.645}
"""Of the normal law, one-sided: at 0.05 ÷ 6, as a gate's own bar, and at 0.05."""


@dataclass(frozen=True)
class Case:
    """`at_margin`: with the margins of an operator who set none, else at margin 0. `runs`: at full, and quick."""

    scenario: Scenario
    runs: tuple[int, int]
    at_margin: bool = False


CASES: Final = {
    "same": Case(Scenario(), (1000, 12)),
    "mix": Case(Scenario(shift=True), (200, 8)),
    "own_noise": Case(Scenario(own_noise=0.05), (40, 0)),
    "slow": Case(SLOW, (150, 12)),
    "errors": Case(Scenario(errors=(0.005, 0.02)), (200, 8)),
    "same_at_margin": Case(Scenario(), (40, 4), at_margin=True),
    "slow_by_margin": Case(Scenario(slow_all=1.1), (60, 4), at_margin=True),
    "slow_at_margin": Case(Scenario(slow={"short": 1.2}), (20, 0), at_margin=True),
    "idle": Case(Scenario(per_s=0.0), (2, 2)),
}


@dataclass(frozen=True)
class Run:
    """`worse_after`, `fair_after`: (units, candidate's requests, blocks) when it was said first; None: never."""

    worse_after: tuple[int, int, int] | None
    fair_after: tuple[int, int, int] | None
    time_gates_fair: bool
    last: Judgement


def main() -> int:
    options = _parse_options()
    began = time.monotonic()
    good = True
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for name in options.only or CASES:
            size = options.runs or CASES[name].runs[options.quick]
            if not size:
                continue
            runs = pool.map(judge_run, [(name, seed) for seed in range(size)], chunksize=1)
            say(f"{name}: {size} runs, {time.monotonic() - began:.0f} s since the start")
            needed = _needed_units(pool.map(rank_curve, range(min(size, 200)))) if name == "slow" else {}
            good &= _print_case(name, runs, needed, is_quick=options.quick)
    minutes = round((time.monotonic() - began) / 60, 2)
    good &= print_figure(BENCH, "bench_minutes", minutes, unit="min", limit=20)
    return 0 if good else 1


def judge_run(task: tuple[str, int]) -> Run:
    """One hour, or until all that is asked of it is known."""
    name, seed = task
    case = CASES[name]
    settings = USUAL if case.at_margin else MARGIN_ZERO
    verdict, blocks = Verdict(settings, LANES), make_blocks(seed, case.scenario)
    worse: tuple[int, int, int] | None = None
    fair: tuple[int, int, int] | None = None
    units = mine = 0
    for number in range(case.scenario.seconds // BLOCK_S):
        samples = blocks.get(number, [])
        verdict.add_block(number, samples)
        units += len({(sample.session, sample.lane) for sample in samples})
        mine += sum(sample.candidate for sample in samples)
        comparisons = verdict.comparisons.values()
        if worse is None and max(one.highest_worse for one in comparisons) >= WORSE_BAR:
            worse = (units, mine, number + 1)
            if not case.at_margin:
                break
        if fair is None and min(one.fair_log for one in comparisons) >= FAIR_BAR:
            fair = (units, mine, number + 1)
    times = [verdict.comparisons[gate].fair_log >= FAIR_BAR for gate in ("ttft", "itl", "per_token")]
    return Run(worse, fair, any(times), verdict.read().judgement)


def _print_case(name: str, runs: Sequence[Run], needed: dict[str, int | None], *, is_quick: bool) -> bool:
    """With few runs a bound on a share is loosened by what chance alone does to it in 1 of 1,000."""
    size = len(runs)
    worse = [run.worse_after for run in runs if run.worse_after is not None]
    if name in ("same", "mix", "own_noise"):
        # Noise of one release's own is a difference for minutes: few runs tell how often it is taken for a lasting one.
        limit = _loosen(ALPHA, size) if is_quick or name == "own_noise" else ALPHA
        return _print_share(f"false_worse_{name}", len(worse), size, limit=limit)
    if name == "slow":
        return _print_slow(worse, size, needed)
    if name == "errors":
        soon = sum(mine < 3000 for _, mine, _ in worse)
        _print_median("errors_candidate_requests", [mine for _, mine, _ in worse])
        lowest = 0.95 if not is_quick else 1 - _loosen(0.05, size)
        return _print_share("errors_found_before_3000", soon, size, limit=lowest, at_least=True)
    if name == "idle":
        moved = sum(run.last is not Judgement.NOT_YET for run in runs)
        return print_figure(BENCH, "idle_not_yet_broken", moved, unit="runs", limit=0)
    return _print_at_margin(name, runs, worse, is_quick=is_quick)


def _print_slow(worse: Sequence[tuple[int, int, int]], size: int, needed: dict[str, int | None]) -> bool:
    good = _print_share("slow_found", len(worse), size, limit=0.9, at_least=True)
    units = statistics.median([units for units, _, _ in worse]) if worse else None
    print_figure(BENCH, "slow_median_units", units, unit="units")
    for level, count in needed.items():
        print_figure(BENCH, "mann_whitney_units", count, unit="units", against=f"level {level}, power 0.9")
    for level, count in needed.items():
        ratio = round(units / count, 3) if units and count else None
        # The bar of a gate is 5 % ÷ 6: the same level is what a fair comparison has. The other one is printed too.
        limit = 2.0 if level == "per_gate" else None
        against = f"mann_whitney, level {level}"
        good &= print_figure(BENCH, "slow_units_ratio", ratio, unit="ratio", against=against, limit=limit)
    return good


def _print_at_margin(
    name: str, runs: Sequence[Run], worse: Sequence[tuple[int, int, int]], *, is_quick: bool
) -> bool:
    size = len(runs)
    fair = [run.fair_after for run in runs if run.fair_after is not None]
    if name == "slow_by_margin":
        limit = _loosen(ALPHA, size) if is_quick else ALPHA
        wrong = sum(run.fair_after is not None for run in runs)
        _print_share("false_not_worse_any_time_gate", sum(run.time_gates_fair for run in runs), size)
        return _print_share("false_not_worse", wrong, size, limit=limit)
    if name == "same_at_margin":
        _print_median("not_worse_minutes", [blocks * BLOCK_S / 60 for _, _, blocks in fair])
        _print_share("not_worse_within_an_hour", len(fair), size)
        return _print_share("false_worse_at_margin", len(worse), size, limit=_loosen(ALPHA, size))
    _print_median("slow_at_margin_units", [units for units, _, _ in worse])
    return _print_share("slow_at_margin_found", len(worse), size)


def _print_share(
    figure: str, count: int, size: int, *, limit: float | None = None, at_least: bool = False
) -> bool:
    value = round(count / size, 4) if size else None
    return print_figure(
        BENCH, figure, value, unit="ratio", against=f"{size} runs", limit=limit, at_least=at_least
    )


def _print_median(figure: str, values: Sequence[float]) -> None:
    value = round(statistics.median(values), 1) if values else None
    print_figure(BENCH, figure, value, unit="min" if figure.endswith("minutes") else "count")


def _loosen(share: float, size: int) -> float:
    return min(1.0, round(share + 3.1 * math.sqrt(share * (1 - share) / size), 4))


def _needed_units(curves: Sequence[Curve]) -> dict[str, int | None]:
    """Of all lanes, until a Mann-Whitney test of the slow lane's units so far finds it in 9 of 10 hours."""
    size = len(curves)
    found: dict[str, int | None] = {}
    for level, quantile in _QUANTILES.items():
        found[level] = None
        for place in range(min(len(curve) for curve in curves)):
            power = sum(curve[place][1] > quantile for curve in curves) / size
            if power >= POWER:
                found[level] = int(statistics.median(curve[place][0] for curve in curves))
                break
    return found


def rank_curve(seed: int, most_blocks: int = 180) -> Curve:
    """By block: units so far, and the test's normal deviate."""
    blocks = make_blocks(seed, SLOW)
    values: list[float] = []
    chosen: list[bool] = []
    units, curve = 0, []
    for number in range(most_blocks):
        samples = blocks.get(number, [])
        units += len({(sample.session, sample.lane) for sample in samples})
        for value, mine in _slow_units(samples):
            values.append(value)
            chosen.append(mine)
        curve.append((units, _deviate(np.array(values), np.array(chosen, dtype=bool))))
    return curve


def _slow_units(samples: Sequence[Sample]) -> list[tuple[float, bool]]:
    """Mean time to first token of each session of the slow lane in one block."""
    units: dict[int | None, tuple[bool, list[float]]] = {}
    for sample in samples:
        if sample.lane == "short" and sample.ttft_s is not None and not sample.error:
            units.setdefault(sample.session, (sample.candidate, []))[1].append(sample.ttft_s)
    return [(statistics.fmean(times), mine) for mine, times in units.values()]


def _deviate(values: np.ndarray, chosen: np.ndarray) -> float:
    mine, others = int(chosen.sum()), int((~chosen).sum())
    if not mine or not others:
        return 0.0
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(1, len(values) + 1)
    above = ranks[chosen].sum() - mine * (mine + 1) / 2 - mine * others / 2
    return float(above / math.sqrt(mine * others * (mine + others + 1) / 12))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 runs in all: shares are bounded loosely")
    parser.add_argument("--runs", type=int, help="of each case, instead of its own number")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="some cases")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
