"""The page of one replica's step profile, and the wish for another one."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from console.access import Right, page_right
from console.live.screens.replica_profile import build_replica_profile, part_words
from console.pages.shell import actor_of, render_page
from pool.domain.errors import PoolError
from pool.domain.step_profiles import MAX_STEPS, USUAL_STEPS
from pool.services.errors import NotFound
from pool.services.step_profiles import ask_profile


class StepsForm(forms.Form):
    steps = forms.IntegerField(
        min_value=1, max_value=MAX_STEPS, initial=USUAL_STEPS, label=gettext_lazy("Steps")
    )


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, replica_id: str) -> HttpResponse:
    context = {
        "screen": build_replica_profile(replica_id),
        "flame_words": _flame_words(),
        "most_steps": MAX_STEPS,
        "usual_steps": USUAL_STEPS,
        "api": f"/api/v1/replicas/{replica_id}/profiles/",
    }
    return render_page(
        request,
        "replicas/profile.html",
        context,
        nav="replicas",
        live_path=f"/live/replicaprofile/{replica_id}/",
    )


@require_POST
@page_right(Right.OPERATE)
def take(request: HttpRequest, replica_id: str) -> HttpResponse:
    form = StepsForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("A profile takes 1 to %(most)s steps.") % {"most": MAX_STEPS})
        return redirect("replica-profile", replica_id=replica_id)
    try:
        ask_profile(replica_id, steps=form.cleaned_data["steps"], actor=actor_of(request))
    except NotFound:
        raise
    except PoolError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The profile is asked for. Its result comes by itself."))
    return redirect("replica-profile", replica_id=replica_id)


def _flame_words() -> dict[str, object]:
    """Texts of the flame graph; `%s` is filled in."""
    return {
        "loading": _("loading"),
        "failed": _("The flame graph cannot be loaded (%s). Load the page again."),
        "empty": _("The trace held no operation."),
        "whole": _("all steps"),
        "reading": _("%s a step, %t of all operations"),
        "parts": part_words(),
    }
