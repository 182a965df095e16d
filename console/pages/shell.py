"""What every page shares: rendering inside the navigation, who acts, and refusals shown at their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from pool.domain.errors import PoolError
from pool.services.audit import Actor

REFUSED_STATUS = 422


@dataclass(frozen=True)
class NavigationItem:
    name: str
    label: str
    href: str
    icon: str


def navigation() -> list[NavigationItem]:
    labels = {
        "overview": _("Overview"),
        "models": _("Models"),
        "replicas": _("Replicas"),
        "memory": _("Memory"),
        "requests": _("Requests"),
        "nodes": _("Nodes"),
        "alerts": _("Alerts"),
        "slos": _("SLOs"),
        "profiles": _("Profiles"),
        "keys": _("Keys"),
        "playground": _("Playground"),
        "audit": _("Audit"),
    }
    return [
        NavigationItem(name, label, reverse(_ROUTES.get(name, name)), name) for name, label in labels.items()
    ]


_ROUTES = {
    "models": "model-list",
    "replicas": "replica-list",
    "requests": "request-search",
    "nodes": "node-list",
    "alerts": "alert-list",
    "slos": "slo-list",
    "profiles": "profile-list",
    "keys": "key-list",
}


def words() -> dict[str, str]:
    """Texts that JavaScript shows; `%s` is an age."""
    return {
        "connecting": _("connecting"),
        "live": _("live"),
        "stale": _("database silent, state of %s ago"),
        "lost": _("live feed lost, last update %s ago"),
        "unreachable": _("live feed unreachable"),
        "refused": _("signed out"),
        "copied": _("Copied"),
        "select": _("Press Ctrl-C"),
    }


def render_page(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    nav: str,
    live_path: str = "",
    status: int = 200,
) -> HttpResponse:
    shared = {"nav": nav, "navigation": navigation(), "words": words(), "live_path": live_path}
    return render(request, template, {**shared, **context}, status=status)


def actor_of(request: HttpRequest) -> Actor:
    return Actor(
        name=request.user.get_username(), source="page", request_id=str(getattr(request, "request_id", ""))
    )


@dataclass(frozen=True)
class Refusal:
    """Why a form was not carried out, as far as no field shows it."""

    title: str
    code: str
    message: str
    problems: tuple[str, ...] = ()


def refuse(form: BaseForm, error: PoolError, *, fields: dict[str, str] | None = None) -> Refusal:
    """Puts what a service refused at the fields that it names; `fields` maps codes to fields."""
    rest = [text for name, text in _named_problems(error) if not _add_to_field(form, name, text)]
    field = (fields or {}).get(error.code)
    if field and not rest and not form.errors:
        _add_to_field(form, field, error.message)
    return Refusal(
        title=_("Nothing was changed"),
        code=error.code,
        message=_("Correct the marked fields.") if form.errors and not rest else error.message,
        problems=tuple(rest),
    )


def _named_problems(error: PoolError) -> list[tuple[str, str]]:
    """(field or empty, text) of every broken rule that the error carries, whatever its shape."""
    found: list[tuple[str, str]] = []
    for entry in [*_listed(error.details.get("conflicts")), *_listed(error.details.get("problems"))]:
        if isinstance(entry, dict):
            names = entry.get("fields") or [entry.get("field") or ""]
            found.append((str(next(iter(names), "")), str(entry.get("message") or entry.get("code"))))
        else:
            found.append(("", str(entry)))
    return found


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _add_to_field(form: BaseForm, name: str, text: str) -> bool:
    if name not in form.fields:
        return False
    form.add_error(name, text)
    return True
