"""What a request's text and parameters may hold; what must not reach an engine is neutralised or refused."""

from typing import Any

from pool.domain.gateway_settings import ModelSettings


def inspect(
    fields: dict[str, Any], settings: ModelSettings, *, path: bytes, body: bytes | bytearray | None = None
) -> tuple[str, ...]:
    """Names of what was changed, in `fields` itself; empty = nothing, so the bytes that came can go on.

    `body`: the bytes that `fields` were read from, by which clean texts are known without looking at each.
    Raises InvalidRequest.
    """
    return ()
