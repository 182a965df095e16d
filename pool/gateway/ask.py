"""What the gateway needs to know of a request's body, whether it was read here or by a reader process."""

from typing import Any

import orjson

from pool.domain.gateway_settings import ModelSettings
from pool.domain.routing_table import KeyRoute
from pool.gateway.guards import inspect
from pool.gateway.openai import read_ask, read_opening, read_user
from pool.gateway.reading.body import Reading, find_max_tokens
from pool.gateway.reading.prompt import Measures, Prompt, block_hashes, estimate_prompt, read_prompt
from pool.gateway.request import Request

_ASK_FOR_USAGE = b',"stream_options":{"include_usage":true}}'
_STREAMS_OF_CHOICES = frozenset((b"/v1/chat/completions", b"/v1/completions"))


class Ask:
    """`body` is what an engine gets. `fields`: None if a reader process read it."""

    __slots__ = (
        "_prompt", "_reading", "body", "changed", "cuts_left", "fields", "hides_usage", "max_tokens", "model", "path",
        "prompt_tokens", "stream",
    )  # fmt: skip

    def __init__(self, path: bytes, model: str, body: bytes | bytearray, *, stream: bool) -> None:
        self.path = path
        self.model = model
        self.body = body
        self.stream = stream
        self.fields: dict[str, Any] | None = None
        self.hides_usage = False
        """The engine is asked for usage at the end of the stream, the caller did not ask for it."""
        self.max_tokens: int | None = None
        self.cuts_left = 2
        """The first is by a guess; an exact count may show that it was not enough."""
        self.prompt_tokens = 0
        self.changed: tuple[str, ...] = ()
        """What the guards changed."""
        self._prompt: Prompt | None = None
        self._reading: Reading | None = None

    @property
    def user(self) -> str:
        """ "" if there is none."""
        return self._reading.user if self._reading is not None else read_user(self.fields or {})

    @property
    def opening(self) -> str:
        """The first message that is the caller's own: a system prompt is shared by all conversations."""
        return self._reading.opening if self._reading is not None else read_opening(self.fields or {})

    @property
    def text(self) -> str:
        """Of the prompt; "" where a reader has it."""
        return self._prompt.text if self._prompt is not None else ""

    @property
    def blocks(self) -> tuple[int, ...]:
        """Hashes of the prompt's blocks, each of all text up to its end."""
        if self._reading is not None:
            return self._reading.blocks
        return block_hashes(self._prompt.text) if self._prompt is not None else ()

    def guard(self, settings: ModelSettings) -> None:
        """Raises InvalidRequest. A reader has done it already."""
        if self.fields is not None:
            self.changed = inspect(self.fields, settings, path=self.path, body=self.body)
            if self.changed:
                self.body = orjson.dumps(self.fields)

    def measure(self, measures: Measures) -> int:
        """A guess at the prompt's tokens."""
        if self.fields is not None:
            self.max_tokens = find_max_tokens(self.fields)
            self._prompt = read_prompt(self.fields)
            self.prompt_tokens = estimate_prompt(self._prompt, measures)
        return self.prompt_tokens

    def ask_for_usage(self) -> None:
        """A field at the end replaces one of its name before it."""
        if not self.stream or self.path not in _STREAMS_OF_CHOICES:
            return
        if self._reading is not None:
            asked = self._reading.include_usage
        else:
            options = (self.fields or {}).get("stream_options")
            asked = isinstance(options, dict) and options.get("include_usage") is True
        if not asked:
            self.hides_usage = True
            body = self.body
            if isinstance(body, bytearray):
                # A large one is not copied.
                del body[body.rindex(b"}") :]
                body += _ASK_FOR_USAGE
            else:
                self.body = body[: body.rindex(b"}")] + _ASK_FOR_USAGE


def ask_here(request: Request) -> Ask:
    """Raises InvalidRequest."""
    read = read_ask(request.path, request.body)
    ask = Ask(request.path, read.model, read.body, stream=read.stream)
    ask.fields = read.fields
    return ask


def ask_of(path: bytes, reading: Reading) -> Ask:
    ask = Ask(path, reading.model, reading.body, stream=reading.stream)
    ask._reading = reading  # noqa: SLF001  its other way to be made
    ask.max_tokens = reading.max_tokens
    ask.prompt_tokens = reading.prompt_tokens
    ask.changed = reading.changed
    return ask


def sticky_key(ask: Ask, request: Request, caller: KeyRoute) -> bytes:
    session = request.headers.get(b"x-sluice-session")
    if session is not None:
        return session
    user = ask.user
    return (
        user.encode("utf-8", "replace")
        if user
        else f"{caller.digest}\n{ask.opening}".encode("utf-8", "replace")
    )
