"""API key → caller, from the routing table. Without a table a key is unknown, which is not invalid."""

from pool.domain.routing_table import KeyRoute
from pool.domain.signing import digest_key
from pool.gateway.openai import InvalidApiKey, StartingUp
from pool.gateway.routes import Routes

# No key of ours is nearly as long; hashing a huge one would only cost.
_MAX_KEY_BYTES = 512
_MAX_HEADER_BYTES = _MAX_KEY_BYTES + 16
_MAX_REMEMBERED = 10_000


class Callers:
    """Remembers who sent which header until the next table, since the digest costs more than the look-up."""

    def __init__(self, routes: Routes, *, secret: str) -> None:
        self._routes = routes
        self._secret = secret
        self._remembered: dict[bytes, KeyRoute] = {}
        self._keys: dict[str, KeyRoute] | None = None

    def find(self, authorization: bytes | None) -> KeyRoute:
        """Raises InvalidApiKey, or StartingUp while there is no table to look into."""
        if self._keys is not self._routes.keys:
            # A revoked key is forgotten with the table that named it.
            self._keys = self._routes.keys
            self._remembered.clear()
        caller = self._remembered.get(authorization or b"")
        if caller is None:
            caller = self._look_up(authorization or b"")
            # One key can be padded in many ways: neither their number nor their length may fill the memory.
            if len(self._remembered) < _MAX_REMEMBERED and len(authorization or b"") <= _MAX_HEADER_BYTES:
                self._remembered[authorization or b""] = caller
        return caller

    def _look_up(self, authorization: bytes) -> KeyRoute:
        if self._routes.order is None:
            raise StartingUp("The gateway holds no routing table yet. Try again shortly.")
        scheme, _, key = authorization.partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer" or not key or len(key) > _MAX_KEY_BYTES:
            raise InvalidApiKey("Send your API key as `Authorization: Bearer KEY`.")
        caller = self._routes.keys.get(digest_key(self._secret, key.decode("latin-1")))
        if caller is None:
            raise InvalidApiKey("This API key is unknown or was revoked.")
        return caller
