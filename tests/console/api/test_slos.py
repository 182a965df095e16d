"""SLOs, alerts, restrictions, rules and webhooks by the API: the way round, rights, and refusals."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from pool.models import Alert, Restriction
from tests.factories import make_model, make_token

pytestmark = pytest.mark.django_db
API = "/api/v1"


@pytest.fixture(autouse=True)
def _model(routing_state: None) -> None:
    make_model("smollm2")


def call(user: User, method: str, path: str, body: dict[str, Any] | None = None, *, status: int = 200) -> Any:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {make_token(user, name=f't{uuid.uuid4().hex}')}")
    answer = getattr(client, method)(f"{API}/{path}", body, format="json" if body is not None else None)
    assert answer.status_code == status, answer.content
    return answer.json()


def make_alert(**values: Any) -> Alert:
    now = timezone.now()
    return Alert.objects.create(
        **(
            {"source": "resource", "rule": "kv_in_use", "subject": "r1", "model": "smollm2", "level": "red",
             "peak": "red", "opened_at": now, "level_since": now, "seen_at": now} | values
        )
    )  # fmt: skip


def test_an_slo_from_making_to_its_end(operator: User) -> None:
    made = call(operator, "post", "slos/", {"model": "smollm2", "lane": "short"}, status=201)
    assert made["settings"]["ttft_p99_s"] == 2.0

    changed = call(
        operator, "patch", f"slos/{made['id']}/", {"settings": {"ttft_p99_s": 1.9, "errors_ratio": None}}
    )
    assert (changed["settings"]["ttft_p99_s"], changed["settings"]["errors_ratio"]) == (1.9, None)
    assert call(operator, "post", f"slos/{made['id']}/hold/", {"lasts_s": 60})["held_by"] == "otto"
    assert [row["id"] for row in call(operator, "get", "slos/?model=smollm2")["results"]] == [made["id"]]
    call(operator, "post", "slos/", {"model": "smollm2", "lane": "short"}, status=409)
    call(operator, "delete", f"slos/{made['id']}/")

    call(operator, "get", f"slos/{made['id']}/", status=404)


def test_a_wrong_limit_is_named(operator: User) -> None:
    body = {"model": "smollm2", "settings": {"ttft_p99_s": -1}}

    error = call(operator, "post", "slos/", body, status=400)["error"]

    assert (error["code"], error["details"]["field"]) == ("invalid_slo", "ttft_p99_s")


def test_alerts_are_listed_by_state_and_acknowledged(operator: User) -> None:
    alert, closed = make_alert(), make_alert(subject="r2", closed_at=timezone.now())

    assert [row["id"] for row in call(operator, "get", "alerts/?state=open")["results"]] == [alert.pk]
    assert [row["id"] for row in call(operator, "get", "alerts/?state=closed")["results"]] == [closed.pk]
    call(operator, "get", "alerts/?state=blue", status=400)
    assert call(operator, "post", f"alerts/{alert.pk}/acknowledge/", {})["acknowledged_by"] == "otto"
    call(operator, "post", f"alerts/{alert.pk}/hold/", {"lasts_s": 60})
    view = call(operator, "get", f"alerts/{alert.pk}/")

    assert [event["kind"] for event in view["events"]] == ["held", "acknowledged"]
    call(operator, "post", f"alerts/{closed.pk}/hold/", {"lasts_s": 60}, status=409)


def test_restrictions_are_made_and_taken_back(operator: User) -> None:
    body = {"model": "smollm2", "kind": "admission_ratio", "lane": "short", "value": 0.5, "lasts_s": 600}

    made = call(operator, "post", "restrictions/", body, status=201)
    assert made["value"] == 0.5
    assert len(call(operator, "get", "restrictions/?active=true")["results"]) == 1
    ended = call(operator, "delete", f"restrictions/{made['id']}/")

    assert ended["end_reason"] == "taken_back"
    assert call(operator, "get", "restrictions/?active=true")["results"] == []
    call(operator, "post", "restrictions/", body | {"kind": "scale_out"}, status=400)
    call(operator, "post", "restrictions/", body | {"lane": "nowhere"}, status=404)


def test_rules_are_changed(operator: User) -> None:
    body = {"settings": {"enter": {"yellow": 0.5}, "enter_hold_s": 1}}

    assert call(operator, "put", "rules/kv_in_use/", body)["enter"] == {"yellow": 0.5}
    call(operator, "put", "rules/kv_in_use/", {"settings": {"enter": {"blue": 1}}}, status=400)
    assert call(operator, "put", "rules/kv_in_use/", {"settings": {}})["is_changed"] is False
    call(operator, "get", "rules/nothing/", status=404)


def test_webhooks_are_for_administrators_and_show_their_secret_once(admin: User, operator: User) -> None:
    body = {"name": "pager", "url": "https://pager.example.org/x"}
    call(operator, "post", "webhooks/", body, status=403)

    assert len(call(admin, "post", "webhooks/", body, status=201)["secret"]) == 64
    assert "secret" not in call(admin, "get", "webhooks/pager/")
    assert call(admin, "patch", "webhooks/pager/", {"enabled": False})["enabled"] is False
    error = call(admin, "post", "webhooks/", {"name": "b", "url": "ftp://a/"}, status=400)["error"]
    assert error["code"] == "unsafe_url"
    call(admin, "delete", "webhooks/pager/")

    call(admin, "get", "webhooks/pager/", status=404)


def test_a_viewer_changes_nothing(viewer: User) -> None:
    alert = make_alert()
    for method, path in (
        ("post", "slos/"), ("post", "restrictions/"), ("post", f"alerts/{alert.pk}/acknowledge/"),
        ("put", "rules/kv_in_use/"),
    ):  # fmt: skip
        call(viewer, method, path, {}, status=403)

    assert Restriction.objects.count() == 0
