"""The prompt of a request as one text, for guesses of its length and for hashes of its blocks. No templates here."""

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from pool.domain.token_estimate import GENERIC, Weights, estimate_tokens

# An image, a sound: what it costs depends on its size and the model; missing is not zero.
_OTHER_PART_TOKENS = 512
BLOCK_CHARS = 512
"""About 128 tokens of prose: eight of vLLM's usual blocks of 16."""
MOST_BLOCKS = 256


class Prompt(NamedTuple):
    text: str
    """Tools first, as most chat templates have them, then roles and contents in order."""
    messages: int
    token_ids: int
    """Tokens that came as numbers."""
    other_parts: int
    """Parts that are no text."""


class Measures(NamedTuple):
    """What a tokenizer and a chat template cost, in tokens."""

    weights: Weights = GENERIC
    message_tokens: float = 4.0
    """What the template adds to each message, beyond its role."""
    fixed_tokens: float = 6.0
    """What it adds once; a default system prompt among it."""


USUAL = Measures()


def count_with(measures: Measures) -> Callable[[str], int]:
    """A guess at a text's own tokens."""
    return partial(estimate_tokens, weights=measures.weights)


def measures_of(fields: list[Any]) -> Measures:
    """Back from JSON."""
    return Measures(tuple(fields[0]), fields[1], fields[2])


def read_prompt(fields: dict[str, Any]) -> Prompt:
    """Any shape is read, none raises: what is no prompt counts as an empty one."""
    messages = fields.get("messages")
    pieces: list[str] = []
    tools = fields.get("tools")
    if tools:
        pieces.append(orjson.dumps(tools).decode())
    if isinstance(messages, list):
        others = _add_messages(pieces, messages)
        return Prompt("\n".join(pieces), len(messages), 0, others)
    given = fields.get("prompt", fields.get("input"))
    if isinstance(given, str):
        pieces.append(given)
        return Prompt("\n".join(pieces), 1, 0, 0)
    return (
        _read_list(fields, pieces, given) if isinstance(given, list) else Prompt("\n".join(pieces), 0, 0, 0)
    )


def estimate_prompt(prompt: Prompt, measures: Measures = USUAL) -> int:
    tokens = estimate_tokens(prompt.text, measures.weights) + prompt.token_ids
    around = prompt.messages * measures.message_tokens + measures.fixed_tokens if prompt.messages else 0
    return int(tokens + around) + prompt.other_parts * _OTHER_PART_TOKENS


def block_hashes(text: str, *, block_chars: int = BLOCK_CHARS, limit: int = MOST_BLOCKS) -> tuple[int, ...]:
    """A 64-bit hash for each whole block, which stands for all text up to its end. The same in every process."""
    hashes = []
    chained = b""
    last = min(len(text) - block_chars, block_chars * (limit - 1))
    for at in range(0, last + 1, block_chars):
        block = text[at : at + block_chars].encode("utf-8", "replace")
        chained = blake2b(block, digest_size=8, key=chained).digest()
        hashes.append(int.from_bytes(chained))
    return tuple(hashes)


def _add_messages(pieces: list[str], messages: list[Any]) -> int:
    """Returns the number of parts that are no text."""
    others = 0
    for message in messages:
        if not isinstance(message, dict):
            continue
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str):
            pieces.append(role)
        if isinstance(content, str):
            pieces.append(content)
        elif isinstance(content, list):
            others += _add_parts(pieces, content)
        calls = message.get("tool_calls")
        if calls:
            pieces.append(orjson.dumps(calls).decode())
    return others


def _add_parts(pieces: list[str], parts: Iterable[Any]) -> int:
    others = 0
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            pieces.append(text)
        else:
            others += 1
    return others


def _read_list(fields: dict[str, Any], pieces: list[str], given: list[Any]) -> Prompt:
    """Token numbers, texts, lists of either, or the items of the Responses API."""
    instructions = fields.get("instructions")
    if isinstance(instructions, str):
        pieces.append(instructions)
    if given and isinstance(given[0], dict):
        others = _add_messages(pieces, given)
        return Prompt("\n".join(pieces), len(given), 0, others)
    numbers = 0
    for one in given:
        if isinstance(one, str):
            pieces.append(one)
        else:
            numbers += len(one) if isinstance(one, list) else 1
    return Prompt("\n".join(pieces), 0, numbers, 0)
