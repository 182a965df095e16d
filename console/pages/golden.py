"""Golden prompts of a model: the list with what the newest run said, a new one, recording and removal."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.domain.golden import (
    MAX_EXPECTED_CHARACTERS,
    MAX_PROMPT_CHARACTERS,
    MAX_TOKENS,
    MAX_TOLERANCE,
    OPEN,
    ROLES,
)
from pool.queries.golden import find_recording, has_model, list_prompts, list_runs
from pool.services.errors import NotFound, not_found
from pool.services.golden_prompts import GoldenWish, create_prompt, record_answers, remove_prompt

SHOWN_RUNS = 10
MATCH_CHOICES = [
    ("exact", gettext_lazy("exactly the expected text")),
    ("contains", gettext_lazy("contains the expected text")),
    ("regex", gettext_lazy("matches a pattern")),
    ("logprob", gettext_lazy("as probable as at the stable release")),
]


class GoldenForm(forms.Form):
    name = forms.CharField(label=gettext_lazy("Name"), max_length=63)
    conversation = forms.CharField(
        label=gettext_lazy("Conversation"),
        max_length=MAX_PROMPT_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 6, "class": "mono", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "A line that is only 'system:', 'user:' or 'assistant:' begins a message; without one all of it is the "
            "user's. The last message is the user's."
        ),
    )
    match = forms.ChoiceField(label=gettext_lazy("The answer"), choices=MATCH_CHOICES)
    expected = forms.CharField(
        label=gettext_lazy("Expected text"),
        required=False,
        strip=False,
        max_length=MAX_EXPECTED_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 2, "class": "mono", "spellcheck": "false"}),
        help_text=gettext_lazy("Empty: record it from the stable release afterwards."),
    )
    tolerance = forms.FloatField(
        label=gettext_lazy("Tolerance"),
        required=False,
        min_value=0,
        max_value=MAX_TOLERANCE,
        initial=0.2,
        help_text=gettext_lazy("Nats per token, for the probability only."),
    )
    max_tokens = forms.IntegerField(
        label=gettext_lazy("Longest answer"), min_value=1, max_value=MAX_TOKENS, initial=32
    )
    required = forms.BooleanField(
        label=gettext_lazy("Required: a difference stops the rollout"), required=False, initial=True
    )
    hot = forms.BooleanField(
        label=gettext_lazy("Hot: replayed in warm-ups, so that it is cached"), required=False
    )

    def wish(self) -> GoldenWish:
        given = self.cleaned_data
        return GoldenWish(
            name=given["name"],
            messages=parse_conversation(given["conversation"]),
            max_tokens=given["max_tokens"],
            match=given["match"],
            expected=given["expected"],
            tolerance=(given["tolerance"] or 0.0) if given["match"] == "logprob" else 0.0,
            required=given["required"],
            hot=given["hot"],
        )


def parse_conversation(text: str) -> tuple[tuple[str, str], ...]:
    """Messages in order; what stands before the first role is the user's."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        role = line.strip().lower().removesuffix(":")
        if line.strip().endswith(":") and role in ROLES:
            found.append((role, []))
            continue
        if not found:
            found.append(("user", []))
        found[-1][1].append(line)
    return tuple((role, "\n".join(lines).strip()) for role, lines in found)


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.VIEW)
def show(request: HttpRequest, name: str) -> HttpResponseBase:
    if not has_model(name):
        raise not_found("model", name)
    if request.method == "POST":
        return _add(request, name)
    return _render(request, name, GoldenForm())


@page_right(Right.OPERATE)
def _add(request: HttpRequest, name: str) -> HttpResponse:
    form = GoldenForm(request.POST)
    refusal = None
    if form.is_valid():
        try:
            prompt = create_prompt(name, form.wish(), actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error, fields={"invalid_name": "name", "conflict": "name"})
        else:
            messages.success(request, _("Golden prompt %(name)s is kept.") % {"name": prompt.name})
            return redirect("model-golden", name=name)
    return _render(request, name, form, refusal=refusal, status=REFUSED_STATUS)


def _render(
    request: HttpRequest, name: str, form: GoldenForm, *, refusal: object = None, status: int = 200
) -> HttpResponse:
    recording, runs = find_recording(name), list_runs(name, limit=SHOWN_RUNS)
    context = {
        "name": name,
        "form": form,
        "refusal": refusal,
        "prompts": list_prompts(name),
        "match_words": dict(MATCH_CHOICES),
        "recording": recording,
        "runs": runs,
        "is_under_way": any(run is not None and run.phase in OPEN for run in (recording, *runs[:1])),
    }
    return render_page(request, "golden/page.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def record(request: HttpRequest, name: str) -> HttpResponse:
    """One prompt by its name, or all that have no answer yet."""
    chosen = [request.POST["prompt"]] if request.POST.get("prompt") else []
    try:
        record_answers(name, names=chosen, actor=actor_of(request), now=timezone.now())
    except NotFound:
        raise
    except PoolError as error:
        messages.error(request, error.message)
    else:
        messages.success(
            request, _("A stable replica is asked. Its answers stand here as soon as it gave them.")
        )
    return redirect("model-golden", name=name)


@require_POST
@page_right(Right.OPERATE)
def remove(request: HttpRequest, name: str) -> HttpResponse:
    prompt = request.POST.get("prompt", "")
    remove_prompt(name, prompt, actor=actor_of(request))
    messages.success(request, _("Golden prompt %(name)s is removed.") % {"name": prompt})
    return redirect("model-golden", name=name)
