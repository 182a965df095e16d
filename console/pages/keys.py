"""Callers' keys: made and shown once, limited, revoked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Right, page_right
from console.pages.setting_fields import PercentField, PlainFloatField
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.queries.keys import find_key, list_keys
from pool.queries.models import list_models
from pool.services.errors import not_found
from pool.services.first_start import PLAYGROUND_KEY_NAME
from pool.services.keys import (
    KEEPALIVE_RANGE_S,
    LARGEST_LIMIT,
    TIERS,
    KeyWish,
    change_key,
    create_key,
    revoke_key,
)


class KeyChangeForm(forms.Form):
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
    requests_per_min = forms.IntegerField(
        label=gettext_lazy("Requests per minute"),
        required=False,
        min_value=1,
        max_value=LARGEST_LIMIT,
        help_text=gettext_lazy("Over all gateways. Empty: no limit."),
    )
    tokens_per_min = forms.IntegerField(
        label=gettext_lazy("Tokens per minute"),
        required=False,
        min_value=1,
        max_value=LARGEST_LIMIT,
        help_text=gettext_lazy("Prompt and answer, over all gateways. Empty: no limit."),
    )
    keepalive_s = PlainFloatField(
        label=gettext_lazy("Keep-alive comments after"),
        required=False,
        min_value=KEEPALIVE_RANGE_S[0],
        max_value=KEEPALIVE_RANGE_S[1],
        help_text=gettext_lazy("Of silence in a stream, for proxies that cut idle connections. Empty: none."),
    )

    capture_ratio = PercentField(
        low=0.0,
        high=1.0,
        label=gettext_lazy("Keep texts of"),
        required=False,
        initial=0.0,
        help_text=gettext_lazy(
            "Share of its requests whose prompt and answer are kept, masked, for a while. At 0 what was kept goes."
        ),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["models"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(row.name, row.name) for row in list_models()]
        self.fields["keepalive_s"].unit = "s"  # type: ignore[attr-defined]
        self.fields["capture_ratio"].unit = "%"  # type: ignore[attr-defined]

    def wishes(self) -> dict[str, Any]:
        """Fields of KeyWish; of a valid form."""
        given = dict(self.cleaned_data)
        models = tuple(given.pop("models"))
        return given | {"allowed_models": models or None, "capture_ratio": given["capture_ratio"] or 0.0}


class KeyForm(KeyChangeForm):
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=63,
        help_text=gettext_lazy("Who uses it. Stands in metrics and in the audit."),
    )


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
        try:
            key, value = create_key(KeyWish(**form.wishes()), actor=actor_of(request))
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


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.ADMINISTER)
def edit(request: HttpRequest, name: str) -> HttpResponse:
    key = find_key(name)
    if key is None:
        raise not_found("key", name)
    initial = asdict(key) | {"models": key.allowed_models or ()}
    form = KeyChangeForm(request.POST or None, initial=initial)
    refusal = None
    if request.method == "POST" and form.is_valid():
        try:
            change_key(name, form.wishes(), actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error)
        else:
            messages.success(
                request, _("Key %(name)s is changed: gateways follow within a second.") % {"name": name}
            )
            return redirect("key-list")
    status = REFUSED_STATUS if request.method == "POST" else 200
    context = {"form": form, "refusal": refusal, "key": key}
    return render_page(request, "keys/edit.html", context, nav="keys", status=status)


@require_POST
@page_right(Right.ADMINISTER)
def revoke(request: HttpRequest, name: str) -> HttpResponse:
    key = revoke_key(name, actor=actor_of(request))
    messages.success(
        request, _("Key %(name)s is revoked: gateways refuse it within a second.") % {"name": key.name}
    )
    return redirect("key-list")
