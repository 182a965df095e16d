"""A conversation as the engine's prompt: the model's own chat template, fed as vLLM feeds it.

Source: vllm/renderers/hf.py and chat_utils.py of vLLM 0.32, and the template environment of transformers 5.19, read
2026-11-29. Runs in a reader only: a template is code from a model repository, sandboxed but not bounded in time.
"""

import json
from datetime import datetime
from typing import Any, ClassVar

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pool.domain.chat_template_file import ChatTemplates
from pool.domain.errors import PoolError

_FUNCTION_FIELDS = ("name", "description", "parameters")
_OPTIONAL_FIELDS = ("strict", "defer_loading")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


class NotCountable(PoolError):
    """Holds what has no text, or what the template refuses."""

    code: ClassVar[str] = "not_countable"


class _Generation(jinja2.ext.Extension):
    """The tag `generation` marks what a model wrote, for training; here its body is all that counts."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Compiled once. `render` raises NotCountable."""

    def __init__(self, templates: ChatTemplates) -> None:
        self._environment = _make_environment()
        self._tokens = templates.special_tokens
        self._compiled: dict[bool, tuple[jinja2.Template, bool, bool]] = {}
        for has_tools in (False, True):
            source = templates.choose(has_tools=has_tools)
            template = self._environment.from_string(source)
            wants_parts = _loops_over_parts(self._environment.parse(source))
            knows_developer = '"developer"' in source or "'developer'" in source
            self._compiled[has_tools] = (template, wants_parts, knows_developer)

    def render(self, fields: dict[str, Any]) -> str:
        tools = [_dump_tool(tool) for tool in fields.get("tools") or ()] or None
        template, wants_parts, knows_developer = self._compiled[tools is not None]
        messages = [_prepare(message, wants_parts=wants_parts) for message in list_messages(fields)]
        if not knows_developer:
            messages = _rename_developers(messages)
        given = fields.get("chat_template_kwargs")
        variables = {"add_generation_prompt": fields.get("add_generation_prompt", True)}
        for name in ("documents", "reasoning_effort"):
            if fields.get(name) is not None:
                variables[name] = fields[name]
        variables |= given if isinstance(given, dict) else {}
        try:
            return template.render(**{**self._tokens, **variables, "messages": messages, "tools": tools})
        except Exception as exc:
            # A template can raise anything; the engine will refuse the request then, with the reason.
            raise NotCountable("The chat template refuses the conversation.") from exc


def list_messages(fields: dict[str, Any]) -> list[Any]:
    """Of a chat, or of the Responses API: a text or items, with the instructions before them."""
    messages = fields.get("messages", fields.get("input"))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        raise NotCountable("There is no conversation.")
    instructions = fields.get("instructions")
    if isinstance(instructions, str) and instructions:
        return [{"role": "system", "content": instructions}, *messages]
    return messages


def _make_environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _loops_over_parts(root: jinja2.nodes.Template) -> bool:
    """Whether the template takes a content as a list of parts: then vLLM gives it lists, else one text.

    A loop over `….content`, `…['content']` or a variable `content`, at any depth.
    """
    return any(_names_content(loop.iter) for loop in root.find_all(jinja2.nodes.For))


def _names_content(node: jinja2.nodes.Node) -> bool:
    while isinstance(node, jinja2.nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"


def _dump_tool(tool: Any) -> dict[str, Any]:
    """As vLLM's models write it: absent description and parameters are null, other absent fields are left out."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise NotCountable("A tool is no function.")
    dumped = {name: function.get(name) for name in _FUNCTION_FIELDS}
    dumped |= {name: function[name] for name in _OPTIONAL_FIELDS if function.get(name) is not None}
    return {"type": "function", "function": dumped}


def _prepare(message: Any, *, wants_parts: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise NotCountable("A message has no role.")
    role = message["role"]
    texts = _texts_of(message.get("content"))
    prepared: dict[str, Any] = {"role": role}
    if wants_parts and role != "tool":
        prepared["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        prepared["content"] = "\n".join(texts)
    for name in ("name", "tool_call_id", "reasoning"):
        if isinstance(message.get(name), str):
            prepared[name] = message[name]
    if "reasoning" in prepared:
        prepared["reasoning_content"] = prepared["reasoning"]
    if role == "assistant" and message.get("tool_calls"):
        prepared["tool_calls"] = [_prepare_call(call) for call in message["tool_calls"]]
    return prepared


def _texts_of(content: Any) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise NotCountable("A content is no text.")
    return [_text_of(part) for part in content]


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise NotCountable("A part of a content is no text.")
    return text


def _prepare_call(call: Any) -> dict[str, Any]:
    """Arguments as an object, as templates expect them; what is none becomes an empty one."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise NotCountable("A tool call names no function.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _rename_developers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not any(message["role"] == "developer" for message in messages):
        return messages
    renamed = [
        {**message, "role": "system"} if message["role"] == "developer" else message for message in messages
    ]
    return _gather_systems(renamed)


def _gather_systems(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several, or one that is not the first, become one at the head."""
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) == 1 and messages[0] is systems[0]:
        return messages
    texts = [_join(message["content"]) for message in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _join(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
