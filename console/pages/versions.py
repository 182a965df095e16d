"""Versions of a model: a new one, retiring one, and hashing its files again."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, can, page_right, require
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.queries.models import find_model
from pool.services.catalog import ask_full_check, retire_version
from pool.services.errors import not_found
from pool.services.registration import register_version

KINDS = (
    ("path", gettext_lazy("Folder under a model root of the nodes")),
    ("package", gettext_lazy("Python package that ships weights")),
    ("hub", gettext_lazy("Name on the model hub")),
)


class VersionForm(forms.Form):
    kind = forms.ChoiceField(label=gettext_lazy("Where the weights are"), choices=KINDS)
    place = forms.CharField(
        label=gettext_lazy("Folder, package or name"),
        max_length=480,
        widget=forms.TextInput(
            attrs={"class": "mono", "spellcheck": "false", "placeholder": "smollm2-135m-instruct"}
        ),
        help_text=gettext_lazy("A folder is relative to the model root and stays below it."),
    )
    revision = forms.CharField(
        label=gettext_lazy("Revision"),
        max_length=128,
        required=False,
        help_text=gettext_lazy("Of a hub name: a commit, so that the version never changes under you."),
    )
    name = forms.CharField(
        label=gettext_lazy("Name of the version"),
        max_length=63,
        required=False,
        help_text=gettext_lazy("Empty: the next number, v1, v2, …"),
    )
    approve_remote_code = forms.BooleanField(
        label=gettext_lazy("Run the Python code that this model brings (auto_map)"),
        required=False,
        help_text=gettext_lazy(
            "It runs inside the engine with its rights. Approve only what somebody has read."
        ),
    )

    def source(self) -> str:
        return f"{self.cleaned_data['kind']}:{self.cleaned_data['place'].strip()}"


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def add(request: HttpRequest, name: str) -> HttpResponse:
    if find_model(name) is None:
        raise not_found("model", name)
    form = VersionForm(request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        if given["approve_remote_code"]:
            require(request.user, Right.ADMINISTER)
        try:
            version = register_version(
                name,
                form.source(),
                revision=given["revision"],
                name=given["name"],
                approve_remote_code=given["approve_remote_code"],
                actor=actor_of(request),
            )
        except PoolError as error:
            refusal = refuse(form, error, fields={"invalid_name": "name", "conflict": "name"})
        else:
            messages.success(
                request,
                _("Version %(version)s is registered. Nodes verify their files now.")
                % {"version": version.name},
            )
            return redirect("model", name=name)
    context = {
        "form": form,
        "refusal": refusal,
        "name": name,
        "may_approve": can(request.user, Right.ADMINISTER),
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "models/version_new.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def retire(request: HttpRequest, name: str, version: str) -> HttpResponse:
    try:
        retire_version(name, version, actor=actor_of(request))
    except PoolError as error:
        messages.error(request, error.message)
    else:
        messages.success(
            request, _("Version %(version)s is retired: no new release may use it.") % {"version": version}
        )
    return redirect("model", name=name)


@require_POST
@page_right(Right.OPERATE)
def verify(request: HttpRequest, name: str, version: str) -> HttpResponse:
    nodes = ask_full_check(name, version, actor=actor_of(request))
    messages.success(
        request,
        _("%(nodes)d nodes hash all files of version %(version)s again.")
        % {"nodes": nodes, "version": version},
    )
    return redirect("model", name=name)
