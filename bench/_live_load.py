"""What `bench live` puts on a console: a generator of 256 replicas' samples and of facts, and viewers' sockets.

    python -m bench._live_load generate --redis URL --prefix sluice:ID --model NAME --seconds N
    python -m bench._live_load view --url ws://… --cookie NAME=VALUE --viewers N --seconds N

Each is a process of its own, so that its CPU time counts for nobody else. Prints one JSON line at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

import redis
from websockets.asyncio.client import connect

from pool.domain.histogram import bucket_of

REPLICAS, NODES = 256, 8
SAMPLES_PER_S = 10
FACTS_PER_S, FACTS_EVERY_S = 500, 0.2
STREAM_LENGTH = 20_000


def generate(options: argparse.Namespace) -> None:
    """256 replicas at 10 Hz, a message per node, and 500 requests a second."""
    client = redis.Redis.from_url(options.redis)
    draw, sent = random.Random(3), 0
    started_s = next_s = time.monotonic()
    facts_due_s = started_s
    while time.monotonic() < started_s + options.seconds:
        pipeline = client.pipeline(transaction=False)
        for node in range(NODES):
            body = {"b": json.dumps(make_sample(node, options.model, draw))}
            pipeline.xadd(f"{options.prefix}:samples", body, maxlen=STREAM_LENGTH)  # type: ignore[arg-type]
        if time.monotonic() >= facts_due_s:
            facts_due_s += FACTS_EVERY_S
            count = round(FACTS_PER_S * FACTS_EVERY_S)
            facts = [make_fact(sent + number, options.model, draw) for number in range(count)]
            sent += count
            pipeline.xadd(f"{options.prefix}:facts", {"b": json.dumps(facts)}, maxlen=100_000)
        pipeline.execute()
        next_s += 1 / SAMPLES_PER_S
        time.sleep(max(0.0, next_s - time.monotonic()))
    print(json.dumps({"facts": sent, "late_s": round(time.monotonic() - next_s, 2)}), flush=True)  # noqa: T201


def make_sample(node: int, model: str, draw: random.Random) -> dict[str, Any]:
    return {
        "node": f"bench-{node}",
        "at": time.time(),
        "replicas": [_make_replica(f"b{number:07d}", model, draw) for number in range(node, REPLICAS, NODES)],
        "devices": [],
        "processes": [],
        "requests": [],
    }


def _make_replica(name: str, model: str, draw: random.Random) -> dict[str, Any]:
    running, used, step_s = draw.randint(0, 32), draw.randint(0, 4000), draw.uniform(0.01, 0.03)
    gauges = {
        "running": running, "waiting": 0, "kv_blocks": 4000, "kv_used_blocks": used, "kv_free_blocks": 4000 - used,
    }  # fmt: skip
    return {
        "id": name,
        "generation": 1,
        "model": model,
        "release": 1,
        "lane": "",
        "age_s": 0.01,
        "gauges": {key: [value, value, value, 1] for key, value in gauges.items()},
        "counters": {"steps": 4, "decode_tokens": running * 4, "execute_s": 4 * step_s},
        "steps": {"decode": [4 * step_s, {str(bucket_of(step_s)): 4}]},
        "missing": "",
    }


def make_fact(number: int, model: str, draw: random.Random) -> dict[str, Any]:
    ttft_s, tokens = draw.lognormvariate(-1.5, 0.6), draw.randint(16, 256)
    e2e_s, gap_s = ttft_s + tokens * 0.02, 0.02
    return {
        "request_id": f"bench-{time.time_ns():x}-{number}",
        "at": time.time() - e2e_s,
        "model": model,
        "lane": draw.choice(("short", "mid", "long")),
        "release": 1,
        "wished_release": 1,
        "replica": f"b{draw.randrange(REPLICAS):07d}",
        "node": "bench-0",
        "key": "bench0000000",
        "tier": "standard",
        "attempts": 1,
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "queue_s": ttft_s / 4,
        "first_byte_s": ttft_s / 2,
        "decode_s": e2e_s - ttft_s,
        "ttft_s": ttft_s,
        "e2e_s": e2e_s,
        "longest_gap_s": gap_s,
        "gaps": [tokens * gap_s, {str(bucket_of(gap_s)): tokens}],
        "chunks": tokens,
        "prompt_tokens": draw.randint(20, 9000),
        "output_tokens": tokens,
    }


async def view(options: argparse.Namespace) -> None:
    """All watch the same; one of twenty never reads."""
    heard = [0] * options.viewers
    headers = {"Cookie": options.cookie}

    async def watch(number: int) -> None:
        async with connect(
            options.url, additional_headers=headers, origin=options.origin, open_timeout=60
        ) as socket:
            if number % 20 == 19:
                await asyncio.sleep(options.seconds)
                return
            async with asyncio.timeout(options.seconds):
                async for _frame in socket:
                    heard[number] += 1

    ended = await asyncio.gather(
        *(watch(number) for number in range(options.viewers)), return_exceptions=True
    )
    lost = sum(1 for one in ended if isinstance(one, Exception) and not isinstance(one, TimeoutError))
    frames = sorted(count for number, count in enumerate(heard) if number % 20 != 19)
    per_s = [count / options.seconds for count in frames]
    print(json.dumps({"lost": lost, "least_per_s": per_s[0], "most_per_s": per_s[-1]}), flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("generate", "view"))
    parser.add_argument("--redis")
    parser.add_argument("--prefix")
    parser.add_argument("--model")
    parser.add_argument("--url")
    parser.add_argument("--origin")
    parser.add_argument("--cookie")
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    if options.role == "generate":
        generate(options)
    else:
        asyncio.run(view(options))


if __name__ == "__main__":
    main()
