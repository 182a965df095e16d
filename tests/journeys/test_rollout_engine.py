"""A rollout between two profiles on a real vLLM, under continuous load: what its clients see of it is nothing."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.fakes.tiny_model import make_tiny_model
from tests.journeys.installation import Installed, wait_until
from tests.journeys.real import SMALL, release, wait_ready
from tests.journeys.rollouts import add_release, list_phases, start, under_load, wait_phase

pytestmark = pytest.mark.engine

MODEL = "gray"


@pytest.fixture(scope="module")
def gray(real: Installed) -> Installed:
    """The model `gray` with one ready replica of release 1 that has all traffic."""
    make_tiny_model(real.layout.data / "models" / MODEL)
    release(real, MODEL, replicas=1)
    real.post(f"models/{MODEL}/plans/", {"weights": {"1": 100}})
    wait_ready(real, MODEL)
    return real


def test_a_dry_run_predicts_what_the_engine_printed(gray: Installed) -> None:
    candidate = add_release(gray, MODEL, "gray-more", SMALL | {"kv_cache_memory_bytes": 128 << 20})

    told = gray.post(f"models/{MODEL}/rollouts/", {"candidate": candidate, "dry_run": True})

    assert told["refusal"] == ""
    assert told["fit"]["outcome"] == "fits_beside"
    assert told["diff"]["changed"] == ["kv_cache_memory_bytes"]
    (memory,) = told["diff"]["memory"]
    assert memory["stable"]["kv_tokens"] == memory["stable"]["printed_tokens"]
    assert memory["candidate"]["kv_tokens"] == 2 * memory["stable"]["kv_tokens"]
    (device,) = told["fit"]["devices"]
    used = {stage["stage"]: stage["used_bytes"] for stage in device["stages"]}
    assert used["loading"] - used["before"] == device["candidate_bytes"] > 128 << 20
    # What stable holds was measured, and is given back once it stops.
    assert used["before"] < used["after"] < used["holding"]
    assert gray.get(f"models/{MODEL}/rollouts/")["results"] == []


def test_a_rollout_to_another_profile_costs_no_client_an_error_fc09(gray: Installed) -> None:
    candidate = add_release(gray, MODEL, "gray-two", SMALL | {"max_num_seqs": 8})
    with under_load(gray, MODEL, clients=4) as load:
        wait_until(lambda: len(load.answers) >= 20, limit_s=60, what="traffic at release 1")
        rollout = start(gray, MODEL, candidate)
        ended = wait_phase(gray, rollout, "promoted", "rolled_back", "failed", limit_s=400)
        plan = gray.post(f"models/{MODEL}/rollback/", {})["plan"]
        wait_until(lambda: load.answers[-1].release == 1, limit_s=30, what="release 1 answers again")

    assert ended == "promoted", gray.get(f"rollouts/{rollout}/")
    assert load.errors == []
    assert list_phases(gray, rollout)[1:3] == ["preparing", "warming"]
    (replica,) = [row for row in gray.replicas(model=MODEL) if row["release"] == candidate]
    ready_at = find_ready_at(gray, replica["id"])
    assert min(one.sent_at for one in load.answers if one.release == candidate) > ready_at.timestamp()
    assert load.count_by_release()[candidate] >= 20
    assert plan["weights"] == {"1": 100}


def find_ready_at(real: Installed, replica: str) -> datetime:
    """When it was warm."""
    ((at,),) = real.select(f"SELECT ready_at FROM pool_replica WHERE id = '{replica}'")
    assert isinstance(at, datetime)
    return at
