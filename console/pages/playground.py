"""The playground: a chat through the gateway. The page only; the words travel over its socket."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.pages.shell import render_page
from pool.queries.models import list_models, list_releases
from pool.queries.nodes import list_runtimes


@require_safe
@page_right(Right.OPERATE)
def show(request: HttpRequest) -> HttpResponse:
    models = list_models()
    kinds = {row.name: row.kind for row in list_runtimes()}
    releases = {
        model.name: [
            {
                "number": release.number,
                "version": release.version,
                "ready": sum(count.ready for count in release.counts),
                "simulated": kinds.get(release.runtime) == "sim",
            }
            for release in list_releases(model.name, limit=20)
        ]
        for model in models
    }
    context = {
        "models": models,
        "chosen": request.GET.get("model", ""),
        "releases": releases,
        "texts": _texts(),
    }
    return render_page(request, "playground/page.html", context, nav="playground")


def _texts() -> dict[str, str]:
    return {
        "you": _("You"),
        "waiting": _("waiting for the first token"),
        "stopped": _("stopped"),
        "cut": _("The answer was cut: the connection broke."),
        "signed_out": _("You are signed out. Load the page again."),
        "plan": _("as the plan says"),
        "release": _("release %s"),
        "simulated": _("simulated"),
        "none_ready": _("none ready"),
    }
