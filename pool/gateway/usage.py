"""Tokens that an engine says it used, read from the end of an answer without parsing it."""

import re
from typing import NamedTuple

_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,12})')


class Usage(NamedTuple):
    """None where the engine did not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def total(self) -> int | None:
        if self.prompt_tokens is None:
            return None
        return self.prompt_tokens + (self.output_tokens or 0)


NO_USAGE = Usage()


def read_usage(tail: bytes) -> Usage:
    start = tail.rfind(b'"usage"')
    if start < 0:
        return NO_USAGE
    prompt, output = _PROMPT.search(tail, start), _OUTPUT.search(tail, start)
    if prompt is not None and int(prompt[1]) == 0:
        # No prompt is empty: an engine that says so has not counted.
        return NO_USAGE
    cached = _CACHED.search(tail, start)
    return Usage(
        int(prompt[1]) if prompt else None,
        int(output[1]) if output else None,
        int(cached[1]) if cached else None,
    )
