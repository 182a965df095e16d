"""Roles and rights: the one check for pages, API and sockets. What states no right is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
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
    names = user.groups.values_list("name", flat=True)
    return frozenset().union(*(GROUP_RIGHTS.get(name, frozenset()) for name in names))


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
