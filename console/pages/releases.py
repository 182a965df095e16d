"""Releases of a model: a new one, and how many replicas it should have."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.queries.models import ModelView, find_model_view
from pool.queries.nodes import list_runtimes
from pool.queries.profiles import list_profiles
from pool.services.catalog import ReleaseWish, set_scale
from pool.services.errors import Invalid, not_found
from pool.services.registration import register_release

MOST_REPLICAS = 512


class ReleaseForm(forms.Form):
    """One profile for all lanes, or one for each: `profile` is for those lanes that name none of their own."""

    version = forms.ChoiceField(label=gettext_lazy("Version"))
    runtime = forms.ChoiceField(label=gettext_lazy("Runtime"))
    profile = forms.ChoiceField(label=gettext_lazy("Profile for all lanes"), required=False)
    replicas = forms.IntegerField(
        label=gettext_lazy("Replicas"),
        min_value=0,
        max_value=MOST_REPLICAS,
        initial=1,
        help_text=gettext_lazy(
            "Per lane where lanes have profiles of their own. They start at once, without traffic."
        ),
    )
    comment = forms.CharField(
        label=gettext_lazy("Comment"),
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    def __init__(self, view: ModelView, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        profiles = [(row.name, row.name) for row in list_profiles()]
        self.lanes = [lane.name for lane in view.model.lanes]
        self._choices("version", [(row.name, row.name) for row in view.versions if row.retired_at is None])
        self._choices("runtime", _runtime_choices())
        self._choices("profile", [("", _("one per lane, below")), *profiles])
        for lane in self.lanes:
            self.fields[f"lane_{lane}"] = forms.ChoiceField(
                label=_("Profile of lane %(lane)s") % {"lane": lane},
                choices=[("", _("as for all lanes")), *profiles],
                required=False,
            )

    def _choices(self, name: str, choices: list[tuple[str, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def lane_fields(self) -> list[forms.BoundField]:
        return [self[f"lane_{lane}"] for lane in self.lanes]

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        own = {lane: given.get(f"lane_{lane}", "") for lane in self.lanes}
        shared = given.get("profile", "")
        if not any(own.values()):
            profiles = {"": shared} if shared else {}
        else:
            profiles = {lane: name or shared for lane, name in own.items() if name or shared}
        if not profiles:
            self.add_error("profile", _("A release needs a profile."))
        given["profiles"] = profiles
        return given


def _runtime_choices() -> list[tuple[str, str]]:
    """Simulated ones say so: nobody should take their figures for real."""
    kinds = {row.name: row.kind for row in list_runtimes() if row.usable}
    return [
        (name, _("%(name)s (simulated)") % {"name": name} if kind == "sim" else name)
        for name, kind in sorted(kinds.items())
    ]


def _get_view(name: str) -> ModelView:
    view = find_model_view(name)
    if view is None:
        raise not_found("model", name)
    return view


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def add(request: HttpRequest, name: str) -> HttpResponse:
    view = _get_view(name)
    form = ReleaseForm(view, request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        wish = ReleaseWish(
            version=given["version"],
            runtime=given["runtime"],
            profiles=given["profiles"],
            replicas=given["replicas"],
            comment=given["comment"],
        )
        try:
            release = register_release(name, wish, actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error)
        else:
            words = _("Release %(number)d is registered. It gets traffic once a plan gives it weight.")
            messages.success(request, words % {"number": release.number})
            return redirect("model", name=name)
    context = {
        "form": form,
        "refusal": refusal,
        "name": name,
        "no_versions": not form.fields["version"].choices,  # type: ignore[attr-defined]
        "no_runtimes": not form.fields["runtime"].choices,  # type: ignore[attr-defined]
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "models/release_new.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def scale(request: HttpRequest, name: str, number: int) -> HttpResponse:
    lane = request.POST.get("lane", "")
    try:
        replicas = _parse_replicas(request.POST.get("replicas", ""))
        accept = "accept_overload" in request.POST
        set_scale(name, number, replicas=replicas, lane=lane, actor=actor_of(request), accept_overload=accept)
    except PoolError as error:
        messages.error(request, error.message)
    else:
        words = _("Release %(number)d is wished to have %(replicas)d replicas.")
        messages.success(request, words % {"number": number, "replicas": replicas})
    return redirect("model", name=name)


def _parse_replicas(text: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise Invalid(
            _("The number of replicas must be a whole number from 0 to %(most)d.") % {"most": MOST_REPLICAS}
        )
    return int(text)
