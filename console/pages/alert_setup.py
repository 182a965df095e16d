"""Limits of the rules on memory, load and shape, and whom to tell outside the console."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console import alert_words as words
from console.access import Right, page_right
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from console.pages.slo_forms import RuleForm, WebhookForm
from pool.domain.errors import PoolError
from pool.domain.resource_rules import RULES
from pool.queries.alerts import RuleRow, find_rule, list_rules
from pool.services import webhooks
from pool.services.alert_rules import change_rule
from pool.services.errors import not_found
from pool.services.webhooks import WebhookWish


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    return render_page(
        request, "alerts/rules.html", {"rules": [_rule(row) for row in list_rules()]}, nav="alerts"
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def edit_rule(request: HttpRequest, name: str) -> HttpResponse:
    row = find_rule(name)
    if row is None:
        raise not_found("rule", name)
    initial = {f"enter_{word}": limit for word, limit in row.enter.items()}
    initial |= {"enter_hold_s": row.enter_hold_s, "exit_hold_s": row.exit_hold_s, "off": row.off}
    form = RuleForm(RULES[name], request.POST or None, initial=initial)
    refusal = None
    if request.method == "POST" and (request.POST.get("back_to_default") or form.is_valid()):
        wanted = {} if request.POST.get("back_to_default") else form.settings()
        try:
            change_rule(name, wanted, actor=actor_of(request), now=timezone.now())
        except PoolError as error:
            refusal = refuse(form, error)
        else:
            messages.success(request, _("Saved: the rule holds from the next pass on."))
            return redirect("rule-list")
    status = REFUSED_STATUS if request.method == "POST" else 200
    context = {"rule": _rule(row), "form": form, "refusal": refusal}
    return render_page(request, "alerts/rule.html", context, nav="alerts", status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.ADMINISTER)
def add_webhook(request: HttpRequest) -> HttpResponse:
    form = WebhookForm(request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        wish = WebhookWish(**form.cleaned_data)
        try:
            row, secret = webhooks.create_webhook(wish, actor=actor_of(request), now=timezone.now())
        except PoolError as error:
            refusal = refuse(
                form, error, fields={"invalid_name": "name", "conflict": "name", "unsafe_url": "url"}
            )
        else:
            # Rendered, not redirected: the secret must not pass through a session.
            made = {"name": row.name, "value": secret}
            return render_page(request, "alerts/webhook_made.html", made, nav="alerts")
    status = REFUSED_STATUS if request.method == "POST" else 200
    context = {"form": form, "refusal": refusal}
    return render_page(request, "alerts/webhook_new.html", context, nav="alerts", status=status)


@require_POST
@page_right(Right.ADMINISTER)
def try_webhook(request: HttpRequest, name: str) -> HttpResponse:
    webhooks.try_webhook(name, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("A test is on its way; its fate shows in the list."))
    return redirect("alert-list")


@require_POST
@page_right(Right.ADMINISTER)
def switch_webhook(request: HttpRequest, name: str) -> HttpResponse:
    webhooks.switch_webhook(name, enabled=request.POST.get("enabled") == "yes", actor=actor_of(request))
    return redirect("alert-list")


@require_POST
@page_right(Right.ADMINISTER)
def remove_webhook(request: HttpRequest, name: str) -> HttpResponse:
    webhooks.remove_webhook(name, actor=actor_of(request))
    messages.success(request, _("Removed."))
    return redirect("alert-list")


def _rule(row: RuleRow) -> dict[str, object]:
    return {
        "row": row,
        "title": words.rule_title(row.name),
        "advice": words.rule_advice(row.name),
        "limits": [
            {
                "level": words.level_word(word),
                "word": word,
                "tone": words.LEVEL_TONES[word],
                "value": words.format_value(limit, row.unit),
            }
            for word, limit in row.enter.items()
        ],
    }
