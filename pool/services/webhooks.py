"""Whom to tell of alerts: made, tried out, switched on and off, taken away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from pool.domain.alerting import LEVELS
from pool.domain.names import check_name
from pool.models import Notice, Webhook
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.notices import queue_test, secret_of
from pool.services.webhook_client import read_url

MOST = 50
TELLING = ("plan", "yellow", "orange", "red")


@dataclass(frozen=True)
class WebhookWish:
    name: str
    url: str
    least_level: str = "yellow"


def create_webhook(wish: WebhookWish, *, actor: Actor, now: datetime) -> tuple[Webhook, str]:
    """And the secret that signs its notices. The URL's form is checked here, its address each time it is used: a
    name may stand for another one tomorrow. Raises UnsafeUrl, Invalid, Conflict."""
    check_name("webhook", wish.name)
    target = read_url(wish.url)
    if wish.least_level not in TELLING or wish.least_level not in LEVELS:
        raise Invalid(f"A level is one of {', '.join(TELLING)}.", field="least_level")
    try:
        with transaction.atomic():
            if Webhook.objects.count() >= MOST:
                raise Conflict(f"There are {MOST} webhooks, as many as there may be.")
            row = Webhook.objects.create(
                name=wish.name,
                url=wish.url,
                least_level=wish.least_level,
                created_at=now,
                created_by=actor.name,
            )
            # A URL's path may hold a receiver's secret: the trail names only where it leads.
            record(
                actor,
                "webhook.create",
                subject=f"webhook/{wish.name}",
                host=target.host,
                scheme=target.scheme,
            )
    except IntegrityError as exc:
        raise Conflict(f"There is a webhook '{wish.name}' already.", name=wish.name) from exc
    return row, secret_of(row)


def switch_webhook(name: str, *, enabled: bool, actor: Actor) -> Webhook:
    with transaction.atomic():
        row = _lock(name)
        if row.enabled != enabled:
            row.enabled = enabled
            row.save(update_fields=["enabled"])
            record(actor, "webhook.switch", subject=f"webhook/{name}", enabled=enabled)
    return row


def remove_webhook(name: str, *, actor: Actor) -> None:
    """With what was not sent yet."""
    with transaction.atomic():
        _lock(name).delete()
        record(actor, "webhook.remove", subject=f"webhook/{name}")


def try_webhook(name: str, *, actor: Actor, now: datetime) -> Notice:
    """Queues a notice that only says that it is a test."""
    with transaction.atomic():
        row = _lock(name)
        record(actor, "webhook.test", subject=f"webhook/{name}")
        return queue_test(row, now=now)


def _lock(name: str) -> Webhook:
    row = Webhook.objects.select_for_update().filter(name=name).first()
    if row is None:
        raise not_found("webhook", name)
    return row
