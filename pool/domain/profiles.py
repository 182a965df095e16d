"""Engine settings of a profile: their schema, canonical form and digest. Conflicts between them:
profile_rules.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from pool.domain.errors import PoolError

Kind = Literal["choice", "whole", "ratio", "flag", "word"]

DTYPES = ("auto", "bfloat16", "float16", "float32")
KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
REHEARSALS = ("garbage", "errors", "delay")
SPECULATIVE_METHODS = ("ngram", "draft_model", "suffix", "eagle", "eagle3", "mtp")
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One field of the schema. `default` None: the engine chooses."""

    name: str
    kind: Kind
    default: Any = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    effect: str = ""


SCHEMA: tuple[Setting, ...] = (
    Setting(
        name="dtype",
        kind="choice",
        default="auto",
        choices=DTYPES,
        effect="Arithmetic and unquantized weights.",
    ),
    Setting(
        name="quantization", kind="word", effect="Method of quantization; empty: as the version's files say."
    ),
    Setting(
        name="kv_cache_dtype",
        kind="choice",
        default="auto",
        choices=KV_CACHE_DTYPES,
        effect="Width of the KV cache.",
    ),
    Setting(
        name="block_size", kind="whole", unit="tokens", low=1, high=4096, effect="Empty: the engine chooses."
    ),
    Setting(
        name="max_model_len",
        kind="whole",
        unit="tokens",
        low=1,
        high=2**30,
        effect="Longest prompt + answer.",
    ),
    Setting(
        name="max_num_seqs",
        kind="whole",
        default=256,
        unit="requests",
        low=1,
        high=65536,
        effect="Slots of a replica.",
    ),
    Setting(
        name="max_num_batched_tokens",
        kind="whole",
        unit="tokens",
        low=1,
        high=2**24,
        effect="Tokens of one step.",
    ),
    Setting(
        name="gpu_memory_utilization",
        kind="ratio",
        default=0.85,
        low=0.01,
        high=0.98,
        effect="Share of each device's memory that the engine takes at its start.",
    ),
    Setting(
        name="kv_cache_memory_bytes",
        kind="whole",
        unit="bytes",
        low=2**20,
        high=2**44,
        effect="Fixed size of the KV cache per device; overrides the share.",
    ),
    Setting(name="tensor_parallel_size", kind="whole", default=1, unit="devices", low=1, high=1024),
    Setting(name="pipeline_parallel_size", kind="whole", default=1, unit="stages", low=1, high=128),
    Setting(
        name="enable_prefix_caching",
        kind="flag",
        default=True,
        effect="Reuse of KV blocks of equal prefixes.",
    ),
    Setting(
        name="enable_chunked_prefill",
        kind="flag",
        default=True,
        effect="Long prompts share steps with decodes.",
    ),
    Setting(
        name="enforce_eager",
        kind="flag",
        default=False,
        effect="No graphs, no compilation.",
    ),
    Setting(name="speculative_method", kind="choice", choices=SPECULATIVE_METHODS, effect="Empty: none."),
    Setting(
        name="speculative_tokens",
        kind="whole",
        unit="tokens",
        low=1,
        high=32,
        effect="Draft tokens per step.",
    ),
    Setting(name="speculative_version", kind="word", effect="Version that drafts, of the same model."),
    Setting(name="prompt_lookup_min", kind="whole", unit="tokens", low=1, high=64, effect="Shortest n-gram."),
    Setting(name="prompt_lookup_max", kind="whole", unit="tokens", low=1, high=64, effect="Longest n-gram."),
    Setting(
        name="kv_offload_bytes",
        kind="whole",
        unit="bytes",
        low=GIB,
        high=2**44,
        effect="KV blocks kept in host memory.",
    ),
    Setting(
        name="tool_call_parser", kind="word", effect="Parser of tool calls; empty: tools are not offered."
    ),
    Setting(name="reasoning_parser", kind="word", effect="Parser of reasoning parts."),
    Setting(
        name="cpu_threads",
        kind="whole",
        unit="threads",
        low=1,
        high=512,
        effect="Threads of an engine on `cpu`.",
    ),
    Setting(name="warm_up_per_lane", kind="whole", default=8, unit="requests", low=1, high=50),
    Setting(name="warm_up_budget_s", kind="whole", default=120, unit="s", low=1, high=3600),
    Setting(
        name="rehearsal",
        kind="choice",
        choices=REHEARSALS,
        effect="Simulated engines only: behave badly, to rehearse a rollback. Empty: behave.",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """Typed settings; names are those of the engine where it has them. None: the engine chooses."""

    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.85
    kv_cache_memory_bytes: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enforce_eager: bool = False
    speculative_method: str | None = None
    speculative_tokens: int | None = None
    speculative_version: str | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    kv_offload_bytes: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    cpu_threads: int | None = None
    warm_up_per_lane: int = 8
    warm_up_budget_s: int = 120
    rehearsal: str | None = None

    @property
    def devices(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True)
class Conflict:
    """One broken rule. `code` is stable; `fields` are those that an operator may change."""

    code: str
    message: str
    fields: tuple[str, ...]


class ProfileConflicts(PoolError):
    code: ClassVar[str] = "profile_conflicts"

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        listed = [asdict(conflict) for conflict in conflicts]
        super().__init__(" ".join(conflict.message for conflict in conflicts), conflicts=listed)
        self.conflicts = conflicts


def parse_settings(given: Mapping[str, Any]) -> EngineSettings:
    """Raises ProfileConflicts with every field that is unknown, of a wrong type or out of its range."""
    by_name = {setting.name: setting for setting in SCHEMA}
    conflicts = [_unknown(name) for name in given if name not in by_name]
    values: dict[str, Any] = {}
    for name, setting in by_name.items():
        value = given.get(name)
        if value is None or value == "":
            continue
        conflict = _wrong_value(setting, value)
        if conflict:
            conflicts.append(conflict)
        else:
            values[name] = float(value) if setting.kind == "ratio" else value
    if conflicts:
        raise ProfileConflicts(tuple(conflicts))
    return EngineSettings(**values)


def canonical_json(settings: EngineSettings) -> str:
    """All fields, sorted, without spaces: equal settings give equal bytes."""
    return json.dumps(settings_to_json(settings), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(settings: EngineSettings) -> str:
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def settings_to_json(settings: EngineSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def changed_fields(before: EngineSettings, after: EngineSettings) -> tuple[str, ...]:
    """Names of the fields that differ: more than one in a release is worth a warning."""
    old, new = settings_to_json(before), settings_to_json(after)
    return tuple(name for name in old if old[name] != new[name])


def _unknown(name: object) -> Conflict:
    shown = str(name)[:60]
    hint = _OTHER_ENGINES.get(shown, "Settings outside the schema are not passed on to an engine.")
    return Conflict("unknown_setting", f"'{shown}' is no setting of a profile. {hint}", (shown,))


_OTHER_ENGINES = {
    "max_total_tokens": "It is SGLang's; vLLM has kv_cache_memory_bytes and gpu_memory_utilization.",
    "max_prefill_tokens": "It is a setting of SGLang; vLLM has max_num_batched_tokens.",
    "tensor_parallel_degree": "vLLM calls it tensor_parallel_size.",
    "continuous_batching": "vLLM cannot switch it off.",
    "trust_remote_code": "It is approved per version, not in a profile.",
    "extra_args": "Free arguments are not passed on to an engine.",
}


def _wrong_value(setting: Setting, value: object) -> Conflict | None:
    wanted = _wanted(setting)
    if _is_valid(setting, value):
        return None
    return Conflict("invalid_value", f"{setting.name} must be {wanted}.", (setting.name,))


def _is_valid(setting: Setting, value: object) -> bool:
    match setting.kind:
        case "choice":
            return value in setting.choices
        case "flag":
            return isinstance(value, bool)
        case "word":
            return isinstance(value, str) and len(value) <= 63 and _is_plain(value)
        case "whole":
            return isinstance(value, int) and not isinstance(value, bool) and _in_range(setting, value)
        case _:  # ratio
            return (
                isinstance(value, int | float) and not isinstance(value, bool) and _in_range(setting, value)
            )


def _is_plain(word: str) -> bool:
    """No leading dash: it would read as another option of the engine's command line."""
    return word[0].isalnum() and word.isascii() and all(char.isalnum() or char in "._-" for char in word)


def _in_range(setting: Setting, value: float) -> bool:
    low, high = setting.low, setting.high
    return (low is None or value >= low) and (high is None or value <= high)


def _wanted(setting: Setting) -> str:
    match setting.kind:
        case "choice":
            return "one of " + ", ".join(setting.choices)
        case "flag":
            return "true or false"
        case "word":
            return "a plain word of letters, digits, '.', '_' and '-'"
        case _:
            unit = f" {setting.unit}" if setting.unit else ""
            kind = "a whole number" if setting.kind == "whole" else "a number"
            return f"{kind} from {setting.low} to {setting.high}{unit}"
