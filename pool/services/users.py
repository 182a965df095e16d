"""People: groups that carry rights, users in them. Passwords are hashed by Django and never recorded."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from pool.domain.names import check_name
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found

GROUPS = ("viewer", "operator", "admin")
ADMIN_GROUP = "admin"


def ensure_groups() -> None:
    for name in GROUPS:
        Group.objects.get_or_create(name=name)


def create_user(name: str, *, password: str, groups: Sequence[str], actor: Actor) -> User:
    check_name("user", name)
    _check_password(name, password)
    with transaction.atomic():
        ensure_groups()
        user, is_new = User.objects.get_or_create(username=name)
        if not is_new:
            raise Conflict(f"There is a user '{name}' already. Choose another name.", name=name)
        user.set_password(password)
        user.save(update_fields=["password"])
        user.groups.set(_find_groups(groups))
        record(actor, "user.create", subject=f"user/{name}", groups=sorted(groups))
    return user


def change_user(
    name: str, *, groups: Sequence[str] | None = None, is_active: bool | None = None, actor: Actor
) -> User:
    """None leaves as it is. The last active administrator stays one."""
    with transaction.atomic():
        # One lock for all: two administrators who remove each other at once must not both succeed.
        Group.objects.select_for_update().filter(name=ADMIN_GROUP).first()
        user = User.objects.select_for_update().filter(username=name).first()
        if user is None:
            raise not_found("user", name)
        had_admin = _has_admin()
        if groups is not None:
            user.groups.set(_find_groups(groups))
        if is_active is not None:
            user.is_active = is_active
            user.save(update_fields=["is_active"])
        if had_admin and not _has_admin():
            raise Conflict(f"'{name}' is the last active administrator. Make another one first.", name=name)
        record(
            actor,
            "user.change",
            subject=f"user/{name}",
            groups=sorted(user.groups.values_list("name", flat=True)),
            is_active=user.is_active,
        )
    return user


def _has_admin() -> bool:
    return User.objects.filter(is_active=True, groups__name=ADMIN_GROUP).exists()


def _find_groups(names: Sequence[str]) -> list[Group]:
    unknown = sorted(set(names) - set(GROUPS))
    if unknown:
        raise Invalid(f"There is no group {', '.join(unknown)}. Use {', '.join(GROUPS)}.", unknown=unknown)
    return list(Group.objects.filter(name__in=set(names)))


def _check_password(name: str, password: str) -> None:
    try:
        validate_password(password, User(username=name))
    except ValidationError as exc:
        raise Invalid(" ".join(exc.messages), field="password") from exc
