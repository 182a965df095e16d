"""Schemas, patterns and grammars that bind an answer: what could stop or crash an engine is refused here.

Engines compile them in their own process, where a malformed or explosive one has ended it for everybody (FC-14).
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

from pool.domain.errors import PoolError

# Looked at in the event loop, too: so many take 8 ms.
_MAX_NODES = 3_000
_MAX_DEPTH = 32
_MAX_PATTERN_CHARS = 2_048
# Takes 5 ms.
_MAX_ALL_PATTERNS_CHARS = 8_192
_MAX_GRAMMAR_CHARS = 32_768
_MAX_CHOICES = 1_024
# States that a pattern's counted repetitions unfold to.
_MAX_STATES = 20_000
_MAX_COUNT = 100_000
_MAX_REFERENCES = 32

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SINGLE = frozenset(
    (
        "items", "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties",
    )
)  # fmt: skip
_NESTING = _BY_NAME | _LISTS | _SINGLE
_CHECKED = _COUNTS | {"$ref", "enum", "pattern", "patternProperties", "required", "type"}
_PIECE = re.compile(
    r"\\[pPxu]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[:=!>]|<[=!]|P?<\w+>|[a-zA-Z-]+[:)])|\{(\d+)(?:,(\d*))?\}|.",
    re.DOTALL,
)


class UnsafeOutputForm(PoolError):
    """`details.param` names the field."""

    code: ClassVar[str] = "unsafe_output_form"


def check_tools(tools: object, param: str) -> None:
    """For tools of which the answer must call one. Raises UnsafeOutputForm."""
    for tool in tools if isinstance(tools, list) else ():
        inner = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(inner, dict) and inner.get("parameters") is not None:
            check_schema(inner["parameters"], param)


def check_schema(schema: object, param: str) -> None:
    """Raises UnsafeOutputForm. `schema`: a JSON Schema, or its text."""
    if isinstance(schema, str):
        schema = _parse(schema, param)
    _measure(schema, param)
    patterns: list[object] = []
    _walk(schema, schema, patterns=patterns, param=param)
    if sum(len(pattern) for pattern in patterns if isinstance(pattern, str)) > _MAX_ALL_PATTERNS_CHARS:
        _refuse(param, f"has patterns of over {_MAX_ALL_PATTERNS_CHARS} characters together")
    for pattern in patterns:
        check_pattern(pattern, param)


def check_pattern(pattern: object, param: str) -> None:
    """Raises UnsafeOutputForm where a regular expression is no text, too long, broken, or unfolds to too much."""
    if not isinstance(pattern, str):
        _refuse(param, "has a pattern that is no text")
    if len(pattern) > _MAX_PATTERN_CHARS:
        _refuse(param, f"has a pattern of {len(pattern)} characters; at most {_MAX_PATTERN_CHARS} are taken")
    states = count_states(pattern)
    if states is None:
        _refuse(param, "has a broken pattern")
    if states > _MAX_STATES:
        _refuse(param, f"has a pattern that unfolds to {states} states; at most {_MAX_STATES} are taken")


def count_states(pattern: str) -> int | None:
    """About the states that its counted repetitions unfold to; None = brackets or repetitions do not fit."""
    # Of the open group: the sum of its closed pieces, and the last piece, which a repetition multiplies.
    closed = last = 0
    outer: list[int] = []
    for match in _PIECE.finditer(pattern):
        piece = match[0]
        if piece in "*+?" or match[1] is not None:
            if not last:
                return None
            last *= max(1, int(match[2] or match[1] or 1))
        elif piece == ")":
            if not outer:
                return None
            closed, last = outer.pop(), max(1, closed + last)
        elif piece in "[\\":
            return None
        elif piece[0] == "(" and piece[-1] != ")":
            outer.append(closed + last)
            closed = last = 0
        else:
            closed, last = closed + last, 0 if piece == "|" else 1
    return None if outer else closed + last


def _parse(text: str, param: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        _refuse(param, "is not valid JSON")


def _measure(value: object, param: str) -> None:
    nodes, level = 0, [value]
    for _ in range(_MAX_DEPTH):
        nodes += len(level)
        if nodes > _MAX_NODES:
            _refuse(param, f"has more than {_MAX_NODES} nodes")
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    _refuse(param, f"is nested deeper than {_MAX_DEPTH} levels")


def _children(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _walk(schema: object, root: object, *, patterns: list[object], param: str) -> None:
    """Adds to `patterns`. Recursion is bounded: `_measure` came before."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        _refuse(param, "holds something that is no schema")
    for keyword, value in schema.items():
        if keyword in _CHECKED:
            _check_keyword(keyword, value, root, patterns=patterns, param=param)
        if keyword in _NESTING:
            for child in _schemas_in(keyword, value):
                _walk(child, root, patterns=patterns, param=param)


def _check_keyword(keyword: str, value: Any, root: object, *, patterns: list[object], param: str) -> None:
    if keyword == "$ref":
        _follow(value, root, param)
    elif keyword == "pattern":
        patterns.append(value)
    elif keyword == "patternProperties":
        patterns.extend(value if isinstance(value, dict) else ())
    elif not _fits(keyword, value):
        _refuse(param, f"has a broken `{keyword}`")


def _schemas_in(keyword: str, value: object) -> Iterable[object]:
    if keyword in _BY_NAME:
        return value.values() if isinstance(value, dict) else (value,)
    if keyword in _LISTS:
        return value if isinstance(value, list) and value else (None,)
    return value if isinstance(value, list) and keyword == "items" else (value,)


def _fits(keyword: str, value: object) -> bool:
    if keyword == "type":
        names = value if isinstance(value, list) else [value]
        return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)
    if keyword == "enum":
        return isinstance(value, list) and bool(value)
    if keyword == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    # Grammars unfold counts; the usual bounds of real schemas are far below.
    return isinstance(value, int | float) and 0 <= value <= _MAX_COUNT


def _follow(reference: object, root: object, param: str) -> None:
    """To what is no reference itself: a ring of them has sent compilers into endless recursion."""
    for _ in range(_MAX_REFERENCES):
        # An address outside the schema would have the engine fetch it.
        if not isinstance(reference, str) or not reference.startswith("#"):
            _refuse(param, "refers to something outside of the schema")
        node = root
        for step in reference[1:].strip("/").split("/") if len(reference) > 1 else ():
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, dict) else None
        if node is None:
            _refuse(param, "refers to something that is not there")
        if not isinstance(node, dict) or "$ref" not in node:
            return
        reference = node["$ref"]
    _refuse(param, "refers to itself for ever")


def _check_format(value: object, param: str) -> None:
    """`response_format`, and `text.format` of /v1/responses."""
    if not isinstance(value, dict):
        return
    inner = value.get("json_schema", value)
    if isinstance(inner, dict) and inner.get("schema") is not None:
        check_schema(inner["schema"], param)
    else:
        _measure(value, param)


def _check_text(value: object, param: str) -> None:
    if isinstance(value, dict):
        _check_format(value.get("format"), param)


def _check_choices(value: object, param: str) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        _refuse(param, "is a list of texts")
    if len(value) > _MAX_CHOICES:
        _refuse(param, f"has {len(value)} choices; at most {_MAX_CHOICES} are taken")


def _check_grammar(value: object, param: str) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_GRAMMAR_CHARS:
        _refuse(param, f"has 1 to {_MAX_GRAMMAR_CHARS} characters")


def _check_structured(value: object, param: str) -> None:
    if isinstance(value, dict):
        for name in value.keys() & _PARTS.keys():
            if value[name] is not None:
                _PARTS[name](value[name], param)


def _check_tag(value: object, param: str) -> None:
    _measure(_parse(value, param) if isinstance(value, str) else value, param)


def _refuse(param: str, what: str) -> NoReturn:
    raise UnsafeOutputForm(f"`{param}` {what}.", param=param)


_PARTS: dict[str, Callable[[object, str], None]] = {
    "json": check_schema,
    "regex": check_pattern,
    "choice": _check_choices,
    "grammar": _check_grammar,
    "whitespace_pattern": check_pattern,
    "structural_tag": _check_tag,
}
OUTPUT_FORMS: dict[str, Callable[[object, str], None]] = {
    **{f"guided_{name}": check for name, check in _PARTS.items()},
    "structured_outputs": _check_structured,
    "structural_tag": _check_tag,
    "response_format": _check_format,
    "text": _check_text,
}
"""Field of a request that binds its answer → its check, which takes value and field and raises UnsafeOutputForm."""
