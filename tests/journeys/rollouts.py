"""Rollouts in journeys: continuous requests of sessions, gates that little traffic can satisfy, and what was seen."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.journeys.installation import Installed, ask, wait_until

CHAT = "/v1/chat/completions"
# With these a few dozen requests of each release tell that nothing is much worse.
EASY_GATES = {
    "errors": {"margin_points": 0.4},
    "interrupted": {"margin_points": 0.4},
    "ttft": {"margin_ratio": 9.0},
    "itl": {"margin_ratio": 9.0},
    "per_token": {"margin_ratio": 9.0},
    "shape": {"margin_ratio": 9.0, "margin_points": 0.4},
}
STEP = {"soak_s": 3, "min_requests": 10}


@dataclass(frozen=True)
class Asked:
    """`sent_at`: seconds since 1970. `release` 0: no answer said so. `error`: empty where the answer was whole."""

    sent_at: float
    release: int
    error: str


@dataclass
class Load:
    """Clients that ask one request after the other, half of them streamed."""

    installed: Installed
    model: str
    tokens: int = 6
    pause_s: float = 0.1
    answers: list[Asked] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        turn = 0
        while not self.over.is_set():
            turn += 1
            self.answers.append(self.ask(f"c{number}-{turn // 3}", stream=bool(turn % 2)))
            self.over.wait(self.pause_s * random.uniform(0.5, 1.5))

    def ask(self, session: str, *, stream: bool) -> Asked:
        said = [{"role": "user", "content": f"This is session {session}. Who are you?"}]
        body = {"model": self.model, "messages": said, "max_tokens": self.tokens, "stream": stream}
        sent_at, headers = time.time(), {"x-sluice-session": session}
        try:
            answer = ask(
                self.installed.gateway_port, "POST", CHAT, body,
                key=self.installed.key, timeout_s=60, headers=headers,
            )  # fmt: skip
        except (OSError, http.client.HTTPException) as exc:
            return Asked(sent_at, 0, repr(exc))
        is_whole = b"[DONE]" in answer.content[-40:] if stream else b'"usage"' in answer.content
        fault = "" if answer.status == 200 and is_whole else f"{answer.status} {answer.content[:200]!r}"
        return Asked(sent_at, int(answer.headers.get("x-sluice-release", "0")), fault)

    @property
    def errors(self) -> list[Asked]:
        return [one for one in self.answers if one.error]

    def count_by_release(self) -> Counter[int]:
        return Counter(one.release for one in self.answers)


@contextmanager
def under_load(installed: Installed, model: str, *, clients: int = 4, **options: Any) -> Iterator[Load]:
    load = Load(installed, model, **options)
    threads = [threading.Thread(target=load.run, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.over.set()
        for thread in threads:
            thread.join(90)


def add_release(installed: Installed, model: str, profile: str, settings: dict[str, Any]) -> int:
    """Another release of the model's newest version, with a profile of its own and no replica."""
    newest = installed.get(f"models/{model}/releases/")["results"][-1]
    installed.post("profiles/", {"name": profile, "settings": settings})
    wish = {"version": newest["version"], "runtime": newest["runtime"], "profile": profile, "replicas": 0}
    return int(installed.post(f"models/{model}/releases/", wish)["number"])


def start(installed: Installed, model: str, candidate: int, **fields: Any) -> str:
    wish: dict[str, Any] = {
        "candidate": candidate,
        "steps": [{"weight": 30, **STEP}, {"weight": 60, **STEP}],
        "hold_s": 5,
        "gates": EASY_GATES,
    }
    return str(installed.post(f"models/{model}/rollouts/", wish | fields)["id"])


def read_phase(installed: Installed, rollout: str) -> tuple[str, int]:
    row = installed.get(f"rollouts/{rollout}/")["rollout"]
    return row["phase"], row["step"]


def wait_phase(installed: Installed, rollout: str, *phases: str, limit_s: float = 180.0) -> str:
    wait_until(lambda: read_phase(installed, rollout)[0] in phases, limit_s=limit_s, what=f"one of {phases}")
    return read_phase(installed, rollout)[0]


def list_phases(installed: Installed, rollout: str) -> list[str]:
    """As its log tells them, the oldest first: one line a move."""
    query = (
        f"SELECT split_part(text, ':', 1) FROM pool_rolloutevent WHERE rollout_id = '{rollout}'"
        " AND kind = 'phase' ORDER BY id"
    )
    return [text for (text,) in installed.select(query)]
