"""The latency model of the simulated engine: batches, chunks, slots, blocks, prefix cache."""

from __future__ import annotations

from typing import Any

import pytest

from pool.domain.profiles import EngineSettings
from workers.engines.sim import latency_settings
from workers.engines.sim_model import SimModel, SimRequest, SimSettings, count_tokens, hash_blocks


def make_model(**settings: Any) -> SimModel:
    defaults = {"step_s": 0.01, "step_per_seq_s": 0.001, "prefill_tokens_per_s": 1000.0, "block_size": 16}
    return SimModel(SimSettings(**{**defaults, **settings}))


def run(model: SimModel, *requests: SimRequest) -> float:
    """Simulated seconds until all are done."""
    for request in requests:
        model.add(request)
    total = 0.0
    while step := model.step():
        total += step.duration_s
    return total


def test_prefill_and_decode_take_their_rates() -> None:
    took = run(make_model(), SimRequest(prompt_tokens=100, answer_tokens=3))

    assert took == pytest.approx(0.1 + 3 * 0.011)


def test_a_batch_decodes_together() -> None:
    alone = run(make_model(), SimRequest(10, 50))
    batch = run(make_model(), *(SimRequest(10, 50) for _ in range(8)))

    assert batch < 2 * alone


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes() -> None:
    model = make_model(max_num_batched_tokens=64)
    short, long = SimRequest(10, 20), SimRequest(1000, 1)
    model.add(short)
    model.step()
    model.add(long)

    step = model.step()

    assert step is not None
    assert short in step.produced
    assert step.prefilled_tokens == 63


def test_slots_bound_what_runs() -> None:
    model = make_model(max_num_seqs=2)
    for _ in range(5):
        model.add(SimRequest(10, 10))
    model.step()

    assert (len(model.running), len(model.waiting)) == (2, 3)


def test_an_equal_prefix_is_not_computed_again() -> None:
    model = make_model()
    blocks = hash_blocks("x" * 640, block_size=16)
    first, second = SimRequest(160, 1, blocks), SimRequest(160, 1, blocks)

    cold, warm = run(model, first), run(model, second)

    assert (first.cached, second.cached) == (0, 159)
    assert warm < cold / 2
    assert model.prefix_hits == 159


def test_a_salt_keeps_tenants_apart() -> None:
    assert hash_blocks("x" * 640, block_size=16) != hash_blocks("x" * 640, block_size=16, salt="a")


def test_without_room_the_youngest_is_preempted_and_finishes_later() -> None:
    model = make_model(kv_tokens=96)
    old, young = SimRequest(32, 40), SimRequest(32, 40)

    run(model, old, young)

    assert model.preemptions > 0
    assert old.preempted == 0
    assert young.finished
    assert model.used_blocks == 0


def test_a_request_that_goes_frees_its_place() -> None:
    model = make_model(max_num_seqs=1)
    running, waiting = SimRequest(10, 10), SimRequest(10, 10)
    model.add(running)
    model.add(waiting)
    model.step()

    model.remove(running)
    model.remove(waiting)

    assert model.step() is None
    assert model.used_blocks == 0


def test_the_cache_forgets_the_oldest() -> None:
    model = make_model(kv_tokens=64)
    for letter in "abcdef":
        run(model, SimRequest(32, 1, hash_blocks(letter * 128, block_size=16)))

    again = SimRequest(32, 1, hash_blocks("a" * 128, block_size=16))
    run(model, again)

    assert again.cached == 0


def test_text_is_four_characters_a_token() -> None:
    assert [count_tokens(text) for text in ("", "abcd", "abcde")] == [1, 1, 2]


def test_the_profile_gives_the_size_and_the_rehearsal_wins() -> None:
    settings = EngineSettings(max_num_seqs=8, max_model_len=2048, kv_cache_memory_bytes=23_040 * 4096)

    found = latency_settings(settings, {"max_num_seqs": 4, "step_s": 0.5})

    assert found["kv_tokens"] == 4096
    assert found["max_num_seqs"] == 4
    assert SimSettings.read(found).step_s == 0.5


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError):
        SimSettings.read({"nonsense": 1})
