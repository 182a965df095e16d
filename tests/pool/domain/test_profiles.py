from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.profiles import (
    SCHEMA,
    EngineSettings,
    ProfileConflicts,
    canonical_json,
    changed_fields,
    digest_of,
    parse_settings,
    settings_to_json,
)
from pool.domain.starter_profiles import STARTER_PROFILES


def codes_of(given_settings: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ProfileConflicts) as caught:
        parse_settings(given_settings)
    return [(conflict.code, conflict.fields[0]) for conflict in caught.value.conflicts]


def test_the_schema_and_the_settings_have_the_same_fields_and_defaults() -> None:
    assert {setting.name: setting.default for setting in SCHEMA} == settings_to_json(EngineSettings())


def test_an_empty_profile_takes_the_defaults() -> None:
    assert parse_settings({}) == EngineSettings()
    assert parse_settings({"block_size": None, "quantization": ""}) == EngineSettings()


def test_values_are_taken_as_given() -> None:
    settings = parse_settings({"max_num_seqs": 8, "gpu_memory_utilization": 0.5, "dtype": "float16"})

    assert settings == EngineSettings(max_num_seqs=8, gpu_memory_utilization=0.5, dtype="float16")
    assert settings.devices == 1


def test_all_wrong_fields_are_told_at_once() -> None:
    wrong = {
        "max_num_seqs": 0,
        "block_size": "16",
        "gpu_memory_utilization": True,
        "dtype": "int3",
        "enforce_eager": "yes",
        "extra": 1,
    }

    assert codes_of(wrong) == [
        ("unknown_setting", "extra"),
        ("invalid_value", "dtype"),
        ("invalid_value", "block_size"),
        ("invalid_value", "max_num_seqs"),
        ("invalid_value", "gpu_memory_utilization"),
        ("invalid_value", "enforce_eager"),
    ]


@pytest.mark.parametrize(
    "word", ["--chat-template=/etc/passwd", "a b", "../x", "-x", "é", "x" * 64, 5, "a\0b"]
)
def test_fc51_words_cannot_carry_another_option(word: object) -> None:
    assert codes_of({"tool_call_parser": word}) == [("invalid_value", "tool_call_parser")]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("max_total_tokens", "SGLang"), ("extra_args", "not passed on"), ("trust_remote_code", "per version")],
)
def test_settings_of_other_engines_are_explained(name: str, hint: str) -> None:
    with pytest.raises(ProfileConflicts, match=hint):
        parse_settings({name: 1})


def test_a_conflict_carries_all_rules_in_its_details() -> None:
    with pytest.raises(ProfileConflicts) as caught:
        parse_settings({"max_num_seqs": 0})

    assert caught.value.details["conflicts"] == [
        {
            "code": "invalid_value",
            "message": "max_num_seqs must be a whole number from 1 to 65536 requests.",
            "fields": ("max_num_seqs",),
        }
    ]


def test_equal_settings_have_equal_bytes_and_digest() -> None:
    first = parse_settings({"max_num_seqs": 256, "gpu_memory_utilization": 0.85})

    assert canonical_json(first) == canonical_json(EngineSettings())
    assert digest_of(first) == digest_of(EngineSettings())
    assert digest_of(replace(first, max_num_seqs=255)) != digest_of(first)


def test_changed_fields_are_listed() -> None:
    assert changed_fields(EngineSettings(), EngineSettings(max_num_seqs=8, dtype="float16")) == (
        "dtype",
        "max_num_seqs",
    )


@pytest.mark.parametrize("name", STARTER_PROFILES)
def test_starter_profiles_survive_storage(name: str) -> None:
    settings = STARTER_PROFILES[name]

    assert parse_settings(json.loads(canonical_json(settings))) == settings


any_value = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers())
)


@given(
    st.dictionaries(st.sampled_from([setting.name for setting in SCHEMA]) | st.text(max_size=8), any_value)
)
def test_any_input_is_taken_or_refused_by_rule(given_settings: dict[str, Any]) -> None:
    with contextlib.suppress(ProfileConflicts):
        settings = parse_settings(given_settings)
        assert parse_settings(json.loads(canonical_json(settings))) == settings
