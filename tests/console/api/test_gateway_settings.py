"""Lanes, gateway settings and limits of keys over the API: live, whole or in part, with one audit row each."""

from __future__ import annotations

from dataclasses import fields

import pytest
from rest_framework.test import APIClient

from console.gateway_fields import LANE_WORDS, MODEL_WORDS
from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.models import AuditEntry, Model
from tests import factories

pytestmark = pytest.mark.django_db
LANES = "/api/v1/models/smollm2/lanes/"
GATEWAY = "/api/v1/models/smollm2/gateway/"


@pytest.fixture(autouse=True)
def _model(routing_state: None) -> None:
    factories.make_model()


def test_every_setting_has_words() -> None:
    assert set(LANE_WORDS) == {one.name for one in fields(LaneSettings)}
    assert set(MODEL_WORDS) == {one.name for one in fields(ModelSettings)}


def test_lanes_are_written_whole_with_their_settings(as_operator: APIClient) -> None:
    lanes = [
        {"name": "short", "max_prompt_tokens": 1024, "weight": 4, "tokens_per_min": 90_000},
        {"name": "long", "late_gap_policy": "end"},
    ]

    answer = as_operator.put(LANES, {"lanes": lanes})

    short, long = answer.json()["lanes"]
    assert answer.status_code == 200
    assert (short["weight"], short["tokens_per_min"], short["queue_limit"]) == (4, 90_000, 128)
    assert (long["max_prompt_tokens"], long["late_gap_policy"]) == (None, "end")


def test_one_lane_is_changed_in_part(as_operator: APIClient) -> None:
    answer = as_operator.patch(f"{LANES}short/", {"ttft_target_ms": 200, "adaptive": False})

    body = as_operator.get(f"{LANES}short/").json()
    assert answer.status_code == 200
    assert answer.json() == body
    assert (body["ttft_target_ms"], body["adaptive"], body["concurrency"]) == (200, False, 8)
    assert AuditEntry.objects.get(action="model.lanes").details["changes"] == {
        "short": {"ttft_target_ms": [300, 200], "adaptive": [True, False]}
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_prompt_tokens": 4096}, "edges rise"),
        ({"weight": 0}, "greater than or equal to 1"),
        ({"late_gap_policy": "maybe"}, "is not a valid choice"),
        ({"queue_timeout_s": 1e9}, "less than or equal to"),
    ],
)
def test_a_wrong_lane_is_told(as_operator: APIClient, change: dict[str, object], words: str) -> None:
    answer = as_operator.patch(f"{LANES}short/", change)

    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert not AuditEntry.objects.filter(action="model.lanes").exists()


@pytest.mark.parametrize("path", [f"{LANES}giant/", "/api/v1/models/nobody/gateway/"])
def test_what_is_not_there_is_404(as_operator: APIClient, path: str) -> None:
    assert as_operator.get(path).status_code == 404
    assert as_operator.patch(path, {}).status_code == 404


def test_gateway_settings_are_merged_and_replaced(as_operator: APIClient) -> None:
    merged = as_operator.patch(GATEWAY, {"cache_s": 30, "special_tokens": "refuse"}).json()
    again = as_operator.patch(GATEWAY, {"coalesce": True}).json()
    replaced = as_operator.put(GATEWAY, {"coalesce": True}).json()

    assert (merged["cache_s"], merged["coalesce"]) == (30.0, False)
    assert (again["cache_s"], again["coalesce"], again["special_tokens"]) == (30.0, True, "refuse")
    assert (replaced["cache_s"], replaced["special_tokens"]) == (0.0, "neutralise")
    assert as_operator.get(GATEWAY).json() == replaced


def test_watermarks_that_do_not_rise_name_their_field(as_operator: APIClient) -> None:
    answer = as_operator.patch(GATEWAY, {"watermark_warn_ratio": 0.9})

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["details"]["field"]) == ("invalid_gateway_settings", "watermark_long_ratio")


def test_traffic_control_is_told_as_it_is_known(as_viewer: APIClient) -> None:
    release = factories.make_release(Model.objects.get())
    factories.make_replica(release, node=factories.make_node(), id="ra")

    body = as_viewer.get("/api/v1/models/smollm2/traffic-control/").json()

    assert [lane["lane"] for lane in body["lanes"]] == ["short", "mid", "long"]
    assert body["lanes"][0]["in_flight"] is None
    assert body["replicas"][0]["breaker"]["state"] == ""
    assert as_viewer.get("/api/v1/models/nobody/traffic-control/").status_code == 404


def test_a_keys_limits_are_set_and_lifted(as_admin: APIClient) -> None:
    made = as_admin.post("/api/v1/keys/", {"name": "desk", "requests_per_min": 60, "keepalive_s": 15})
    changed = as_admin.patch("/api/v1/keys/desk/", {"requests_per_min": None, "allowed_models": ["smollm2"]})

    assert (made.status_code, made.json()["requests_per_min"], made.json()["keepalive_s"]) == (201, 60, 15.0)
    body = changed.json()
    assert (body["requests_per_min"], body["keepalive_s"], body["allowed_models"]) == (
        None,
        15.0,
        ["smollm2"],
    )
    assert "key" not in body


def test_a_wrong_limit_of_a_key_is_told(as_admin: APIClient) -> None:
    factories.make_key("desk")

    assert as_admin.patch("/api/v1/keys/desk/", {"tokens_per_min": 0}).status_code == 400
    assert as_admin.patch("/api/v1/keys/desk/", {"allowed_models": ["nobody"]}).status_code == 400
    assert as_admin.patch("/api/v1/keys/nobody/", {}).status_code == 404
