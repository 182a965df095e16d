"""Who calls: a token of a user, or the browser's session with CSRF."""

from __future__ import annotations

from django.contrib.auth.models import User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from console.errors import make_failure
from pool.domain.errors import PoolError
from pool.services.keys import find_token_user

LONGEST_TOKEN = 256


class CsrfFailed(PoolError):
    code = "csrf_failed"


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer TOKEN`. A database that is down is no wrong token (FC-57)."""

    def authenticate(self, request: Request) -> tuple[User, str] | None:
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        user = None
        if scheme.lower() == "bearer" and 0 < len(value) <= LONGEST_TOKEN:
            user = find_token_user(value.strip())
        if user is None:
            raise AuthenticationFailed("The token is unknown or revoked, or its user is not active.")
        return user, "token"

    def authenticate_header(self, request: Request) -> str:
        return make_failure("not_authenticated", "").headers()["WWW-Authenticate"]


class BrowserAuthentication(SessionAuthentication):
    """The console's own session; every change needs its CSRF token."""

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except Exception as exc:
            raise CsrfFailed("The request carries no valid CSRF token. Load the page again.") from exc


class _TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


class _SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = BrowserAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "session",
            "description": "With the CSRF token's header.",
        }
