"""Which requests always have the same answer, and the key by which equal ones find it."""

import re
from hashlib import blake2b
from typing import Any

import orjson

# They say who asks or how it is delivered, not what.
_UNHEARD = frozenset(
    (
        "metadata", "priority", "prompt_cache_key", "request_id", "safety_identifier", "service_tier", "store",
        "stream", "stream_options", "user",
    )
)  # fmt: skip
# What lies at an address can change; what is sent inline is too large to be worth a place.
_OUTSIDE = re.compile(rb'"(?:(?:image|audio|video)_url|input_(?:image|audio|video|file)|file_id)"')
_RELEASE_BYTES = 4
_DIGEST_BYTES = 16


def digest_ask(path: bytes, fields: dict[str, Any]) -> bytes | None:
    """Equal for requests that ask the same, in whatever order their fields stand; None = the answer may differ each
    time, or is a stream, whose pieces nobody kept.

    Only temperature 0 decides for the likeliest token. Calls of tools carry ids that must differ. Embeddings have no
    chance in them.
    """
    if fields.get("stream") is True or (path != b"/v1/embeddings" and not _is_deterministic(fields)):
        return None
    heard = {name: value for name, value in fields.items() if name not in _UNHEARD}
    canonical = orjson.dumps(heard, option=orjson.OPT_SORT_KEYS)
    if _OUTSIDE.search(canonical):
        return None
    return blake2b(path + b"\n" + canonical, digest_size=_DIGEST_BYTES).digest()


def make_key(digest: bytes, *, secret: bytes, scope: str, release: int) -> bytes:
    """`scope`: whose answers nobody else gets. Keyed, so that a prompt cannot be guessed from a name in Redis."""
    mixed = blake2b(digest + scope.encode(), key=secret, digest_size=_DIGEST_BYTES).digest()
    return release.to_bytes(_RELEASE_BYTES, "big") + mixed


def release_of(key: bytes) -> int:
    return int.from_bytes(key[:_RELEASE_BYTES], "big")


def _is_deterministic(fields: dict[str, Any]) -> bool:
    temperature = fields.get("temperature")
    return (
        type(temperature) in (int, float)
        and temperature == 0
        and fields.get("n") in (None, 1)
        and fields.get("best_of") in (None, 1)
        and not fields.get("tools")
    )
