from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from pool.models import AuditEntry
from pool.services.audit import Actor
from pool.services.errors import Conflict, Invalid, NotFound
from pool.services.users import change_user, create_user

pytestmark = pytest.mark.django_db

ACTOR = Actor("ada", "api")


def test_a_user_can_sign_in_and_the_audit_holds_no_password() -> None:
    create_user("eva", password="correct horse staple", groups=["viewer"], actor=ACTOR)

    assert User.objects.get().check_password("correct horse staple")
    assert AuditEntry.objects.get().details == {"groups": ["viewer"]}


def test_a_taken_name_changes_nothing() -> None:
    create_user("eva", password="correct horse staple", groups=["viewer"], actor=ACTOR)

    with pytest.raises(Conflict):
        create_user("eva", password="another passphrase", groups=["admin"], actor=ACTOR)

    assert User.objects.get().check_password("correct horse staple")


@pytest.mark.parametrize("password", ["short", "password123"])
def test_a_weak_password_is_refused(password: str) -> None:
    with pytest.raises(Invalid):
        create_user("eva", password=password, groups=[], actor=ACTOR)


def test_an_unknown_group_or_user_is_refused() -> None:
    create_user("eva", password="correct horse staple", groups=[], actor=ACTOR)

    with pytest.raises(Invalid, match="root"):
        change_user("eva", groups=["root"], actor=ACTOR)
    with pytest.raises(NotFound):
        change_user("adam", is_active=False, actor=ACTOR)
