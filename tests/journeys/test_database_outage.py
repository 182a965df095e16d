"""PostgreSQL hung, scaled 1 : 8 (eight seconds for a minute): traffic goes on, nothing moves, all heals by itself."""

from __future__ import annotations

import signal
import time

from tests.journeys.installation import Installed, ask, patience, phases_in, send_all, wait_until
from tests.journeys.streams import Stream

OUTAGE_S = 8.0
RECOVERY_S = 10.0
FIRST_REFUSAL_S = 6.0
CONSOLE = ("web", "gateway", "control", "telemetry", "worker")


def test_traffic_goes_on_and_nothing_moves_while_postgresql_hangs_fc57(sluice: Installed) -> None:
    engines, starts = sluice.engines(), sluice.count_starts()
    processes = [sluice.find(name) for name in CONSOLE]
    stream = Stream(sluice, tokens=450)
    stream.wait_begun()

    tree = sluice.postgres_tree()
    send_all(tree, signal.SIGSTOP)
    try:
        refusals = watch_outage(sluice)
        during = sluice.engines()
    finally:
        send_all(tree, signal.SIGCONT)
    healed_s = wait_until(lambda: is_healthy(sluice), limit_s=RECOVERY_S, what="the console answers again")
    stream.finish()

    print(f"refusals {refusals}, healed after {healed_s:.1f} s")  # noqa: T201
    assert stream.ended_well
    assert during == engines == sluice.engines()
    assert sluice.count_starts() == starts
    assert [sluice.find(name) for name in CONSOLE] == processes
    # The first ones wait for a server that answers nobody; the ones after them are refused at once.
    assert all(code == 503 for code, _ in refusals), refusals
    assert max(took_s for _, took_s in refusals) < FIRST_REFUSAL_S * patience()
    assert sorted(took_s for _, took_s in refusals)[len(refusals) // 2] < 0.5 * patience()


def watch_outage(sluice: Installed) -> list[tuple[int, float]]:
    """Chats all the time and asks the API, a page and the health meanwhile; the console's answers with their times."""
    refusals, ends = [], time.monotonic() + OUTAGE_S
    while time.monotonic() < ends:
        assert sluice.chat(tokens=2).status == 200
        for path in ("/api/v1/replicas/", "/"):
            began = time.monotonic()
            answer = ask(sluice.web_port, "GET", path, key=sluice.variables["SLUICE_API_TOKEN"], timeout_s=40)
            refusals.append((answer.status, round(time.monotonic() - began, 2)))
        assert ask(sluice.web_port, "GET", "/healthz").status == 200
        time.sleep(0.1)
    return refusals


def is_healthy(sluice: Installed) -> bool:
    status = sluice.get("status/")
    ages = [
        status["nodes"][0]["lease"],
        status["gateways"][0]["seen"],
        *(loop["beat"] for loop in status["loops"]),
    ]
    assert all(age["age_s"] < 4 for age in ages), ages
    return phases_in(status) == ["ready"]
