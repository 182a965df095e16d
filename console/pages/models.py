"""Models: the list, one model with all that belongs to it, and a new one."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from console.access import Right, page_right
from console.live.screens.model import build_model, build_models
from console.pages.numbers import read_whole
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.services.catalog import create_model
from pool.services.lanes import LaneWish

DEFAULT_LANES = "short 512 32 300 4\nmid 2048 8 800 2\nlong - 2 2000 1"
LANE_PARTS = (4, 5)


class ModelForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=63,
        help_text=gettext_lazy("What clients ask for. It cannot be changed later."),
    )
    owner = forms.CharField(label=gettext_lazy("Owner"), max_length=128, required=False)
    description = forms.CharField(
        label=gettext_lazy("Description"),
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
    )
    lanes = forms.CharField(
        label=gettext_lazy("Lanes"),
        widget=forms.Textarea(attrs={"rows": 4, "class": "mono", "spellcheck": "false"}),
        initial=DEFAULT_LANES,
        help_text=gettext_lazy(
            "One a line, from short to long: name, prompt tokens below which it takes requests (- for the last), "
            "concurrency, target for the first token in ms, and the weight (else 1). All else is set later, live."
        ),
    )

    def clean_lanes(self) -> list[LaneWish]:
        lines = [line.split() for line in self.cleaned_data["lanes"].splitlines() if line.strip()]
        lanes, problems = [], []
        for number, parts in enumerate(lines, start=1):
            lane = _parse_lane(parts)
            if lane is None:
                problems.append(_("Line %(number)d needs a name and three numbers.") % {"number": number})
            else:
                lanes.append(lane)
        if problems:
            raise forms.ValidationError(problems)
        return lanes


def _parse_lane(parts: list[str]) -> LaneWish | None:
    if len(parts) not in LANE_PARTS:
        return None
    edge, concurrency, target_ms, weight = (read_whole(part) for part in [*parts[1:], "1"][:4])
    if concurrency is None or target_ms is None or weight is None or (edge is None and parts[1] != "-"):
        return None
    return LaneWish(parts[0], edge, concurrency, target_ms, {"weight": weight})


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    return render_page(
        request, "models/list.html", {"screen": build_models()}, nav="models", live_path="/live/models/"
    )


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, name: str) -> HttpResponse:
    return render_page(
        request,
        "models/page.html",
        {"screen": build_model(name), "name": name},
        nav="models",
        live_path=f"/live/model/{name}/",
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def add(request: HttpRequest) -> HttpResponse:
    form = ModelForm(request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        try:
            model = create_model(
                given["name"],
                lanes=given["lanes"],
                owner=given["owner"],
                description=given["description"],
                actor=actor_of(request),
            )
        except PoolError as error:
            places = {
                "invalid_name": "name",
                "conflict": "name",
                "invalid": "lanes",
                "invalid_lanes": "lanes",
            }
            refusal = refuse(form, error, fields=places)
        else:
            messages.success(
                request, _("Model %(name)s is registered. Add a version next.") % {"name": model.name}
            )
            return redirect("model", name=model.name)
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(
        request, "models/new.html", {"form": form, "refusal": refusal}, nav="models", status=status
    )
