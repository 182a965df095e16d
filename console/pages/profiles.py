"""Engine profiles: the list with what each sets, and a new one whose conflicts are told while it is typed."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Right, page_right
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.domain.profile_rules import find_conflicts, find_warnings
from pool.domain.profiles import SCHEMA, Conflict, ProfileConflicts, Setting, parse_settings
from pool.queries.profiles import ProfileRow, find_profile, list_profiles
from pool.services.registration import register_profile

GROUPS = (
    (
        gettext_lazy("Batch and context"),
        (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "enable_prefix_caching",
        ),
    ),
    (
        gettext_lazy("Memory and arithmetic"),
        (
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "block_size",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "kv_offload_bytes",
        ),
    ),
    (
        gettext_lazy("Devices"),
        ("tensor_parallel_size", "pipeline_parallel_size", "enforce_eager", "cpu_threads"),
    ),
    (gettext_lazy("Warm-up"), ("warm_up_per_lane", "warm_up_budget_s")),
)
"""What is asked first; every other setting of the schema stands in a folded group."""


class ProfileForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=63,
        help_text=gettext_lazy("Profiles never change: a new name for each set of settings."),
    )
    comment = forms.CharField(label=gettext_lazy("Comment"), required=False, max_length=2000)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for setting in SCHEMA:
            self.fields[setting.name] = _field_for(setting)

    def groups(self) -> list[tuple[Any, list[forms.BoundField]]]:
        return [(title, [self[name] for name in names if name in self.fields]) for title, names in GROUPS]

    def other_fields(self) -> list[forms.BoundField]:
        grouped = {name for _title, names in GROUPS for name in names}
        return [self[setting.name] for setting in SCHEMA if setting.name not in grouped]

    def settings(self) -> dict[str, object]:
        """What was given; an empty field leaves the choice to the engine."""
        given = self.cleaned_data
        return {
            setting.name: value
            for setting in SCHEMA
            if (value := _plain(setting, given.get(setting.name))) not in (None, "")
        }


def _field_for(setting: Setting) -> forms.Field:
    options: dict[str, Any] = {
        "label": setting.name,
        "required": False,
        "help_text": _hint(setting),
        "initial": setting.default,
    }
    match setting.kind:
        case "flag":
            return forms.BooleanField(**options)
        case "choice":
            empty = [] if setting.default else [("", _("none"))]
            return forms.ChoiceField(choices=[*empty, *((name, name) for name in setting.choices)], **options)
        case "whole":
            return forms.IntegerField(
                min_value=_whole(setting.low), max_value=_whole(setting.high), **options
            )
        case "ratio":
            return forms.FloatField(
                min_value=setting.low,
                max_value=setting.high,
                widget=forms.NumberInput(attrs={"step": "0.01"}),
                **options,
            )
        case _:
            return forms.CharField(max_length=63, **options)


def _whole(edge: float | None) -> int | None:
    return None if edge is None else int(edge)


def _hint(setting: Setting) -> str:
    return " · ".join(part for part in (setting.effect.rstrip("."), setting.unit) if part)


def _plain(setting: Setting, value: object) -> object:
    return bool(value) if setting.kind == "flag" else value


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    rows = [{"row": row, "changed": _changed_settings(row)} for row in list_profiles()]
    return render_page(request, "profiles/list.html", {"profiles": rows}, nav="profiles")


def _changed_settings(row: ProfileRow) -> list[tuple[str, object]]:
    """Only what differs from the defaults says what a profile is for."""
    defaults = {setting.name: setting.default for setting in SCHEMA}
    return [(name, value) for name, value in sorted(row.settings.items()) if defaults.get(name, ...) != value]


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def add(request: HttpRequest) -> HttpResponse:
    form = ProfileForm(request.POST or None, initial=_initial(request))
    refusal = None
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        try:
            profile = register_profile(
                given["name"], form.settings(), comment=given["comment"], actor=actor_of(request)
            )
        except PoolError as error:
            refusal = refuse(form, error, fields={"invalid_name": "name", "conflict": "name"})
        else:
            messages.success(request, _("Profile %(name)s is registered.") % {"name": profile.name})
            return redirect("profile-list")
    status = REFUSED_STATUS if request.method == "POST" else 200
    context = {"form": form, "refusal": refusal, "copied": request.GET.get("copy", "")}
    return render_page(request, "profiles/new.html", context, nav="profiles", status=status)


def _initial(request: HttpRequest) -> dict[str, object]:
    """`?copy=NAME` starts from an existing profile."""
    found = find_profile(request.GET.get("copy", "")) if request.GET.get("copy") else None
    return {} if found is None else {**found.settings, "comment": found.comment}


@require_POST
@page_right(Right.OPERATE)
def check(request: HttpRequest) -> HttpResponse:
    """A fragment: which rules the settings as typed break. The rules that need a model come with the release."""
    form = ProfileForm(request.POST)
    form.is_valid()
    conflicts: tuple[Conflict, ...] = ()
    warnings: tuple[Conflict, ...] = ()
    try:
        settings = parse_settings(form.settings())
        conflicts, warnings = find_conflicts(settings), find_warnings(settings)
    except ProfileConflicts as error:
        conflicts = error.conflicts
    return render(request, "profiles/conflicts.html", {"conflicts": conflicts, "warnings": warnings})
