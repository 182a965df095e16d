"""API key → caller, from the routing table. Without a table a key is unknown, which is not invalid."""

from pool.domain.routing_table import KeyRoute
from pool.domain.signing import digest_key
from pool.gateway.openai import InvalidApiKey, StartingUp
from pool.gateway.routes import Routes

# No key of ours is nearly as long; hashing a huge one would only cost.
_MAX_KEY_BYTES = 512


def find_caller(routes: Routes, authorization: bytes | None, *, secret: str) -> KeyRoute:
    """Raises InvalidApiKey, or StartingUp while there is no table to look into."""
    if routes.order is None:
        raise StartingUp("The gateway holds no routing table yet. Try again shortly.")
    scheme, _, key = (authorization or b"").partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key or len(key) > _MAX_KEY_BYTES:
        raise InvalidApiKey("Send your API key as `Authorization: Bearer KEY`.")
    caller = routes.keys.get(digest_key(secret, key.decode("latin-1")))
    if caller is None:
        raise InvalidApiKey("This API key is unknown or was revoked.")
    return caller
