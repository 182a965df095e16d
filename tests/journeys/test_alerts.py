"""A broken promise in a running installation: an alert, tier `batch` held back at the gate, and given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.journeys.installation import Answer, Installed, ask, wait_until
from tests.journeys.streams import Stream

# A pass of the loop each ten seconds, two passes for a level that is held, and a cell that closes after ten.
JUDGED_S = 90.0
OBEYED_S = 5.0
# No stream of the simulated engine begins within 2 ms: its shortest step takes 12 ms.
BROKEN = {
    "ttft_p50_s": None,
    "ttft_p95_s": None,
    "ttft_p99_s": None,
    "yellow_s": 0.001,
    "orange_s": 0.002,
    "red_s": 3000.0,
    "enter_hold_s": 0,
    "exit_hold_s": 0,
    "cool_down_s": 0,
    "opposite_after_s": 0,
    "min_samples": 20,
}
KEPT = {"yellow_s": 1000.0, "orange_s": 2000.0}


@pytest.fixture
def batch_key(sluice: Installed) -> Iterator[str]:
    made = sluice.post("keys/", {"name": "nightly", "tier": "batch"})
    yield made["key"]
    sluice.post("keys/nightly/revoke/", {})


@pytest.fixture
def broken_slo(sluice: Installed) -> Iterator[int]:
    made = sluice.post("slos/", {"model": "smollm2", "lane": "short", "settings": BROKEN})
    yield made["id"]
    sluice.call("DELETE", f"slos/{made['id']}/")


def chat(sluice: Installed, key: str) -> Answer:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    return ask(sluice.gateway_port, "POST", "/v1/chat/completions", body, key=key, timeout_s=30)


def is_shed(sluice: Installed, key: str) -> bool:
    answer = chat(sluice, key)
    return answer.status == 429 and answer.json["error"]["code"] == "shed"


def open_alerts(sluice: Installed) -> list[dict[str, Any]]:
    rows = sluice.get("alerts/?limit=200")["results"]
    return [row for row in rows if row["rule"] == "ttft_p99" and row["closed_at"] is None]


def held_back(sluice: Installed) -> list[str]:
    return [row["kind"] for row in sluice.get("restrictions/")["results"] if row["ended_at"] is None]


def test_a_broken_promise_sheds_batch_until_it_is_kept_again(
    sluice: Installed, batch_key: str, broken_slo: int
) -> None:
    assert chat(sluice, batch_key).status == 200

    def is_broken() -> bool:
        for stream in [Stream(sluice, tokens=2) for _ in range(4)]:
            stream.finish()
        return [row["level"] for row in open_alerts(sluice)] == ["orange"]

    alerted_s = wait_until(is_broken, limit_s=JUDGED_S, what="an alert")
    (alert,) = open_alerts(sluice)
    shed_s = wait_until(lambda: is_shed(sluice, batch_key), limit_s=OBEYED_S, what="batch is refused")

    assert alert["evidence"]["samples"] >= BROKEN["min_samples"]
    assert alert["evidence"]["value"] > BROKEN["orange_s"]
    assert (alert["model"], alert["lane"], alert["data_state"]) == ("smollm2", "short", "measured")
    assert held_back(sluice) == ["shed_batch"]
    assert int(chat(sluice, batch_key).headers["retry-after"]) >= 1
    assert sluice.chat().status == 200

    assert sluice.call("PATCH", f"slos/{broken_slo}/", {"settings": KEPT}).status == 200
    kept_s = wait_until(lambda: not open_alerts(sluice), limit_s=JUDGED_S, what="the alert is closed")
    back_s = wait_until(
        lambda: chat(sluice, batch_key).status == 200, limit_s=OBEYED_S, what="batch is let in"
    )

    print(f"alert {alerted_s:.0f} s, shed {shed_s:.1f} s, closed {kept_s:.0f} s, back {back_s:.1f} s")  # noqa: T201
    assert held_back(sluice) == []
    kinds = [event["kind"] for event in sluice.get(f"alerts/{alert['id']}/")["events"]]
    assert {"raised", "acted", "ended", "closed"} <= set(kinds), kinds
