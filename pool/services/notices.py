"""Notices of alerts and rollouts to webhooks: an outbox written with the change, sent afterwards, tried again."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from pool.domain.alerting import LEVELS
from pool.domain.outbound import UnsafeUrl
from pool.domain.signing import derive_webhook_secret
from pool.models import Alert, Notice, Rollout, Webhook
from pool.services.webhook_client import Refused, Undelivered, post_signed

WAITS: Final = tuple(timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 1800, 3600))
"""Between one try and the next; after the last the notice is given up."""
MOST_PER_PASS: Final = 4
"""Each may take a quarter of a minute, and the loop keeps its lease by coming back."""
MOST_WAITING: Final = 1000
"""Of one webhook: a receiver that is away for days is not told everything at once afterwards."""

Post = Callable[[str, bytes, str], None]


def queue_notices(alert: Alert, kind: str, *, now: datetime) -> None:
    """Inside the transaction that changes the alert: told if it is committed, and only then."""
    reached = LEVELS[alert.peak]
    for webhook in Webhook.objects.filter(enabled=True):
        if reached < LEVELS[webhook.least_level]:
            continue
        if Notice.objects.filter(webhook=webhook, due_at__isnull=False).count() >= MOST_WAITING:
            continue
        body = describe(alert, kind, now=now)
        Notice.objects.create(webhook=webhook, alert=alert, body=body, created_at=now, due_at=now)


def queue_rollout_notices(rollout: Rollout, *, now: datetime) -> None:
    """Every change of phase, to every webhook, inside the transaction that makes it."""
    body = {
        "event": "rollout.phase",
        "at": now.isoformat(),
        "rollout": rollout.pk,
        "model": rollout.model.name,
        "candidate": rollout.candidate.number,
        "stable": rollout.stable.number,
        "phase": rollout.phase,
        "step": rollout.step,
        "plan": rollout.plan,
        "reason_code": rollout.reason_code,
        "reason": rollout.reason_text,
        "path": f"/rollouts/{rollout.pk}/",
    }
    for webhook in Webhook.objects.filter(enabled=True):
        if Notice.objects.filter(webhook=webhook, due_at__isnull=False).count() < MOST_WAITING:
            Notice.objects.create(webhook=webhook, body=body, created_at=now, due_at=now)


def queue_test(webhook: Webhook, *, now: datetime) -> Notice:
    body = {"event": "test", "at": now.isoformat(), "webhook": webhook.name}
    return Notice.objects.create(webhook=webhook, body=body, created_at=now, due_at=now)


def describe(alert: Alert, kind: str, *, now: datetime) -> dict[str, Any]:
    """What a receiver gets: names and numbers, no prompt, no key."""
    return {
        "event": f"alert.{kind}",
        "at": now.isoformat(),
        "alert": alert.pk,
        "rule": alert.rule,
        "subject": alert.subject,
        "model": alert.model,
        "lane": alert.lane,
        "level": alert.level,
        "peak": alert.peak,
        "opened_at": alert.opened_at.isoformat(),
        "close_reason": alert.close_reason,
        "data_state": alert.data_state,
        "evidence": alert.evidence,
        "path": f"/alerts/{alert.pk}/",
    }


def send_due(now: datetime, *, post: Post = post_signed) -> dict[str, object]:
    """One pass of the sender. A notice may arrive twice after a crash; `alert`, `event` and `at` tell."""
    sent = failed = 0
    for notice in _claim_due(now):
        problem = _try(notice, post)
        _settle(notice, problem, now)
        sent, failed = sent + (not problem), failed + bool(problem)
    return {"sent": sent, "failed": failed} if sent or failed else {}


def _claim_due(now: datetime) -> list[Notice]:
    """Moved ahead before they are sent: a sender that dies sends them again later, not at once."""
    with transaction.atomic():
        due = list(
            Notice.objects.select_for_update(skip_locked=True, of=("self",))
            .select_related("webhook")
            .filter(due_at__lte=now, webhook__enabled=True)
            .order_by("due_at")[:MOST_PER_PASS]
        )
        for notice in due:
            wait = WAITS[min(notice.attempts, len(WAITS) - 1)]
            notice.attempts += 1
            notice.due_at = now + wait
        Notice.objects.bulk_update(due, ["attempts", "due_at"])
    return due


def _try(notice: Notice, post: Post) -> str:
    """Empty: delivered. Else a code."""
    webhook = notice.webhook
    try:
        post(webhook.url, json.dumps(notice.body, sort_keys=True).encode(), secret_of(webhook))
    except UnsafeUrl as error:
        return f"unsafe_url: {error.details.get('reason')}"
    except Refused as error:
        return f"status_{error.status}"
    except Undelivered as error:
        return error.reason
    return ""


def _settle(notice: Notice, problem: str, now: datetime) -> None:
    notice.problem = problem[:64]
    if not problem:
        notice.sent_at, notice.due_at = now, None
    elif notice.attempts >= len(WAITS):
        notice.due_at = None
    notice.save(update_fields=["problem", "sent_at", "due_at"])


def secret_of(webhook: Webhook) -> str:
    return derive_webhook_secret(settings.SECRET_KEY, webhook.name, webhook.created_at.isoformat())
