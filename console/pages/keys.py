"""Callers' keys: made and shown once, limited, revoked."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Right, page_right
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.queries.keys import list_keys
from pool.queries.models import list_models
from pool.services.first_start import PLAYGROUND_KEY_NAME
from pool.services.keys import TIERS, KeyWish, create_key, revoke_key


class KeyForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=63,
        help_text=gettext_lazy("Who uses it. Stands in metrics and in the audit."),
    )
    tier = forms.ChoiceField(
        label=gettext_lazy("Tier"),
        choices=[(tier, tier) for tier in TIERS],
        initial="standard",
        help_text=gettext_lazy("vip is served first; batch is shed first."),
    )
    label = forms.CharField(
        label=gettext_lazy("Business label"),
        max_length=63,
        required=False,
        help_text=gettext_lazy("Chooses pins of a plan and SLO templates."),
    )
    models = forms.MultipleChoiceField(
        label=gettext_lazy("Models"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    may_pin = forms.BooleanField(
        label=gettext_lazy("May pin a release"),
        required=False,
        help_text=gettext_lazy("With x-sluice-release, past the weights of the plan."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["models"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(row.name, row.name) for row in list_models()]


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    rows = list_keys()
    context = {
        "keys": [row for row in rows if row.revoked_at is None],
        "own_key": PLAYGROUND_KEY_NAME,
        "revoked": [row for row in rows if row.revoked_at is not None],
    }
    return render_page(request, "keys/list.html", context, nav="keys")


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.ADMINISTER)
def add(request: HttpRequest) -> HttpResponse:
    form = KeyForm(request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        wish = KeyWish(
            name=given["name"],
            tier=given["tier"],
            allowed_models=tuple(given["models"]) or None,
            may_pin=given["may_pin"],
            label=given["label"],
        )
        try:
            key, value = create_key(wish, actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error, fields={"invalid_name": "name", "conflict": "name"})
        else:
            # Rendered, not redirected: the value is nowhere else and must not pass through a session.
            context = {"kind": "key", "name": key.name, "value": value, "nav_back": "key-list"}
            return render_page(request, "keys/made.html", context, nav="keys")
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(
        request, "keys/new.html", {"form": form, "refusal": refusal}, nav="keys", status=status
    )


@require_POST
@page_right(Right.ADMINISTER)
def revoke(request: HttpRequest, name: str) -> HttpResponse:
    key = revoke_key(name, actor=actor_of(request))
    messages.success(
        request, _("Key %(name)s is revoked: gateways refuse it within a second.") % {"name": key.name}
    )
    return redirect("key-list")
