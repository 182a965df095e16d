"""A mix of short and long chats at a stated rate against a running installation, as its callers see it.

    ./sluice bench load [--rate 2] [--seconds 60] [--mix 7:3] [--model NAME] [--url URL --key KEY | --data DIR]

Requests are streams, sent on time at random intervals whether or not the earlier ones are answered, so that a
slow gateway shows; a TTFT counts from the moment when its request was due. Per lane, as JSON lines: TTFT, ITL
and errors; all together: tokens per second and how late this program itself was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvloop

from bench._bar import Bar
from bench._figures import print_figure, say
from bench._installation import NothingRuns, Target, find_target
from bench._stream_client import Outcome, ask
from pool.domain.histogram import Histogram

QUICK_S = 10.0
SHOW_EVERY_S = 0.5
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SHORT_TOKENS = 200
MOST_LONG_TOKENS = 20_000
# Of the context; prompts vary by a quarter, and words are not quite tokens.
LONG_SHARE = 0.5
WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "this",
    "are", "or", "his", "from", "at", "which", "but", "have", "an", "had", "they", "you", "were", "there", "one",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """`short` and `long` are the parts of the mix; tokens are of prompts, on average."""

    model: str
    rate: float = 2.0
    seconds: float = 60.0
    short: float = 7.0
    long: float = 3.0
    short_tokens: int = SHORT_TOKENS
    long_tokens: int = 4_000
    output_tokens: int = 64
    timeout_s: float = 300.0
    seed: int = 1


@dataclass
class Lane:
    requests: int = 0
    errors: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)


@dataclass
class Tally:
    sent: int = 0
    answered: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    send_delay: Histogram = field(default_factory=Histogram)
    ended_s: float = 0.0
    """From the first request's time on."""

    @property
    def failed(self) -> int:
        return self.errors.total()

    def note(self, outcome: Outcome) -> None:
        lane = self.lanes.setdefault(outcome.lane, Lane())
        lane.requests += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.output_tokens += outcome.output_tokens
        if outcome.code:
            lane.errors += 1
            self.errors[outcome.code] += 1
        else:
            self.answered += 1
        if outcome.ttft_s is not None:
            lane.ttft.add(outcome.ttft_s)
        for gap_s in outcome.gaps_s:
            lane.itl.add(gap_s)


async def run_load(target: Target, plan: Plan, bar: Bar) -> Tally:
    """Ends when the last request has ended."""
    draw, tally = random.Random(plan.seed), Tally()
    running: set[asyncio.Task[None]] = set()
    started_s = time.perf_counter()

    async def send(fields: dict[str, Any], due_s: float) -> None:
        tally.note(await ask(target, fields, due_s=due_s, timeout_s=plan.timeout_s))
        tally.ended_s = time.perf_counter() - started_s

    due_s = started_s + draw.expovariate(plan.rate)
    while due_s < started_s + plan.seconds:
        fields = make_request(plan, draw)
        while (left_s := due_s - time.perf_counter()) > 0:
            _show(bar, plan, tally, time.perf_counter() - started_s)
            await asyncio.sleep(min(SHOW_EVERY_S, left_s))
        tally.sent += 1
        tally.send_delay.add(max(0.0, time.perf_counter() - due_s))
        task = asyncio.create_task(send(fields, due_s))
        running.add(task)
        task.add_done_callback(running.discard)
        due_s += draw.expovariate(plan.rate)
    while running:
        _show(bar, plan, tally, time.perf_counter() - started_s)
        await asyncio.wait(running, timeout=SHOW_EVERY_S)
    _show(bar, plan, tally, plan.seconds)
    bar.end()
    return tally


def make_request(plan: Plan, draw: random.Random) -> dict[str, Any]:
    """No two prompts begin alike, so that no cache answers."""
    is_long = draw.random() * (plan.short + plan.long) >= plan.short
    tokens = int((plan.long_tokens if is_long else plan.short_tokens) * draw.uniform(0.75, 1.25))
    return {
        "model": plan.model,
        "messages": [{"role": "user", "content": " ".join(draw.choices(WORDS, k=max(1, tokens)))}],
        "max_tokens": plan.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def report(plan: Plan, tally: Tally) -> bool:
    """False when nothing was answered."""
    for name, lane in sorted(tally.lanes.items()):
        print_figure("load", f"{name}_requests", lane.requests, unit="requests")
        print_figure("load", f"{name}_error_ratio", round(lane.errors / lane.requests, 4), unit="ratio")
        for what, times in (("ttft", lane.ttft), ("itl", lane.itl)):
            for quantile, share in QUANTILES.items():
                value = times.quantile(share)
                if value is not None:
                    print_figure("load", f"{name}_{what}_{quantile}_s", round(value, 4), unit="s")
    for code, count in sorted(tally.errors.items()):
        print_figure("load", f"errors_{code}", count, unit="requests")
    delay_s = tally.send_delay.quantile(0.99)
    print_figure("load", "requests", tally.sent, unit="requests")
    print_figure("load", "sent_per_s", round(tally.sent / plan.seconds, 3), unit="requests/s")
    print_figure("load", "send_delay_p99_s", None if delay_s is None else round(delay_s, 4), unit="s")
    span_s = max(tally.ended_s, plan.seconds)
    print_figure("load", "prompt_tokens_per_s", round(tally.prompt_tokens / span_s, 1), unit="tokens/s")
    print_figure("load", "tokens_per_s", round(tally.output_tokens / span_s, 1), unit="tokens/s")
    return tally.answered > 0


def choose_model(target: Target, name: str | None) -> tuple[str, int | None]:
    """The named model, else the first that the key may use, and its context. Raises NothingRuns."""
    request = urllib.request.Request(
        f"{target.url}/v1/models", headers={"Authorization": f"Bearer {target.key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            rows = json.load(answer)["data"]
    except (urllib.error.URLError, OSError, ValueError, KeyError) as exc:
        raise NothingRuns(f"{target.url} does not list its models: {exc}") from exc
    for row in rows:
        if name in (None, row["id"]):
            return row["id"], row.get("max_model_len")
    known = ", ".join(row["id"] for row in rows) or "none"
    raise NothingRuns(
        f"This key may not use the model {name}. Models: {known}." if name else "No model is here."
    )


def make_plan(options: argparse.Namespace, model: str, context_tokens: int | None) -> Plan:
    short, long = options.mix
    long_tokens = options.long_tokens
    if long_tokens is None:
        long_tokens = min(MOST_LONG_TOKENS, int(LONG_SHARE * (context_tokens or 2 * MOST_LONG_TOKENS)))
    return Plan(
        model=model,
        rate=options.rate,
        seconds=min(options.seconds, QUICK_S) if options.quick else options.seconds,
        short=short,
        long=long,
        short_tokens=options.short_tokens,
        long_tokens=long_tokens,
        output_tokens=options.output_tokens,
        timeout_s=options.timeout,
        seed=options.seed,
    )


def main() -> int:
    options = _parse_options()
    target = find_target(url=options.url, key=options.key, data=options.data)
    plan = make_plan(options, *choose_model(target, options.model))
    say(
        f"{plan.rate:g} requests/s for {plan.seconds:g} s to {plan.model} at {target.url}: {plan.short:g} short"
        f" ({plan.short_tokens} tokens) to {plan.long:g} long ({plan.long_tokens} tokens)"
    )
    return 0 if report(plan, uvloop.run(run_load(target, plan, Bar()))) else 1


def read_mix(text: str) -> tuple[float, float]:
    """Short to long, as in 7:3. Raises ValueError."""
    short, _, long = text.partition(":")
    parts = float(short), float(long)
    if min(parts) < 0 or sum(parts) <= 0:
        raise ValueError("the parts of a mix are not negative, and not both 0")
    return parts


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("not more than 0")
    return value


def _show(bar: Bar, plan: Plan, tally: Tally, passed_s: float) -> None:
    waiting = tally.sent - tally.answered - tally.failed
    bar.show(
        passed_s / plan.seconds,
        f"{min(passed_s, plan.seconds):.0f} of {plan.seconds:g} s  sent {tally.sent}  answered {tally.answered}"
        f"  running {waiting}  errors {tally.failed}",
    )


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sluice bench load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rate", type=_positive, default=2.0, help="requests a second (2)")
    parser.add_argument("--seconds", type=_positive, default=60.0, help="for so long (60)")
    parser.add_argument("--mix", type=read_mix, default=(7.0, 3.0), help="short to long (7:3)")
    parser.add_argument(
        "--short-tokens", type=int, default=SHORT_TOKENS, help=f"of a prompt ({SHORT_TOKENS})"
    )
    parser.add_argument("--long-tokens", type=int, help="of a prompt (half the context, at most 20,000)")
    parser.add_argument("--output-tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--timeout", type=_positive, default=300.0, help="seconds for an answer (300)")
    parser.add_argument("--model", help="default: the first that the key may use")
    parser.add_argument("--url", help="of a gateway elsewhere, with --key")
    parser.add_argument("--key", help="default: the installation's, or SLUICE_GATEWAY_KEY")
    parser.add_argument("--data", help="data folder of the installation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s at most")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
