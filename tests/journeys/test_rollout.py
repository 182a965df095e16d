"""A rollout on a whole installation: control killed in each phase changes nothing, and nonsense never gets weight."""

from __future__ import annotations

import signal

from tests.journeys.installation import Installed, send, wait_until
from tests.journeys.rollouts import add_release, list_phases, read_phase, start, under_load, wait_phase

MODEL = "smollm2"


def kill_control(installed: Installed) -> None:
    killed = installed.find("control")
    send(killed.pid, signal.SIGKILL)
    wait_until(
        lambda: installed.find("control") != killed and installed.find("control").alive,
        limit_s=30,
        what="control is started again",
    )


def wait_move(installed: Installed, rollout: str, left: tuple[str, int]) -> tuple[str, int]:
    wait_until(lambda: read_phase(installed, rollout) != left, limit_s=120, what=f"it leaves {left}")
    return read_phase(installed, rollout)


def test_control_killed_in_each_phase_changes_nothing_but_the_time(own: Installed) -> None:
    candidate = add_release(own, MODEL, "sim-two", {"max_num_seqs": 64})
    with under_load(own, MODEL, clients=6) as load:
        wait_until(lambda: len(load.answers) >= 10, limit_s=30, what="traffic at release 1")
        kill_control(own)
        rollout = start(own, MODEL, candidate)
        at = read_phase(own, rollout)
        while at[0] not in ("promoted", "rolled_back", "failed"):
            kill_control(own)
            at = wait_move(own, rollout, at)

    assert read_phase(own, rollout)[0] == "promoted"
    assert load.errors == []
    moves = list_phases(own, rollout)
    assert len(moves) == len(set(moves)) + 1, moves  # "stepping" twice: two steps
    plans = own.get(f"models/{MODEL}/plans/")["results"]
    assert [plan["weights"] for plan in plans if f"Rollout {rollout}" in plan["comment"]] == [
        {"1": 0, str(candidate): 100},
        {"1": 40, str(candidate): 60},
        {"1": 70, str(candidate): 30},
    ]


def test_control_killed_while_it_takes_back_leaves_one_rollback(own: Installed) -> None:
    candidate = add_release(own, MODEL, "sim-three", {"max_num_seqs": 48})
    with under_load(own, MODEL) as load:
        rollout = start(own, MODEL, candidate, steps=[{"weight": 50, "soak_s": 600, "min_requests": 10}])
        wait_phase(own, rollout, "stepping")
        wait_until(lambda: load.count_by_release()[candidate], limit_s=30, what="the candidate answers")
        own.post(f"rollouts/{rollout}/rollback/", {})
        kill_control(own)
        wait_phase(own, rollout, "rolled_back", limit_s=60)
        again = own.post(f"models/{MODEL}/rollback/", {})["plan"]

    assert load.errors == []
    backs = [
        plan
        for plan in own.get(f"models/{MODEL}/plans/")["results"]
        if f"of rollout {rollout}" in plan["comment"]
    ]
    assert len(backs) == 1
    assert again["number"] == backs[0]["number"]


def test_a_candidate_that_answers_nonsense_never_gets_weight_fc70(own: Installed) -> None:
    candidate = add_release(own, MODEL, "sim-garbage", {"rehearsal": "garbage"})
    said = [{"role": "user", "content": "What is the capital of France?"}]
    own.post(
        f"models/{MODEL}/golden-prompts/",
        {"name": "capital", "messages": said, "max_tokens": 8, "match": "exact"},
    )
    wait_until(lambda: is_recorded(own), limit_s=60, what="the stable release's answer")
    with under_load(own, MODEL, clients=2) as load:
        rollout = start(own, MODEL, candidate)
        ended = wait_phase(own, rollout, "failed", "rolled_back", "promoted", limit_s=120)
        told = own.get(f"rollouts/{rollout}/")["rollout"]

    assert ended in ("failed", "rolled_back"), told
    assert "capital" in told["reason_text"], told
    assert load.count_by_release()[candidate] == 0
    assert load.errors == []


def is_recorded(installed: Installed) -> bool:
    """Asks for it, as long as it is not there."""
    (row,) = installed.get(f"models/{MODEL}/golden-prompts/")["results"]
    if not row["expected"]:
        installed.call("POST", f"models/{MODEL}/golden-recordings/", {})
    return bool(row["expected"])
