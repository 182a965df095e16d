"""Many clients that ask, give up, stall and send rubbish at random, over engines that die and tables that change.

What must be zero afterwards is looked at by who runs it (`leaks.py`); here each answer is, as it comes.
"""

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.routing_table import LaneRoute, ReplicaRoute, RoutingTable
from tests.fakes.answers import count_tokens
from tests.pool.gateway.rig import (
    KEY,
    Connection,
    Response,
    Rig,
    chat_request,
    make_key,
    make_release,
    make_table,
)

REPLICAS = ("r1", "r2", "r3", "r4")
VIP, BATCH, SPARSE, COMMENTED = "sk-vip", "sk-batch", "sk-sparse", "sk-commented"
KEYS = (
    make_key(KEY),
    make_key(VIP, tier="vip"),
    make_key(BATCH, tier="batch"),
    make_key(SPARSE, requests_per_min=20),
    make_key(COMMENTED, keepalive_s=0.01),
)
REFUSALS = frozenset((400, 401, 404, 413, 422, 429, 500, 502, 503, 504))
RUBBISH = (
    b"rubbish\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
)


class WrongAnswer(AssertionError):
    pass


class Chaos:
    """`outcomes`: how often what happened."""

    def __init__(self, rig: Rig, *, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._rig = rig
        self._random = random.Random(seed)
        self._routes: list[ReplicaRoute] = []
        self._version = 0
        self._left = 0
        draw = self._random.random
        self._acts: list[tuple[float, Callable[[Connection], Awaitable[bool]]]] = [
            (0.34, self._ask),
            (0.24, lambda one: self._ask(one, stream=True)),
            (0.05, lambda one: self._ask(one, key=SPARSE)),
            (0.05, lambda one: self._ask(one, key=COMMENTED, stream=True)),
            (0.05, lambda one: self._ask(one, words=draw() * 40, temperature=0)),
            (0.02, lambda one: self._ask(one, words=20_000, stream=draw() < 0.5)),
            (0.04, lambda one: self._ask(one, prompt=f"ERR:{self._random.choice((400, 429, 500, 503))}")),
            (0.03, self._send_bad),
            (0.02, self._send_rubbish),
            (0.03, self._ask_many),
            (0.10, self._give_up),
            (0.03, self._read_slowly),
        ]

    async def start(self) -> None:
        for name in REPLICAS:
            route = await self._rig.start_engine(name, gap_s=0.0005, slots=6)
            self._routes.append(replace(route, slots=6, kv_tokens=50_000))
        # A machine that is busy elsewhere must not let an idle client's time run out.
        await self._rig.serve(
            self._make_table(), idle_timeout_s=60.0, header_timeout_s=60.0, write_timeout_s=1.0
        )

    async def run(
        self, count: int, *, clients: int = 48, on_progress: Callable[[int], None] | None = None
    ) -> None:
        """`count` acts of clients, most of them one request each."""
        self._left = count
        troubles = [
            asyncio.create_task(one()) for one in (self._kill_engines, self._freeze, self._change_table)
        ]
        running = [asyncio.create_task(self._be_client()) for _ in range(clients)]
        while any(not task.done() for task in running):
            await asyncio.wait(running, timeout=0.5)
            if on_progress is not None:
                on_progress(count - max(0, self._left))
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        await asyncio.gather(*running)
        self._rig.apply(self._make_table())

    async def heal(self) -> None:
        """All engines are there again; raises TimeoutError if a breaker does not find out."""
        for name in REPLICAS:
            self._rig.engines[name].thaw()
        async with asyncio.timeout(30):
            while not all(replica.breaker.closed for replica in self._rig.gateway.plane.routes.replicas):
                await asyncio.gather(*(self._heal_once() for _ in range(4)))
                await asyncio.sleep(0.05)

    # Clients.
    async def _be_client(self) -> None:
        acts, weights = [act for _, act in self._acts], [weight for weight, _ in self._acts]
        while self._left > 0:
            connection = await self._rig.connect()
            self._rig.connections.remove(connection)
            lives = True
            try:
                for _ in range(self._random.randint(1, 20)):
                    self._left -= 1
                    (act,) = self._random.choices(acts, weights)
                    lives = await act(connection)
                    if not lives or self._left <= 0:
                        break
            except RuntimeError as exc:
                # The gateway closed meanwhile, and the transport says so when it is written to.
                if "closed" not in str(exc):
                    raise
                self.outcomes["closed"] += 1
            finally:
                connection.abort()

    async def _ask(
        self, connection: Connection, *, prompt: str = "", words: float = -1, key: str = "", **fields: Any
    ) -> bool:
        prompt = prompt or self._draw_prompt(words)
        connection.send(self._request(prompt, key, **fields))
        return self._judge(await connection.read_response(), prompt)

    async def _ask_many(self, connection: Connection) -> bool:
        prompts = [self._draw_prompt(-1) for _ in range(self._random.randint(2, 6))]
        connection.send(
            b"".join(self._request(prompt, "", stream=self._random.random() < 0.5) for prompt in prompts)
        )
        for prompt in prompts:
            if not self._judge(await connection.read_response(), prompt):
                return False
        return True

    async def _send_bad(self, connection: Connection) -> bool:
        wrong = self._random.choice(
            [
                chat_request(b"{"), chat_request(key="sk-wrong"), chat_request(path="/v1/nowhere"),
                chat_request(b'{"model":"nope"}'), chat_request(max_tokens=-1),
                chat_request(b'{"x":"' + b"y" * 100_000 + b'"}'),
            ]
        )  # fmt: skip
        connection.send(wrong)
        answer = await connection.read_response()
        if answer.status not in (400, 401, 404, 422, 429):
            raise WrongAnswer(f"{answer.status} for {wrong[:200]!r}")
        self.outcomes[f"{answer.status}"] += 1
        return answer.headers.get("connection") != "close"

    async def _send_rubbish(self, connection: Connection) -> bool:
        connection.send(self._random.choice(RUBBISH))
        await connection.read_to_end()
        if b"HTTP/1.1 400 " not in connection.raw:
            raise WrongAnswer(f"no refusal in {bytes(connection.raw[-500:])!r}")
        self.outcomes["rubbish"] += 1
        return False

    async def _give_up(self, connection: Connection) -> bool:
        stream, draw = self._random.random() < 0.6, self._random.random
        sent = self._request(self._draw_prompt(draw() * 200), "", stream=stream)
        is_whole = draw() < 0.8
        connection.send(sent if is_whole else sent[: self._random.randint(1, len(sent) - 1)])
        if stream and is_whole and draw() < 0.5:
            target = len(connection.raw) + self._random.randint(1, 2000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    while len(connection.raw) < target and await connection._read_some():
                        pass
        else:
            await asyncio.sleep(draw() * 0.02)
        if draw() < 0.3:
            connection.writer.write_eof()
            await connection.read_to_end()
        self.outcomes["given up"] += 1
        return False

    async def _read_slowly(self, connection: Connection) -> bool:
        connection.send(self._request(self._draw_prompt(-1), "", stream=True) * 3)
        await asyncio.sleep(self._random.random() * 0.3)
        self.outcomes["read slowly"] += 1
        return False

    def _draw_prompt(self, words: float) -> str:
        """-1: any usual length. What is asked with a length may be asked again."""
        if words < 0:
            return f"{self._random.getrandbits(64):x} " + "word " * int(self._random.expovariate(0.02))
        return "word " * int(words + 1)

    def _request(self, prompt: str, key: str, **fields: Any) -> bytes:
        draw = self._random.random
        if draw() < 0.3:
            fields["max_tokens"] = 3
        return chat_request(
            prompt=prompt,
            key=key or self._random.choice((KEY, KEY, VIP, BATCH)),
            chunked=draw() < 0.05,
            headers={"x-sluice-session": f"s{self._random.randint(0, 50)}"} if draw() < 0.5 else None,
            **fields,
        )

    def _judge(self, answer: Response, prompt: str) -> bool:
        """Whether the connection can be used again. Raises WrongAnswer."""
        told = f"{answer.status} {answer.headers} {answer.body[-500:]!r} for {prompt[:60]!r}"
        if not answer.complete:
            raise WrongAnswer(f"cut: {told}")
        if answer.status != 200:
            if answer.status not in REFUSALS or "error" not in json.loads(answer.body):
                raise WrongAnswer(told)
            self.outcomes[f"{answer.status}"] += 1
        elif answer.headers["content-type"].startswith("text/event-stream"):
            if not self._judge_stream(answer, told):
                return False
        else:
            usage = json.loads(answer.body)["usage"]
            if usage["prompt_tokens"] != count_tokens(prompt):
                raise WrongAnswer(f"the answer of another request: {told}")
            self.outcomes["answered"] += 1
        return answer.headers.get("connection") != "close"

    def _judge_stream(self, answer: Response, told: str) -> bool:
        last = answer.events[-1] if answer.events else ""
        if not self._rig.engines["r1"].switches.text.startswith(answer.text.strip()):
            raise WrongAnswer(f"another text: {told}")
        if last != "[DONE]" and '"error"' not in last:
            raise WrongAnswer(f"no end: {told}")
        self.outcomes["streamed" if last == "[DONE]" else "stream ended by an error"] += 1
        return last == "[DONE]"

    async def _heal_once(self) -> None:
        connection = await self._rig.connect()
        self._rig.connections.remove(connection)
        connection.send(self._request(self._draw_prompt(-1), VIP))
        await connection.read_response()
        connection.abort()

    # Troubles.
    async def _kill_engines(self) -> None:
        while True:
            await asyncio.sleep(0.2 + self._random.random())
            engine = self._rig.engines[self._random.choice(REPLICAS)]
            # What they keep of each call would pass for a leak of the gateway's.
            engine.calls.clear()
            path = engine.address.removeprefix("unix:")
            await engine.stop()
            try:
                await asyncio.sleep(self._random.random() * 0.3)
            finally:
                await engine.start(uds=path)
            self.outcomes["engine died"] += 1

    async def _freeze(self) -> None:
        while True:
            await asyncio.sleep(0.5 + self._random.random())
            engine = self._rig.engines[self._random.choice(REPLICAS)]
            engine.freeze()
            try:
                await asyncio.sleep(self._random.random() * 0.2)
            finally:
                engine.thaw()

    async def _change_table(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            draw = self._random.random
            # Nobody fetches the facts here, and they are kept up to a bound.
            self._rig.gateway.plane.facts.take(1 << 20)
            listed = self._routes if draw() < 0.6 else self._random.sample(self._routes, 3)
            weights = self._random.choice(({1: 100}, {1: 50, 2: 50}, {2: 100, 1: 0}))
            self._rig.apply(self._make_table(listed, weights=weights, has_lanes=draw() < 0.8))

    def _make_table(
        self,
        listed: list[ReplicaRoute] | None = None,
        *,
        weights: dict[int, int] | None = None,
        has_lanes: bool = True,
    ) -> RoutingTable:
        self._version += 1
        settings = LaneSettings(
            queue_limit=24,
            queue_timeout_s=0.5,
            ttft_target_ms=2000,
            first_byte_timeout_s=5.0,
            idle_timeout_s=5.0,
        )
        paced = replace(settings, pacing_ms=2, group_events=2, weight=2)
        lanes = (LaneRoute("short", 100, settings), LaneRoute("long", None, paced))
        firsts = [route for route in listed or self._routes if route.id != "r4"]
        lasts = [route for route in listed or self._routes if route.id == "r4"]
        return make_table(
            make_release(1, *firsts),
            make_release(2, *lasts),
            weights=weights or {1: 80, 2: 20},
            version=self._version,
            lanes=lanes if has_lanes else lanes[1:],
            keys=KEYS,
            settings=ModelSettings(cache_s=0.2, coalesce=True, retry_ratio=0.3),
            shadow={"release": 2, "percent": 20},
        )


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
