"""The Celery application: wiring only. A lost or doubled message changes nothing (`docs/architecture.md`)."""

from __future__ import annotations

import os

from celery import Celery
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")


def broker_url(redis_url: str) -> str:
    """Celery spells a Unix socket differently: `redis+socket:///path?virtual_host=0`."""
    if not redis_url.startswith("unix://"):
        return redis_url
    path, _, query = redis_url.removeprefix("unix://").partition("?")
    number = dict(pair.split("=", 1) for pair in query.split("&") if "=" in pair).get("db", "0")
    return f"redis+socket://{path}?virtual_host={number}"


def make_app() -> Celery:
    celery = Celery("sluice")
    celery.conf.update(
        broker_url=broker_url(settings.REDIS_URL),
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=1.0,
        broker_transport_options={
            "visibility_timeout": 3600,
            "socket_connect_timeout": 1.0,
            "socket_timeout": 5.0,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "max_retries": 1,
            "retry_on_timeout": False,
        },
        task_publish_retry=False,
        task_create_missing_queues=True,
        task_default_queue="control",
        task_serializer="json",
        accept_content=["json"],
        timezone="UTC",
        enable_utc=True,
        imports=["workers.tasks"],
    )
    return celery


app = make_app()
