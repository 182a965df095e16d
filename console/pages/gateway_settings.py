"""A model's gateway settings: grouped, in percent and words, live, with what follows told beforehand."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right
from console.gateway_fields import default_of, words_of
from console.pages.setting_consequences import setting_consequences, shown_value
from console.pages.setting_fields import setting_fields
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.domain.gateway_settings import ModelSettings
from pool.queries.models import find_model
from pool.services.errors import not_found
from pool.services.gateway_settings import set_model_settings

GROUPS: Final = (
    (
        "watermarks",
        gettext_lazy("Watermarks"),
        gettext_lazy("On KV blocks in use of a replica; cached blocks that nobody needs count as free."),
        ("watermark_warn_ratio", "watermark_long_ratio", "watermark_short_ratio", "growth_ratio"),
    ),
    (
        "admission",
        gettext_lazy("Admission"),
        gettext_lazy("How much of a replica one request and one tier may hold."),
        ("kv_share_ratio", "oversize", "kv_reserve_ratio", "vip_reserve_ratio", "burst_ratio"),
    ),
    (
        "limits",
        gettext_lazy("Limits of the model"),
        gettext_lazy("Over all lanes and all gateways. Lanes and keys may have their own."),
        ("requests_per_min", "tokens_per_min"),
    ),
    (
        "choice",
        gettext_lazy("Choice of replica and retries"),
        gettext_lazy("Only before the first byte, and never the same replica twice."),
        ("affinity", "retry_ratio"),
    ),
    (
        "reuse",
        gettext_lazy("Requests that need not run"),
        gettext_lazy("Deterministic requests: temperature 0, not streamed."),
        ("cache_s", "coalesce"),
    ),
    (
        "guards",
        gettext_lazy("What is let in"),
        gettext_lazy("Checked before a token is counted."),
        (
            "truncation",
            "control_characters",
            "special_tokens",
            "white_space",
            "absurd_parameters",
            "max_messages",
        ),
    ),
)


class GatewaySettingsForm(forms.Form):
    """Bound, it holds what was typed; `changes` are the settings that differ from those in force."""

    def __init__(self, current: ModelSettings, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.current = current
        self.fields = setting_fields(ModelSettings)
        for name in self.fields:
            self.initial[name] = getattr(current, name)

    def groups(self) -> list[dict[str, Any]]:
        """Settings that no group names stand in the last one: a new one is never out of reach."""
        grouped = {name for _name, _title, _hint, names in GROUPS for name in names}
        rest = tuple(name for name in self.fields if name not in grouped)
        return [
            {
                "name": group,
                "title": title,
                "hint": hint,
                "rows": [self._row(name) for name in (names + rest if group == "guards" else names)],
            }
            for group, title, hint, names in GROUPS
        ]

    def _row(self, name: str) -> dict[str, Any]:
        usual = default_of(ModelSettings, name)
        differs = getattr(self.current, name) != usual
        return {"field": self[name], "usual": shown_value(name, usual) if differs else ""}

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        marks = [given.get(f"watermark_{mark}_ratio") for mark in ("warn", "long", "short")]
        if None not in marks and not marks[0] < marks[1] < marks[2]:  # type: ignore[operator]
            self.add_error("watermark_long_ratio", _("The three marks must rise."))
        return given

    def changes(self) -> dict[str, Any]:
        """Of a valid form."""
        return {
            name: self.cleaned_data[name]
            for name in self.fields
            if self.cleaned_data[name] != getattr(self.current, name)
        }


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def edit(request: HttpRequest, name: str) -> HttpResponse:
    form = GatewaySettingsForm(_current(name), request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        try:
            set_model_settings(name, form.changes(), actor=actor_of(request))
        except PoolError as error:
            field = str(error.details.get("field") or "")
            refusal = refuse(form, error, fields={"invalid_gateway_settings": field})
        else:
            messages.success(
                request, _("The settings of %(name)s are live within a second.") % {"name": name}
            )
            return redirect("model-gateway", name=name)
    context = {"name": name, "form": form, "refusal": refusal, "consequences": _consequences(form)}
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "gateway/page.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def preview(request: HttpRequest, name: str) -> HttpResponse:
    """A fragment: what the settings as typed would do."""
    form = GatewaySettingsForm(_current(name), request.POST)
    wrong = [words_of(ModelSettings, field).label for field in form.errors if field in form.fields]
    return render(request, "gateway/consequences.html", {"consequences": _consequences(form), "wrong": wrong})


def _current(name: str) -> ModelSettings:
    model = find_model(name)
    if model is None:
        raise not_found("model", name)
    return model.gateway


def _consequences(form: GatewaySettingsForm) -> list[dict[str, str]]:
    if not form.is_bound or not form.is_valid():
        return []
    return setting_consequences(form.current, form.changes())
