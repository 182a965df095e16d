"""Callers' keys, API tokens and users, without anything secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User

from pool.models import ApiToken, Key


@dataclass(frozen=True)
class KeyRow:
    name: str
    prefix: str
    """The first characters, to recognise the key by."""
    tier: str
    allowed_models: tuple[str, ...] | None
    """None: all models."""
    may_pin: bool
    label: str
    requests_per_min: int | None
    """Over all gateways; null: no limit."""
    tokens_per_min: int | None
    keepalive_s: float | None
    """A stream without a byte for so long gets a comment; null: never."""
    capture_ratio: float
    """Share of its requests whose masked texts are kept for a while; 0: none."""
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True)
class TokenRow:
    id: str
    name: str
    user: str
    prefix: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True)
class UserRow:
    name: str
    groups: tuple[str, ...]
    is_active: bool
    last_sign_in_at: datetime | None
    created_at: datetime


def list_keys(*, limit: int = 500, offset: int = 0) -> tuple[KeyRow, ...]:
    """By name, revoked ones included. 1 query."""
    return tuple(key_row(row) for row in Key.objects.order_by("name")[offset : offset + limit])


def find_key(name: str) -> KeyRow | None:
    row = Key.objects.filter(name=name).first()
    return None if row is None else key_row(row)


def list_tokens(*, user: str = "", limit: int = 500, offset: int = 0) -> tuple[TokenRow, ...]:
    """Of one user, or of all. 1 query."""
    rows = ApiToken.objects.select_related("user").order_by("user__username", "name")
    if user:
        rows = rows.filter(user__username=user)
    return tuple(token_row(row) for row in rows[offset : offset + limit])


def find_token(token_id: str) -> TokenRow | None:
    row = ApiToken.objects.select_related("user").filter(pk=token_id).first() if token_id.isdigit() else None
    return None if row is None else token_row(row)


def list_users(*, limit: int = 500, offset: int = 0) -> tuple[UserRow, ...]:
    """By name. 2 queries."""
    rows = User.objects.prefetch_related("groups").order_by("username")[offset : offset + limit]
    return tuple(user_row(row) for row in rows)


def find_user(name: str) -> UserRow | None:
    """2 queries."""
    row = User.objects.prefetch_related("groups").filter(username=name).first()
    return None if row is None else user_row(row)


def key_row(row: Key) -> KeyRow:
    return KeyRow(
        name=row.name,
        prefix=row.prefix,
        tier=row.tier,
        allowed_models=None if row.allowed_models is None else tuple(row.allowed_models),
        may_pin=row.may_pin,
        label=row.label,
        requests_per_min=row.requests_per_min,
        tokens_per_min=row.tokens_per_min,
        keepalive_s=row.keepalive_s,
        capture_ratio=row.capture_ratio,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def token_row(row: ApiToken) -> TokenRow:
    return TokenRow(
        id=str(row.pk),
        name=row.name,
        user=row.user.username,
        prefix=row.prefix,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def user_row(row: User) -> UserRow:
    return UserRow(
        name=row.username,
        groups=tuple(sorted(group.name for group in row.groups.all())),
        is_active=row.is_active,
        last_sign_in_at=row.last_login,
        created_at=row.date_joined,
    )
