"""Callers' keys and API tokens: made, shown once, revoked. Only their HMAC is stored."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from pool.domain import signing
from pool.domain.names import check_name
from pool.models import ApiToken, Key, Model
from pool.services.audit import Actor, record
from pool.services.captures import forget_texts
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.routing import rebuild_table

KEY_PREFIX = "sk-sluice-"
TOKEN_PREFIX = "slt_"
TIERS = ("vip", "standard", "batch")
LARGEST_LIMIT = 2**31 - 1
KEEPALIVE_RANGE_S = (1.0, 600.0)
LIMITS = ("requests_per_min", "tokens_per_min", "keepalive_s")


@dataclass(frozen=True)
class KeyWish:
    name: str
    tier: str = "standard"
    allowed_models: tuple[str, ...] | None = None
    may_pin: bool = False
    label: str = ""
    requests_per_min: int | None = None
    """Over all gateway processes; None: no limit."""
    tokens_per_min: int | None = None
    keepalive_s: float | None = None
    """A stream without a byte for so long gets a comment; None: never."""
    capture_ratio: float = 0.0
    """Share of its requests whose masked texts are kept for a while; 0: none."""


def digest_key(key: str) -> str:
    """What is stored of a caller's key: no password hash, because the key has 190 bits and the path is hot."""
    return signing.digest_key(settings.SECRET_KEY, key)


def digest_token(token: str) -> str:
    return signing.digest_key(settings.SECRET_KEY, f"token:{token}")


def create_key(wish: KeyWish, *, actor: Actor, value: str | None = None) -> tuple[Key, str]:
    """The row and the key itself, which is shown this once. `value` sets a known key (scripts, first start)."""
    _check(wish)
    value = value or KEY_PREFIX + secrets.token_urlsafe(24)
    try:
        with transaction.atomic():
            key = Key.objects.create(
                digest=digest_key(value), prefix=value[: len(KEY_PREFIX) + 4], **_columns(wish)
            )
            rebuild_table()
            limits: dict[str, Any] = {
                name: getattr(key, name) for name in LIMITS if getattr(key, name) is not None
            }
            if key.capture_ratio:
                limits["capture_ratio"] = key.capture_ratio
            record(
                actor,
                "key.create",
                subject=f"key/{key.name}",
                tier=key.tier,
                models=key.allowed_models,
                **limits,
            )
    except IntegrityError as exc:
        raise Conflict(f"There is a key '{wish.name}' already. Choose another name.", name=wish.name) from exc
    return key, value


def change_key(name: str, changes: Mapping[str, Any], *, actor: Actor) -> Key:
    """`changes` are fields of KeyWish but the name. The key itself stays; gateways follow within a second.

    What is so already changes nothing and writes no audit row.
    """
    with transaction.atomic():
        key = Key.objects.select_for_update().filter(name=name).first()
        if key is None:
            raise not_found("key", name)
        if key.revoked_at is not None:
            raise Conflict(f"Key '{name}' is revoked for good. Make another one.", name=name)
        before = _wish_of(key)
        wish = KeyWish(**{**asdict(before), **changes, "name": name})
        _check(wish)
        moved = {
            field: [value, asdict(wish)[field]]
            for field, value in asdict(before).items()
            if asdict(wish)[field] != value
        }
        if moved:
            for field, value in _columns(wish).items():
                setattr(key, field, value)
            key.save(update_fields=list(_columns(wish)))
            rebuild_table()
            record(actor, "key.change", subject=f"key/{name}", changes=moved)
        if before.capture_ratio and not wish.capture_ratio:
            forget_texts(key, actor=actor)
    return key


def revoke_key(name: str, *, actor: Actor) -> Key:
    """Idempotent: a revoked key stays revoked with its first time."""
    with transaction.atomic():
        key = Key.objects.select_for_update().filter(name=name).first()
        if key is None:
            raise not_found("key", name)
        if key.revoked_at is None:
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
            rebuild_table()
            record(actor, "key.revoke", subject=f"key/{name}")
            forget_texts(key, actor=actor)
    return key


def _columns(wish: KeyWish) -> dict[str, Any]:
    models = None if wish.allowed_models is None else list(wish.allowed_models)
    return asdict(wish) | {"allowed_models": models}


def _wish_of(key: Key) -> KeyWish:
    models = None if key.allowed_models is None else tuple(key.allowed_models)
    return KeyWish(
        name=key.name,
        tier=key.tier,
        allowed_models=models,
        may_pin=key.may_pin,
        label=key.label,
        requests_per_min=key.requests_per_min,
        tokens_per_min=key.tokens_per_min,
        keepalive_s=key.keepalive_s,
        capture_ratio=key.capture_ratio,
    )


def _check(wish: KeyWish) -> None:
    check_name("key", wish.name)
    if wish.tier not in TIERS:
        raise Invalid(f"The tier '{wish.tier}' is unknown. Use one of {', '.join(TIERS)}.", tier=wish.tier)
    _check_limits(wish)
    if wish.allowed_models is not None:
        known = set(Model.objects.filter(name__in=wish.allowed_models).values_list("name", flat=True))
        missing = sorted(set(wish.allowed_models) - known)
        if missing:
            raise Invalid(f"There is no model {', '.join(missing)}. Register it first.", missing=missing)


def _check_limits(wish: KeyWish) -> None:
    for name, limit in (
        ("requests_per_min", wish.requests_per_min),
        ("tokens_per_min", wish.tokens_per_min),
    ):
        if limit is not None and not 1 <= limit <= LARGEST_LIMIT:
            raise _wrong_limit(name, f"is from 1 to {LARGEST_LIMIT}, or none")
    low, high = KEEPALIVE_RANGE_S
    if wish.keepalive_s is not None and not low <= wish.keepalive_s <= high:
        raise _wrong_limit("keepalive_s", f"is from {low:g} to {high:g} seconds, or none")
    if not 0 <= wish.capture_ratio <= 1:
        raise _wrong_limit("capture_ratio", "is a share from 0 to 1")


def _wrong_limit(name: str, rule: str) -> Invalid:
    text = f"The limit '{name}' {rule}."
    return Invalid(text, problems=[{"field": name, "message": text}])


def create_token(user: User, *, name: str, actor: Actor, value: str | None = None) -> tuple[ApiToken, str]:
    """A token that acts as `user`; the value is shown this once."""
    check_name("token", name)
    value = value or TOKEN_PREFIX + secrets.token_urlsafe(30)
    try:
        with transaction.atomic():
            token = ApiToken.objects.create(
                user=user, name=name, digest=digest_token(value), prefix=value[: len(TOKEN_PREFIX) + 4]
            )
            record(actor, "token.create", subject=f"token/{user.username}/{name}")
    except IntegrityError as exc:
        raise Conflict(
            f"{user.username} has a token '{name}' already. Choose another name.", name=name
        ) from exc
    return token, value


def revoke_token(token: ApiToken, *, actor: Actor) -> None:
    with transaction.atomic():
        revoked = ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())
        if revoked:
            record(actor, "token.revoke", subject=f"token/{token.user.username}/{token.name}")


def find_token_user(value: str) -> User | None:
    """The active user of a valid token; None if it is unknown, revoked or its user is inactive."""
    token = (
        ApiToken.objects.filter(digest=digest_token(value), revoked_at=None, user__is_active=True)
        .select_related("user")
        .first()
    )
    return token.user if token else None
