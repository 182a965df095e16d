"""Exact prompt tokens with a model's own tokenizer and chat template. Runs in a reader only."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer

from pool.domain.chat_template_file import read_templates
from pool.domain.errors import PoolError
from pool.domain.token_estimate import measure_weights
from pool.gateway.reading.chat_template import ChatTemplate, NotCountable
from pool.gateway.reading.prompt import Measures, estimate_prompt, read_prompt

_CHAT_PATHS = ("/v1/chat/completions", "/v1/responses")
# Beyond every context; the guess says so too.
_LONGEST_CHARS = 16_000_000


class FileBroken(PoolError):
    """Another content than its hash says, or none that can be used."""

    code: ClassVar[str] = "tokenizer_broken"


class Counter:
    """One tokenizer with its chat template, if there is one."""

    def __init__(self, tokenizer: Path, template: Path | None) -> None:
        """Raises FileBroken. The files' names are their digests."""
        content = _read_checked(tokenizer)
        try:
            self._tokenizer = Tokenizer.from_str(content.decode())
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._template = None if template is None else _read_template(template)
        except Exception as exc:
            # The library raises plain Exception for what it does not understand.
            raise FileBroken("The tokenizer cannot be loaded.") from exc

    def count(self, path: str, fields: dict[str, Any]) -> int:
        """Raises NotCountable."""
        if path not in _CHAT_PATHS:
            return sum(self._count_given(fields.get("prompt", fields.get("input"))))
        if self._template is None:
            raise NotCountable("The model has no chat template.")
        asked = fields.get("add_special_tokens") is True
        return self.count_text(self._template.render(fields), special=asked)

    def count_text(self, text: str, *, special: bool) -> int:
        if len(text) > _LONGEST_CHARS:
            raise NotCountable("The prompt is longer than any context.")
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def measure(self) -> Measures:
        """What guesses for this tokenizer and template are made with."""
        weights = measure_weights(lambda text: self.count_text(text, special=False))
        plain = Measures(weights, 0.0, 0.0)
        single, double = [self._measure_chat(count, plain) for count in (1, 3)]
        if single is None or double is None:
            return plain._replace(fixed_tokens=1.0)
        each = max(0.0, (double - single) / 2)
        return Measures(weights, each, max(0.0, single - each))

    def _measure_chat(self, messages: int, plain: Measures) -> float | None:
        """Tokens of the template itself around so many messages."""
        roles = ("user", "assistant")
        chat = {"messages": [{"role": roles[n % 2], "content": "hello"} for n in range(messages)]}
        try:
            return self.count(_CHAT_PATHS[0], chat) - estimate_prompt(read_prompt(chat), plain)
        except NotCountable:
            return None

    def _count_given(self, given: Any) -> list[int]:
        """A text, token numbers, or a list of either: what each prompt takes; the engine adds special tokens."""
        if isinstance(given, str):
            return [self.count_text(given, special=True)]
        if not isinstance(given, list):
            raise NotCountable("There is no prompt.")
        if given and isinstance(given[0], int):
            return [len(given)]
        return [len(one) if isinstance(one, list) else self._count_given(one)[0] for one in given]


def _read_checked(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise FileBroken("The file cannot be read.") from exc
    if hashlib.sha256(content).hexdigest() != path.name:
        raise FileBroken("The file is not what its hash says.")
    return content


def _read_template(path: Path) -> ChatTemplate:
    return ChatTemplate(read_templates(_read_checked(path)))
