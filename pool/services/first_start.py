"""What an installation holds from its first start: accounts, keys, profiles. Repeating it changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import transaction

from pool.domain.profiles import settings_to_json
from pool.domain.signing import derive_playground_key
from pool.domain.starter_profiles import STARTER_PROFILES
from pool.models import ApiToken, Key, Profile, RoutingState
from pool.services import keys, registration
from pool.services.audit import Actor, record
from pool.services.keys import KeyWish
from pool.services.routing import create_routing_state, rebuild_table
from pool.services.users import ADMIN_GROUP, ensure_groups

ADMIN = "admin"
TOKEN_NAME = "installation"
KEY_NAME = "first-key"
PLAYGROUND_KEY_NAME = "console-playground"
ACTOR = Actor(name="bootstrap", source="bootstrap")


@dataclass(frozen=True)
class Credentials:
    """None: not given, so nothing is made of it."""

    admin_password: str | None = field(default=None, repr=False)
    api_token: str | None = field(default=None, repr=False)
    gateway_key: str | None = field(default=None, repr=False)


def prepare_installation(credentials: Credentials, *, data_dir: Path) -> RoutingState:
    """Routing state, groups, administrator, token, keys and starter profiles, each made where it is missing."""
    state = create_routing_state()
    write_installation_id(data_dir, state.installation)
    ensure_groups()
    admin = _ensure_admin(credentials.admin_password)
    if credentials.api_token:
        ensure_token(admin, value=credentials.api_token)
    if credentials.gateway_key:
        ensure_key(KEY_NAME, value=credentials.gateway_key)
    ensure_key(PLAYGROUND_KEY_NAME, value=derive_playground_key(settings.SECRET_KEY))
    for name, starter in STARTER_PROFILES.items():
        if not Profile.objects.filter(name=name).exists():
            registration.register_profile(
                name, settings_to_json(starter), comment="Shipped as a start", actor=ACTOR
            )
    return state


def write_installation_id(data_dir: Path, installation: str) -> None:
    """`<data>/installation`, which tells the other processes whose tables to follow."""
    path = data_dir / "installation"
    if path.exists() and path.read_text().strip() == installation:
        return
    data_dir.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(f"{installation}\n")
    os.replace(partial, path)


def ensure_token(user: User, *, value: str) -> None:
    """The installation's token has this value: a variable that was changed changes it too."""
    digest = keys.digest_token(value)
    token = ApiToken.objects.filter(user=user, name=TOKEN_NAME).first()
    if token is None:
        keys.create_token(user, name=TOKEN_NAME, actor=ACTOR, value=value)
    elif token.digest != digest:
        with transaction.atomic():
            token.digest, token.prefix, token.revoked_at = digest, value[:8], None
            token.save(update_fields=["digest", "prefix", "revoked_at"])
            record(ACTOR, "token.replace", subject=f"token/{user.username}/{TOKEN_NAME}")


def ensure_key(name: str, *, value: str) -> None:
    """As `ensure_token`. A key that an operator revoked stays revoked while the variable is the same."""
    digest = keys.digest_key(value)
    key = Key.objects.filter(name=name).first()
    if key is None:
        keys.create_key(KeyWish(name=name), actor=ACTOR, value=value)
    elif key.digest != digest:
        with transaction.atomic():
            key.digest, key.prefix, key.revoked_at = digest, value[:14], None
            key.save(update_fields=["digest", "prefix", "revoked_at"])
            rebuild_table()
            record(ACTOR, "key.replace", subject=f"key/{name}")


def _ensure_admin(password: str | None) -> User:
    """The password counts when the account is made; afterwards it is the administrator's own affair."""
    with transaction.atomic():
        admin, is_new = User.objects.get_or_create(username=ADMIN)
        if is_new:
            admin.set_password(password)
            admin.save(update_fields=["password"])
            admin.groups.add(Group.objects.get(name=ADMIN_GROUP))
            record(ACTOR, "user.create", subject=f"user/{ADMIN}", groups=[ADMIN_GROUP])
    return admin
