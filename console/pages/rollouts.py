"""Rollouts of a model: history, a new one with its steps, and the page of one with all that can be done to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Right, page_right
from console.live.screens.rollout import build_rollout, build_rollouts
from console.pages.numbers import read_whole
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.domain.rollout import Step
from pool.models import Rollout
from pool.queries.models import ModelView, find_model_view
from pool.services import rollouts
from pool.services.audit import Actor
from pool.services.errors import NotFound, not_found
from pool.services.rollouts import DEFAULT_STEPS, RolloutWish

USUAL_STEPS = "\n".join(f"{step.weight} {step.soak_s} {step.min_requests}" for step in DEFAULT_STEPS)
STEP_PARTS = 3

Act = Callable[[str, Actor, datetime], tuple[Rollout, bool]]


class RolloutForm(forms.Form):
    candidate = forms.TypedChoiceField(label=gettext_lazy("Candidate"), coerce=int)
    steps = forms.CharField(
        label=gettext_lazy("Steps"),
        initial=USUAL_STEPS,
        widget=forms.Textarea(attrs={"rows": 5, "class": "mono", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "One a line: percent, seconds to soak, requests that the candidate must have answered in each lane."
        ),
    )
    lane_by_lane = forms.BooleanField(
        label=gettext_lazy("Lane by lane, the shortest prompts first"), required=False
    )
    hold_min = forms.IntegerField(
        label=gettext_lazy("Hold (minutes)"), initial=30, min_value=0, max_value=rollouts.LONGEST_HOLD_S // 60,
        help_text=gettext_lazy("At full weight with the stable release still warm; one click goes back at once."),
    )  # fmt: skip
    comment = forms.CharField(label=gettext_lazy("Comment"), required=False, max_length=4000)

    def __init__(self, view: ModelView, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        weights = view.model.plan.weights if view.model.plan else {}
        self.lanes = tuple(lane.name for lane in view.model.lanes)
        choices = [
            (
                row.number,
                _("release %(number)d, version %(version)s") % {"number": row.number, "version": row.version},
            )
            for row in view.releases
            if not weights.get(str(row.number))
        ]
        field: Any = self.fields["candidate"]
        field.choices = choices

    def clean_steps(self) -> tuple[Step, ...]:
        steps = []
        for number, line in enumerate(self.cleaned_data["steps"].split("\n"), 1):
            parts = line.split()
            if not parts:
                continue
            numbers = [read_whole(part) for part in parts]
            if len(parts) != STEP_PARTS or None in numbers:
                raise forms.ValidationError(
                    _("Line %(number)d: three whole numbers are wanted, such as “5 300 200”.")
                    % {"number": number}
                )
            weight, soak_s, min_requests = (part or 0 for part in numbers)
            steps.append(Step(weight, soak_s, min_requests))
        return tuple(steps)

    def wish(self) -> RolloutWish:
        data = self.cleaned_data
        return RolloutWish(
            candidate=data["candidate"],
            steps=data["steps"],
            hold_s=data["hold_min"] * 60,
            lanes=self.lanes if data["lane_by_lane"] else (),
            comment=data["comment"],
        )


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
    view = find_model_view(name)
    if view is None:
        raise not_found("model", name)
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
    context = {"form": form, "refusal": refusal, "name": name, "plan": view.model.plan}
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "rollouts/new.html", context, nav="models", status=status)


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, rollout_id: str) -> HttpResponse:
    context = {"screen": build_rollout(rollout_id)}
    return render_page(
        request, "rollouts/page.html", context, nav="models", live_path=f"/live/rollout/{rollout_id}/"
    )


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
    """`end_after_tokens` empty: streams of the candidate finish."""
    typed = request.POST.get("end_after_tokens", "")
    tokens = read_whole(typed)
    if typed and tokens is None:
        messages.error(request, _("Tokens are a whole number; leave it empty to let streams finish."))
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
