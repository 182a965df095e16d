"""A canary of each kind of secret goes through good and bad paths; nothing that is kept or shown holds it (FC-20)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from rest_framework.test import APIClient

from tests.console.api.conftest import client_of

pytestmark = pytest.mark.django_db

PASSWORD = "canary horse battery"
TABLES = (
    "pool_auditentry",
    "pool_idempotencyrecord",
    "pool_key",
    "pool_apitoken",
    "pool_routingstate",
    "auth_user",
)


def read_everything() -> str:
    found = []
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT row_to_json({table})::text FROM {table}")
            found += [row[0] for row in cursor.fetchall()]
    return "\n".join(found)


def test_no_secret_is_kept_or_repeated(
    admin: User, caplog: pytest.LogCaptureFixture, routing_state: None
) -> None:
    client = client_of(admin)
    answers: list[Any] = []

    def post(path: str, body: dict[str, object], **headers: str) -> Any:
        answers.append(client.post(f"/api/v1/{path}/", body, headers=headers))
        return answers[-1].json()

    key = post("keys", {"name": "app"}, **{"Idempotency-Key": "k1"})["key"]
    token = post("tokens", {"name": "t"}, **{"Idempotency-Key": "k2"})["token"]
    post("users", {"name": "eva", "password": PASSWORD}, **{"Idempotency-Key": "k3"})
    shown_once = answers[:2]
    post("keys", {"name": "app"}, **{"Idempotency-Key": "k1"})
    post("tokens", {"name": "t"}, **{"Idempotency-Key": "k2"})
    post("keys", {"name": key})
    post("models", {"name": token})
    post("models/m/versions", {"source": f"hub:{key}"})
    post("users", {"name": "eva", "password": PASSWORD})
    bad = APIClient()
    bad.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")
    answers += [bad.get("/api/v1/models/"), client.get(f"/api/v1/keys/{key}/"), client.get("/api/v1/audit/")]

    kept = read_everything() + caplog.text
    shown = "\n".join(answer.content.decode() for answer in answers if answer not in shown_once)
    for secret in (key, token, PASSWORD):
        assert secret not in kept
        assert secret not in shown
