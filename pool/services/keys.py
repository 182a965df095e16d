"""Callers' keys and API tokens: made, shown once, revoked. Only their HMAC is stored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from pool.domain import signing
from pool.domain.names import check_name
from pool.models import ApiToken, Key, Model
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.routing import rebuild_table

KEY_PREFIX = "sk-sluice-"
TOKEN_PREFIX = "slt_"
TIERS = ("vip", "standard", "batch")


@dataclass(frozen=True)
class KeyWish:
    name: str
    tier: str = "standard"
    allowed_models: tuple[str, ...] | None = None
    may_pin: bool = False
    label: str = ""


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
                name=wish.name,
                digest=digest_key(value),
                prefix=value[: len(KEY_PREFIX) + 4],
                tier=wish.tier,
                allowed_models=None if wish.allowed_models is None else list(wish.allowed_models),
                may_pin=wish.may_pin,
                label=wish.label,
            )
            rebuild_table()
            record(actor, "key.create", subject=f"key/{key.name}", tier=key.tier, models=key.allowed_models)
    except IntegrityError as exc:
        raise Conflict(f"There is a key '{wish.name}' already. Choose another name.", name=wish.name) from exc
    return key, value


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
    return key


def _check(wish: KeyWish) -> None:
    check_name("key", wish.name)
    if wish.tier not in TIERS:
        raise Invalid(f"The tier '{wish.tier}' is unknown. Use one of {', '.join(TIERS)}.", tier=wish.tier)
    if wish.allowed_models is not None:
        known = set(Model.objects.filter(name__in=wish.allowed_models).values_list("name", flat=True))
        missing = sorted(set(wish.allowed_models) - known)
        if missing:
            raise Invalid(f"There is no model {', '.join(missing)}. Register it first.", missing=missing)


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
