"""What a request's text and parameters may hold; what must not reach an engine is neutralised or refused.

Invalid UTF-8, lone surrogates, NaN and nesting over 1,024 levels never come so far: the JSON parser refuses them.
"""

import re
from collections.abc import Iterator
from typing import Any

from pool.domain.gateway_settings import ModelSettings
from pool.domain.parameters import AbsurdParameter, check_parameters
from pool.domain.structured_output import UnsafeOutputForm
from pool.gateway.openai import InvalidRequest

# Control characters but tab and line ends; those that end a line become one.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BREAKS = {0x0B: "\n", 0x0C: "\n", 0x85: "\n"}
_PLAIN = dict.fromkeys((*range(9), *range(0x0E, 0x20), *range(0x7F, 0xA0))) | _BREAKS
# In JSON they are escaped, but for those beyond ASCII; other escapes can spell anything else of these guards.
_RAW_ESCAPE = re.compile(rb"\\(?:u00[0-9]|[bf])")
_RAW_CONTROL = re.compile(rb"\xc2[\x80-\x9f]")

# No indent, table or gap between paragraphs is as long; tokenizers' patterns have gone quadratic on such runs.
_BLANK_CHARS = 256
_BLANK_RUN = re.compile(rf"(?<!\s)\s{{{_BLANK_CHARS},}}")
# Of every 16th character such a run covers 15 neighbours at least, so that few characters are looked at.
_BLANK_STRIDE = 16
_BLANK_SAMPLE = re.compile(r"\s{15}")
# The same on the bytes of JSON, where white space is itself, `\n`, `\u2003`, or two or three bytes of UTF-8.
_RAW_SAMPLE = re.compile(rb"[ \\nrtu0-9a\x80-\x8a\x9a\x9f\xa0\xa8\xa9\xaf\xc2\xe1-\xe3]{15}")

# The control sequences of the families of tokenizers, as vLLM parses them out of any text: ChatML, Llama 3, Phi,
# GLM, gpt-oss and Qwen (`<|…|>`), DeepSeek (`<｜…｜>`), Llama 2 and Mistral, Gemma, StarCoder and SmolLM. Not
# `<filename>`, which people write for a file's name; it marks a place in training data and steers no conversation.
# Only the first character is matched, so that all of them are split by one call of sub() with a constant; the first
# look ahead turns down quickly what the second one would need its alternatives for.
_ANGLE_SOURCE = (
    r"<(?=[|｜/a-z]|<[/S])(?=\|[A-Za-z0-9_.:/+-]{1,64}\|>|｜[^<>｜\s]{1,64}｜>|s>|/s>|unk>|/unk>|pad>|bos>|eos>"
    r"|start_of_(?:turn|image)>|end_of_(?:turn|image)>|fim[_-](?:prefix|middle|suffix|pad)>|<SYS>>|</SYS>>"
    r"|repo_name>|reponame>|file_sep>|gh_stars>|issue_(?:start|comment|closed)>|empty_output>"
    r"|jupyter_(?:start|text|code|output|script)>)"
)
_BRACKET_SOURCE = (
    r"\[(?=[/A-Z])(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK"
    r"|PREFIX|MIDDLE|SUFFIX|IMG|IMG_BREAK|IMG_END|MODEL_SETTINGS)\])"
)
_ANGLE, _BRACKET = re.compile(_ANGLE_SOURCE), re.compile(_BRACKET_SOURCE)
_RAW_ANGLE, _RAW_BRACKET = re.compile(rb"<[|/<sfupbergij\\\xef]"), re.compile(_BRACKET_SOURCE.encode())
# What the application or the model itself wrote. A raw prompt is the caller's own template.
_TRUSTED_ROLES = frozenset(("system", "developer", "assistant"))
_CONVERSATIONS = frozenset((b"/v1/chat/completions", b"/v1/responses"))
_LISTS = ("messages", "input", "prompt")

# Kinds of doubt about a body.
_CONTROLS, _SPECIALS, _BLANKS = 1, 2, 4
_ALL = 7

Slot = tuple[Any, Any, str, bool]
"""Container, key, text, and whether the text is the user's."""


def inspect(
    fields: dict[str, Any], settings: ModelSettings, *, path: bytes, body: bytes | bytearray | None = None
) -> tuple[str, ...]:
    """Names of what was changed, in `fields` itself; empty = nothing, so the bytes that came can go on.

    `body`: the bytes that `fields` were read from, by which clean texts are known without looking at each.
    Raises InvalidRequest.
    """
    changed: tuple[str, ...] = ()
    if settings.absurd_parameters != "off":
        try:
            changed = check_parameters(fields, clamp=settings.absurd_parameters == "clamp")
        except (AbsurdParameter, UnsafeOutputForm) as exc:
            raise InvalidRequest(exc.message, param=exc.details.get("param")) from exc
    # An entry of a list takes two bytes at least.
    if body is None or len(body) > 2 * settings.max_messages:
        _check_counts(fields, settings.max_messages)
    doubts = _ALL if body is None else _find_doubts(body)
    return changed + _clean(fields, settings, path, doubts) if doubts else changed


def _find_doubts(body: bytes | bytearray) -> int:
    """What a look at each text may find: no bit means that there is nothing of the kind."""
    doubts = 0
    # `find` and not `in`, which first takes the bytes for a number and costs a microsecond for finding that wrong.
    if body.find(b"\\") >= 0 and _RAW_ESCAPE.search(body):
        doubts = _CONTROLS | _SPECIALS
    if body.find(b"\x7f") >= 0 or (body.find(b"\xc2") >= 0 and _RAW_CONTROL.search(body)):
        doubts |= _CONTROLS
    if (body.find(b"<") >= 0 and _RAW_ANGLE.search(body)) or _RAW_BRACKET.search(body):
        doubts |= _SPECIALS
    if len(body) > _BLANK_CHARS and _RAW_SAMPLE.search(body[::_BLANK_STRIDE]):
        doubts |= _BLANKS
    return doubts


def _check_counts(fields: dict[str, Any], most: int) -> None:
    for name in _LISTS:
        entries = fields.get(name)
        # One prompt as token numbers is no list of prompts.
        if not isinstance(entries, list) or (entries and isinstance(entries[0], int)):
            continue
        if len(entries) > most:
            raise InvalidRequest(
                f"`{name}` has {len(entries)} entries; at most {most} are taken.", param=name
            )
        for entry in entries:
            parts = entry.get("content") if isinstance(entry, dict) else None
            if isinstance(parts, list) and len(parts) > most:
                raise InvalidRequest(
                    f"A message has {len(parts)} parts; at most {most} are taken.", param=name
                )


def _clean(fields: dict[str, Any], settings: ModelSettings, path: bytes, doubts: int) -> tuple[str, ...]:
    changed: set[str] = set()
    for container, key, text, is_users in _list_texts(fields, path in _CONVERSATIONS):
        clean = text
        # In this order, since what goes away may have stood in the middle of what comes next.
        if doubts & _CONTROLS and _CONTROL.search(clean):
            clean = _drop_controls(clean, settings.control_characters, changed)
        if (doubts & _BLANKS or clean is not text) and _is_blank(clean):
            clean = _shorten_blanks(clean, settings.white_space, changed)
        if is_users and doubts & _SPECIALS and (_ANGLE.search(clean) or _BRACKET.search(clean)):
            clean = _split_specials(clean, settings.special_tokens, changed)
        if clean is not text:
            container[key] = clean
    return tuple(sorted(changed))


def _drop_controls(text: str, switch: str, changed: set[str]) -> str:
    if not _may_change(switch, "The text holds control characters."):
        return text
    changed.add("control_characters")
    return text.translate(_PLAIN)


def _shorten_blanks(text: str, switch: str, changed: set[str]) -> str:
    if not _may_change(switch, f"The text holds {_BLANK_CHARS} characters of white space in a row."):
        return text
    changed.add("white_space")
    return _BLANK_RUN.sub(lambda run: "\n\n" if "\n" in run[0] else " ", text)


def _split_specials(text: str, switch: str, changed: set[str]) -> str:
    """A space after the first character: tokenizers that drop zero-width characters would undo one of those."""
    if not _may_change(switch, "The text holds control sequences of the model."):
        return text
    changed.add("special_tokens")
    return _BRACKET.sub("[ ", _ANGLE.sub("< ", text))


def _may_change(switch: str, reason: str) -> bool:
    if switch == "refuse":
        raise InvalidRequest(reason)
    return switch != "off"


def _is_blank(text: str) -> bool:
    return (
        len(text) >= _BLANK_CHARS
        and _BLANK_SAMPLE.search(text[::_BLANK_STRIDE]) is not None
        and _BLANK_RUN.search(text) is not None
    )


def _list_texts(fields: dict[str, Any], is_conversation: bool) -> Iterator[Slot]:
    for name in ("instructions", "suffix", *_LISTS):
        value = fields.get(name)
        if isinstance(value, str):
            yield fields, name, value, is_conversation and name == "input"
        elif isinstance(value, list) and name in _LISTS:
            for index, entry in enumerate(value):
                if isinstance(entry, str):
                    yield value, index, entry, False
                elif isinstance(entry, dict):
                    yield from _texts_of(entry, is_conversation and entry.get("role") not in _TRUSTED_ROLES)


def _texts_of(message: dict[str, Any], is_users: bool) -> Iterator[Slot]:
    for name in ("content", "output"):
        content = message.get(name)
        if isinstance(content, str):
            yield message, name, content, is_users
        elif isinstance(content, list):
            for index, part in enumerate(content):
                if isinstance(part, str):
                    yield content, index, part, is_users
                elif isinstance(part, dict) and isinstance(part.get("text"), str):
                    yield part, "text", part["text"], is_users
