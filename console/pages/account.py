"""The signed-in user's own account: API tokens that act with the user's rights."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right, rights_of
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.models import ApiToken
from pool.queries.keys import list_tokens
from pool.services.errors import not_found
from pool.services.keys import create_token, revoke_token


class TokenForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name of the token"),
        max_length=63,
        help_text=gettext_lazy("What uses it: a script, a check."),
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.VIEW)
def show_account(request: HttpRequest) -> HttpResponse:
    user = request.user
    assert isinstance(user, User)
    form = TokenForm(request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        try:
            token, value = create_token(user, name=form.cleaned_data["name"], actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error, fields={"invalid_name": "name", "conflict": "name"})
        else:
            made = {"kind": "token", "name": token.name, "value": value, "nav_back": "account"}
            return render_page(request, "keys/made.html", made, nav="account")
    context = {
        "form": form,
        "refusal": refusal,
        "tokens": list_tokens(user=user.username),
        "rights": sorted(right.value for right in rights_of(user)),
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "account.html", context, nav="account", status=status)


@require_POST
@page_right(Right.VIEW)
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """One's own only: others' are not found."""
    user = request.user
    assert isinstance(user, User)
    token = ApiToken.objects.filter(pk=token_id, user=user).select_related("user").first()
    if token is None:
        raise not_found("token", token_id)
    revoke_token(token, actor=actor_of(request))
    messages.success(request, _("Token %(name)s is revoked.") % {"name": token.name})
    return redirect("account")
