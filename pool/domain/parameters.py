"""Bounds of the parameters that a request may name. Wrong types are left to the engine, which says more of them."""

from collections.abc import Callable
from typing import Any, ClassVar

from pool.domain.errors import PoolError
from pool.domain.structured_output import OUTPUT_FORMS, check_tools

# The largest context of any model that is served today is a tenth of it.
_MOST_TOKENS = 10_000_000
_LARGEST_SEED = 2**63 - 1
# vLLM's `max_logprobs`, and OpenAI's bound.
_MOST_LOGPROBS = 20
_LARGEST_ID = 2**31 - 1

_RANGES: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "best_of": (1, 128),
    "max_tokens": (0, _MOST_TOKENS),
    "max_completion_tokens": (0, _MOST_TOKENS),
    "max_output_tokens": (0, _MOST_TOKENS),
    "min_tokens": (0, _MOST_TOKENS),
    "temperature": (0, 10),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, 1_000_000),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "length_penalty": (-100, 100),
    "logprobs": (0, _MOST_LOGPROBS),
    "top_logprobs": (0, _MOST_LOGPROBS),
    "prompt_logprobs": (0, _MOST_LOGPROBS),
    "seed": (-_LARGEST_SEED - 1, _LARGEST_SEED),
    "truncate_prompt_tokens": (-1, _MOST_TOKENS),
    "dimensions": (1, 1_000_000),
}
_NUMBERS = (int, float)
_LIST_LENGTHS = {"stop": 16, "bad_words": 128, "stop_token_ids": 128, "allowed_token_ids": 4096}
_STOP_CHARS = 256
_BIASES = 1024
_LARGEST_BIAS = 100.0
_TOOLS = 256
# A number as text, which vLLM reads as the number.
_NUMBER_CHARS = 32


class AbsurdParameter(PoolError):
    """`details.param` names it."""

    code: ClassVar[str] = "absurd_parameter"


def check_parameters(fields: dict[str, Any], *, clamp: bool) -> tuple[str, ...]:
    """Names of those that were brought into their bounds, in `fields`. Raises AbsurdParameter for what may not
    be, or cannot be, and UnsafeOutputForm for a schema, pattern or grammar that could harm an engine."""
    clamped: list[str] = []
    for name, value in fields.items():
        rule = _RULES.get(name)
        if rule is None or value is None:
            continue
        if isinstance(rule, tuple):
            # The usual case, some times per request: no call.
            if type(value) in _NUMBERS and rule[0] <= value <= rule[1]:
                continue
            kept = _check_number(name, value, rule, clamp=clamp)
        else:
            kept = rule(fields, name, clamp)
        if kept is not value:
            fields[name] = kept
            clamped.append(name)
    return tuple(clamped)


def _check_number(name: str, value: Any, bounds: tuple[float, float], *, clamp: bool) -> Any:
    number = value
    if isinstance(value, str) and len(value) <= _NUMBER_CHARS:
        try:
            number = float(value)
        except ValueError:
            return value
    if isinstance(value, bool) or not isinstance(number, _NUMBERS) or bounds[0] <= number <= bounds[1]:
        return value
    # Not a number is below nothing and above nothing.
    if not clamp or number != number:
        raise AbsurdParameter(f"`{name}` is between {bounds[0]:g} and {bounds[1]:g}.", param=name)
    return bounds[0] if number < bounds[0] else bounds[1]


def _check_list(fields: dict[str, Any], name: str, clamp: bool) -> Any:
    value = fields[name]
    if isinstance(value, str):
        return value if _keep_texts(name, [value], clamp=clamp) else None
    if not isinstance(value, list):
        return value
    most = _LIST_LENGTHS[name]
    if len(value) > most:
        if not clamp:
            raise AbsurdParameter(f"`{name}` has {len(value)} entries; at most {most} are taken.", param=name)
        value = value[:most]
    return _check_ids(name, value) if name.endswith("ids") else _keep_texts(name, value, clamp=clamp)


def _keep_texts(name: str, texts: list[Any], *, clamp: bool) -> list[Any]:
    kept = [one for one in texts if not isinstance(one, str) or 0 < len(one) <= _STOP_CHARS]
    if len(kept) == len(texts):
        return texts
    if not clamp:
        raise AbsurdParameter(f"A text of `{name}` has 1 to {_STOP_CHARS} characters.", param=name)
    return kept


def _check_ids(name: str, value: list[Any]) -> list[Any]:
    if any(isinstance(one, _NUMBERS) and not 0 <= one <= _LARGEST_ID for one in value):
        raise AbsurdParameter(f"An entry of `{name}` is no token.", param=name)
    return value


def _check_bias(fields: dict[str, Any], name: str, clamp: bool) -> Any:
    value = fields[name]
    if not isinstance(value, dict):
        return value
    if len(value) > _BIASES:
        raise AbsurdParameter(f"`{name}` has {len(value)} entries; at most {_BIASES} are taken.", param=name)
    bounds = (-_LARGEST_BIAS, _LARGEST_BIAS)
    kept = {token: _check_number(name, bias, bounds, clamp=clamp) for token, bias in value.items()}
    return value if kept == value else kept


def _check_tools(fields: dict[str, Any], name: str, clamp: bool) -> Any:
    value = fields[name]
    if isinstance(value, list) and len(value) > _TOOLS:
        raise AbsurdParameter(f"`{name}` has {len(value)} entries; at most {_TOOLS} are taken.", param=name)
    # Else the schemas are just text in the prompt, which no engine compiles.
    if fields.get("tool_choice") == "required" or isinstance(fields.get("tool_choice"), dict):
        check_tools(value, name)
    return value


def _check_form(fields: dict[str, Any], name: str, clamp: bool) -> Any:
    OUTPUT_FORMS[name](fields[name], name)
    return fields[name]


_RULES: dict[str, tuple[float, float] | Callable[[dict[str, Any], str, bool], Any]] = {
    **_RANGES,
    **dict.fromkeys(_LIST_LENGTHS, _check_list),
    **dict.fromkeys(OUTPUT_FORMS, _check_form),
    "logit_bias": _check_bias,
    "tools": _check_tools,
}
