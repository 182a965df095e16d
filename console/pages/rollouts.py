"""Rollouts of a model: history, a new one with its steps, and the page of one with all that can be done to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Right, page_right
from console.live.screens.rollout import build_rollout, build_rollouts
from console.live.screens.rows import Tree
from console.pages.latency import picture_words, stage_words
from console.pages.numbers import read_whole
from console.pages.rollout_form import RolloutForm
from console.pages.rollout_preview import preview_form, read_initial
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.models import Rollout
from pool.queries.models import ModelView, find_model_view
from pool.services import rollouts
from pool.services.audit import Actor
from pool.services.errors import NotFound, not_found

Act = Callable[[str, Actor, datetime], tuple[Rollout, bool]]


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest, name: str) -> HttpResponse:
    context = {"screen": build_rollouts(name), "name": name}
    return render_page(
        request, "rollouts/list.html", context, nav="models", live_path=f"/live/rollouts/{name}/"
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def add(request: HttpRequest, name: str) -> HttpResponse:
    view = _get_view(name)
    form = RolloutForm(view, request.POST or None, initial={"candidate": request.GET.get("candidate")})
    refusal = None
    if request.method == "POST" and form.is_valid():
        try:
            rollout = rollouts.start_rollout(name, form.wish(), actor=actor_of(request), now=timezone.now())
        except PoolError as error:
            refusal = refuse(form, error)
        else:
            messages.success(
                request, _("The rollout has begun. Nothing is sent to the candidate before it is warm.")
            )
            return redirect("rollout", rollout_id=rollout.pk)
    typed = form if form.is_bound else RolloutForm(view, read_initial(form))
    context = {
        "form": form,
        "refusal": refusal,
        "name": name,
        "plan": view.model.plan,
        "preview": preview_form(name, typed),
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "rollouts/new.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def preview(request: HttpRequest, name: str) -> HttpResponse:
    """A fragment: what a start with the form as typed would do."""
    form = RolloutForm(_get_view(name), request.POST)
    return render(request, "rollouts/preview.html", {"preview": preview_form(name, form), "form": form})


def _get_view(name: str) -> ModelView:
    view = find_model_view(name)
    if view is None:
        raise not_found("model", name)
    return view


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, rollout_id: str) -> HttpResponse:
    screen = build_rollout(rollout_id)
    context = {
        "screen": screen,
        "setup": _setup(screen),
        "stages": [{"value": stage, "words": words} for stage, words in stage_words().items()],
    }
    return render_page(
        request, "rollouts/page.html", context, nav="models", live_path=f"/live/rollout/{rollout_id}/"
    )


def _setup(screen: Tree) -> dict[str, Any]:
    """What the page's script needs for its pictures."""
    return {
        "evidence": f"/api/v1/rollouts/{screen['id']}/evidence/",
        "difference": f"/api/v1/models/{screen['model']}/latency/difference/",
        "candidate": screen["candidate"],
        "stable": screen["stable"],
        "since": screen["weighted_at"] or screen["created_at"],
        "until": screen["ended_at"],
        "words": {
            **picture_words(),
            "noEvidence": _("No gate was read yet: nothing is known of the candidate."),
            "noDifference": _("No request of both releases ended in this range."),
        },
    }


@require_POST
@page_right(Right.OPERATE)
def pause(request: HttpRequest, rollout_id: str) -> HttpResponse:
    return _act(request, rollout_id, lambda name, actor, now: rollouts.pause(name, actor=actor, now=now))


@require_POST
@page_right(Right.OPERATE)
def resume(request: HttpRequest, rollout_id: str) -> HttpResponse:
    return _act(request, rollout_id, lambda name, actor, now: rollouts.resume(name, actor=actor, now=now))


@require_POST
@page_right(Right.OPERATE)
def promote(request: HttpRequest, rollout_id: str) -> HttpResponse:
    return _act(request, rollout_id, lambda name, actor, now: rollouts.promote(name, actor=actor, now=now))


@require_POST
@page_right(Right.OPERATE)
def fence(request: HttpRequest, rollout_id: str) -> HttpResponse:
    return _act(request, rollout_id, lambda name, actor, now: rollouts.fence(name, actor=actor, now=now))


@require_POST
@page_right(Right.OPERATE)
def roll_back(request: HttpRequest, rollout_id: str) -> HttpResponse:
    """`streams`: `end` after `end_after_tokens` more tokens; else streams of the candidate finish."""
    typed = request.POST.get("end_after_tokens", "") if request.POST.get("streams") == "end" else ""
    tokens = read_whole(typed)
    if request.POST.get("streams") == "end" and tokens is None:
        messages.error(request, _("Nothing was changed: after how many tokens? A whole number is wanted."))
        return redirect("rollout", rollout_id=rollout_id)
    streams = {} if tokens is None else {"end_after_tokens": tokens}
    return _act(
        request,
        rollout_id,
        lambda name, actor, now: rollouts.roll_back(name, actor=actor, now=now, streams=streams),
    )


def _act(request: HttpRequest, rollout_id: str, action: Act) -> HttpResponse:
    try:
        rollout, changed = action(rollout_id, actor_of(request), timezone.now())
    except NotFound:
        raise
    except PoolError as error:
        messages.error(request, error.message)
    else:
        words = (
            _("Done: the rollout is “%(phase)s” now.")
            if changed
            else _("It was so already. Nothing was changed.")
        )
        messages.success(request, words % {"phase": rollout.phase.replace("_", " ")} if changed else words)
    return redirect("rollout", rollout_id=rollout_id)
