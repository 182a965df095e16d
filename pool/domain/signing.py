"""What is derived from the secret that all hosts share: engine keys, digests of callers' keys, signatures."""

import hashlib
import hmac

Secret = str | bytes


def derive_engine_key(secret: Secret, *, replica_id: str, generation: int) -> str:
    """The key that an engine demands and a gateway sends; stored nowhere."""
    return _hex_hmac(secret, f"engine:{replica_id}:{generation}".encode())


def digest_key(secret: Secret, key: str) -> str:
    """What is stored of a caller's key."""
    return _hex_hmac(secret, b"key:" + key.encode())


def derive_internal_token(secret: Secret) -> str:
    """What a gateway shows at web's internal endpoint."""
    return _hex_hmac(secret, b"internal")


def derive_playground_key(secret: Secret) -> str:
    """The caller's key with which web asks the gateway for the playground; no browser sees it."""
    return _hex_hmac(secret, b"playground")


def derive_webhook_secret(secret: Secret, name: str, made_at: str) -> str:
    """What signs the notices to a webhook; one of the same name that is made anew has another."""
    return _hex_hmac(secret, f"webhook:{name}:{made_at}".encode())


def sign_table(secret: Secret, payload: bytes) -> str:
    return _hex_hmac(secret, b"table:" + payload)


def _hex_hmac(secret: Secret, text: bytes) -> str:
    return hmac.new(secret.encode() if isinstance(secret, str) else secret, text, hashlib.sha256).hexdigest()
