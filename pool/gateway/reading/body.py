"""What the gateway must know of a body that it never parses itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.guards import inspect
from pool.gateway.openai import read_ask, read_opening, read_user
from pool.gateway.reading.prompt import USUAL, Measures, block_hashes, estimate_prompt, read_prompt


@dataclass(frozen=True, slots=True)
class Reading:
    """Of a body that may go on. `body` is what the engine gets."""

    model: str
    stream: bool
    has_stream_options: bool
    include_usage: bool
    """The caller asked for usage at the end of the stream."""
    user: str
    """"" if there is none."""
    opening: str
    """The first message that is the caller's own, its first 4,096 characters."""
    max_tokens: int | None
    """Under whatever name; None = not given, or no sound number."""
    temperature: float | None
    n: int
    seed: int | None
    has_tools: bool
    messages: int
    prompt_tokens: int
    """A guess."""
    blocks: tuple[int, ...]
    changed: tuple[str, ...]
    """What the guards changed."""
    digest: str
    """Of `body`: BLAKE2b, 128 bits, hexadecimal."""
    body: bytes | bytearray


def read_body(
    path: bytes,
    body: bytes | bytearray,
    *,
    settings: Mapping[str, ModelSettings],
    measures: Mapping[str, Measures],
) -> Reading:
    """`settings` and `measures` by model. Raises InvalidRequest."""
    ask = read_ask(path, body)
    fields, body = ask.fields, ask.body
    found = settings.get(ask.model)
    changed = () if found is None else inspect(fields, found, path=path, body=body)
    if changed:
        body = orjson.dumps(fields)
    options = fields.get("stream_options")
    prompt = read_prompt(fields)
    return Reading(
        model=ask.model,
        stream=ask.stream,
        has_stream_options=isinstance(options, dict),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        user=read_user(fields),
        opening=read_opening(fields),
        max_tokens=find_max_tokens(fields),
        temperature=_number(fields.get("temperature")),
        n=_whole(fields.get("n")) or 1,
        seed=_whole(fields.get("seed")),
        has_tools=bool(fields.get("tools")),
        messages=prompt.messages,
        prompt_tokens=estimate_prompt(prompt, measures.get(ask.model, USUAL)),
        blocks=block_hashes(prompt.text),
        changed=changed,
        digest=blake2b(body, digest_size=16).hexdigest(),
        body=body,
    )


def find_max_tokens(fields: dict[str, Any]) -> int | None:
    """Of the names that the three APIs have for it, the newest first."""
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        given = _whole(fields.get(name))
        if given is not None and given >= 0:
            return given
    return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
