"""Sign-in with a lock after repeated failures, and sign-out."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import logout
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST


class SignInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": gettext_lazy("This name and password do not match. Both are case-sensitive."),
        "inactive": gettext_lazy("This account is switched off. Ask an administrator."),
    }

    def __init__(self, request: HttpRequest | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.fields["username"].label = _("Name")
        self.fields["username"].widget.attrs |= {"autocomplete": "username", "autocapitalize": "none"}
        self.fields["password"].widget.attrs |= {"autocomplete": "current-password"}


class SignIn(LoginView):
    template_name = "sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("sign-in")
