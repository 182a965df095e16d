"""Roles and rights: the one check for pages, API and sockets. What states no right is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from pool.domain.errors import PoolError

if TYPE_CHECKING:
    # REST framework's views import this module, as the settings tell them.
    from rest_framework.views import APIView

P = ParamSpec("P")
Page = Callable[Concatenate[HttpRequest, P], HttpResponseBase]
AnyUser = User | AnonymousUser


class Right(StrEnum):
    VIEW = "view"
    """Sees all that the console shows. No group below it."""
    OPERATE = "operate"
    """Changes models, traffic, replicas and nodes."""
    ADMINISTER = "administer"
    """Keys, tokens, users, and code that a model brings along."""
    CAPTURE = "capture"
    """Sees what requests said, masked, of keys that keep texts. Not what an operator needs."""


GROUP_RIGHTS: Final[Mapping[str, frozenset[Right]]] = {
    "viewer": frozenset({Right.VIEW}),
    "operator": frozenset({Right.VIEW, Right.OPERATE}),
    "admin": frozenset(Right),
}


class NotAllowed(PoolError):
    """Signed in, but without the right."""

    code: ClassVar[str] = "forbidden"


def rights_of(user: AnyUser) -> frozenset[Right]:
    """The union over the user's groups; kept on the user object, which lives as long as its request."""
    known: frozenset[Right] | None = getattr(user, "_sluice_rights", None)
    if known is None:
        known = _load_rights(user)
        user._sluice_rights = known  # type: ignore[union-attr]
    return known


def can(user: AnyUser, right: Right) -> bool:
    return right in rights_of(user)


def require(user: AnyUser, right: Right) -> None:
    if not can(user, right):
        raise NotAllowed(
            f"This needs the right to {right}, which your account does not have. Ask an administrator.",
            right=right.value,
        )


def _load_rights(user: AnyUser) -> frozenset[Right]:
    if not user.is_authenticated or not user.is_active:
        return frozenset()
    if user.is_superuser:
        return frozenset(Right)
    return frozenset().union(*(GROUP_RIGHTS.get(group.name, frozenset()) for group in user.groups.all()))


def page_right(right: Right) -> Callable[[Page[P]], Page[P]]:
    """Wraps a page's view: sign-in first (htmx: by HX-Redirect), then the right, else NotAllowed."""

    def decorate(view: Page[P]) -> Page[P]:
        @wraps(view)
        def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return _ask_to_sign_in(request)
            require(request.user, right)
            return view(request, *args, **kwargs)

        guarded.right = right  # type: ignore[attr-defined]
        return guarded

    return decorate


def _ask_to_sign_in(request: HttpRequest) -> HttpResponse:
    if getattr(request, "htmx", False):
        return HttpResponse(status=401, headers={"HX-Redirect": str(settings.LOGIN_URL)})
    return redirect_to_login(request.get_full_path())


class RoleRequired(BasePermission):
    """Each API view states `rights = {"GET": Right.VIEW, ...}`; a method that states none is refused."""

    message = "This needs a right that your account does not have. Ask an administrator for it."

    def has_permission(self, request: Request, view: APIView) -> bool:
        stated: Mapping[str, Right] = getattr(view, "rights", {})
        if request.method == "OPTIONS":
            return bool(stated) and can(request.user, Right.VIEW)
        right = stated.get("GET" if request.method == "HEAD" else str(request.method))
        return right is not None and can(request.user, right)


def template_rights(request: HttpRequest) -> dict[str, object]:
    """`can_view`, `can_operate`, `can_administer` for templates: they hide what the server refuses anyway."""
    user = getattr(request, "user", AnonymousUser())
    return {f"can_{right.value}": can(user, right) for right in Right}


def socket_may(scope: Mapping[str, Any], right: Right) -> bool:
    """Whether the socket's session still has the right. Blocking: wrap it for async callers.

    Reads session and user afresh: a consumer that asks again notices a sign-out or a lost role (FC-54).
    """
    session_key = getattr(scope.get("session"), "session_key", None)
    if not session_key:
        return False
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return can(get_user(request), right)


def sessions_with(keys: Iterable[str], right: Right) -> set[str]:
    """Which of these sessions have the right: `socket_may` for many at the cost of three queries. Blocking."""
    store = import_module(settings.SESSION_ENGINE).SessionStore
    rows = store.get_model_class().objects.filter(session_key__in=list(keys), expire_date__gt=timezone.now())
    sessions = {row.session_key: row.get_decoded() for row in rows}
    ids = {found for session in sessions.values() if (found := _user_id_of(session)) is not None}
    users = User.objects.filter(is_active=True).prefetch_related("groups").in_bulk(ids)
    return {key for key, session in sessions.items() if _session_may(session, users, right)}


def _session_may(session: Mapping[str, Any], users: Mapping[int, User], right: Right) -> bool:
    user = users.get(_user_id_of(session) or 0)
    if user is None or session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return False
    # A changed password ends the sessions that were opened with the old one.
    signed = str(session.get(HASH_SESSION_KEY) or "")
    hashes = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(signed, one) for one in hashes) and can(user, right)


def _user_id_of(session: Mapping[str, Any]) -> int | None:
    text = str(session.get(SESSION_KEY) or "")
    return int(text) if text.isdecimal() else None
