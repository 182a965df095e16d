"""What each endpoint does to its object, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from pool.models import AuditEntry, Key, Node, Plan, Replica, RoutingState, Scale, Version, VersionPresence
from pool.services.keys import digest_key
from tests import factories

pytestmark = pytest.mark.django_db

V1 = "/api/v1"
XSS = "'\"><img src=x onerror=alert(1)>"
BAD_NAMES = [XSS, "</script>", "=HYPERLINK(1)", "..", "../etc", "UPPER", "a b", "", "a" * 64, "-a", "a\nb"]


def error_of(answer: Any) -> dict[str, Any]:
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "details"}
    return dict(error)


def test_a_model_is_created_with_default_lanes_and_one_audit_row(as_operator: APIClient) -> None:
    answer = as_operator.post(f"{V1}/models/", {"name": "smollm2", "owner": "llm team"})

    assert answer.status_code == 201
    assert [lane["name"] for lane in answer.json()["lanes"]] == ["short", "mid", "long"]
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.source, entry.action, entry.subject) == (
        "otto",
        "api",
        "model.create",
        "model/smollm2",
    )
    assert entry.request_id == answer["X-Request-Id"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_name_is_refused(as_admin: APIClient, name: str) -> None:
    for path, body in (
        ("models", {"name": name}),
        ("profiles", {"name": name, "settings": {}}),
        ("keys", {"name": name}),
        ("users", {"name": name, "password": "a long passphrase"}),
        ("tokens", {"name": name}),
    ):
        answer = as_admin.post(f"{V1}/{path}/", body)

        assert answer.status_code == 400, (path, answer.content)
        assert error_of(answer)["code"] in ("invalid", "invalid_name")


def test_a_taken_name_is_a_conflict(as_operator: APIClient) -> None:
    factories.make_model("smollm2")

    answer = as_operator.post(f"{V1}/models/", {"name": "smollm2"})

    assert answer.status_code == 409
    assert error_of(answer)["code"] == "conflict"


def test_a_model_is_shown_with_versions_releases_and_plans(as_viewer: APIClient) -> None:
    factories.make_pool(1)

    view = as_viewer.get(f"{V1}/models/model-0/").json()

    assert view["versions"][0]["presences"][0]["phase"] == "present"
    assert view["releases"][0]["counts"] == [
        {"lane": None, "wanted": 1, "ready": 1, "coming": 0, "failed": 0, "draining": 0}
    ]
    assert view["plans"][0]["in_force"] is True
    assert view["model"]["plan"]["weights"] == {"1": 100}


@pytest.mark.parametrize(
    "path",
    [
        "models/none",
        "models/none/versions",
        "models/none/versions/v1",
        "models/none/releases",
        "models/none/releases/1",
        "models/none/plan",
        "models/none/plans",
        "profiles/none",
        "replicas/none",
        "nodes/none",
        "keys/none",
        "users/none",
        "nowhere",
        "models/UPPER",
        "models/..%2f..%2fetc",
    ],
)
def test_what_is_not_there_is_404_in_json(as_admin: APIClient, path: str) -> None:
    answer = as_admin.get(f"{V1}/{path}/")

    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"


def test_lanes_are_replaced_as_a_whole(as_operator: APIClient) -> None:
    factories.make_model("m")

    answer = as_operator.put(f"{V1}/models/m/lanes/", {"lanes": [{"name": "all", "concurrency": 4}]})

    assert answer.status_code == 200
    assert [lane["name"] for lane in answer.json()["lanes"]] == ["all"]


def test_lanes_whose_edges_fall_are_refused_and_nothing_changes(as_operator: APIClient) -> None:
    model = factories.make_model("m")
    lanes = [{"name": "a", "max_prompt_tokens": 9}, {"name": "b", "max_prompt_tokens": 5}, {"name": "c"}]

    answer = as_operator.put(f"{V1}/models/m/lanes/", {"lanes": lanes})

    assert answer.status_code == 400
    assert model.lanes.count() == 3


def test_a_served_version_is_not_retired(as_operator: APIClient) -> None:
    model = factories.make_pool(1)

    answer = as_operator.delete(f"{V1}/models/{model.name}/versions/v1/")

    assert answer.status_code == 409


def test_an_idle_version_is_retired(as_operator: APIClient) -> None:
    factories.make_version(factories.make_model("m"))

    answer = as_operator.delete(f"{V1}/models/m/versions/v1/")

    assert answer.status_code == 200
    assert answer.json()["retired_at"] is not None


def test_verifying_asks_every_node_that_holds_the_version(as_operator: APIClient) -> None:
    version = factories.make_version(factories.make_model("m"))
    factories.make_presence(version, factories.make_node())

    answer = as_operator.post(f"{V1}/models/m/versions/v1/verify/")

    assert answer.status_code == 200
    assert VersionPresence.objects.get().full_check_wanted


def test_a_scale_is_stored_as_a_wish(as_operator: APIClient) -> None:
    factories.make_release(factories.make_model("m"))

    answer = as_operator.post(f"{V1}/models/m/releases/1/scale/", {"replicas": 3})

    assert answer.json()["counts"][0]["wanted"] == 3
    assert Scale.objects.get().replicas == 3


@pytest.mark.parametrize("replicas", [-1, 513, "many", None, 1.5, True])
def test_a_scale_that_is_none_is_refused(as_operator: APIClient, replicas: object) -> None:
    factories.make_release(factories.make_model("m"))

    answer = as_operator.post(f"{V1}/models/m/releases/1/scale/", {"replicas": replicas})

    assert answer.status_code == 400
    assert Scale.objects.get().replicas == 1


def test_a_plan_is_put_in_force(as_operator: APIClient) -> None:
    model = factories.make_model("m")
    factories.make_release(model, number=1)
    factories.make_release(model, number=2)

    answer = as_operator.post(f"{V1}/models/m/plans/", {"weights": {"1": 90, "2": 10}, "comment": "try 2"})

    assert answer.status_code == 201
    assert as_operator.get(f"{V1}/models/m/plan/").json()["weights"] == {"1": 90, "2": 10}


@pytest.mark.parametrize(
    "weights",
    [{"1": 90}, {"1": 101}, {"1": -1, "2": 101}, {"9": 100}, {"x": 100}, {"01": 50, "1": 50}, {}, []],
)
def test_weights_that_are_no_plan_are_refused(as_operator: APIClient, weights: object) -> None:
    model = factories.make_model("m")
    factories.make_release(model, number=1)
    factories.make_release(model, number=2)

    answer = as_operator.post(f"{V1}/models/m/plans/", {"weights": weights})

    assert answer.status_code == 400, answer.content
    assert not Plan.objects.exists()


def make_two_plans() -> None:
    model = factories.make_model("m")
    factories.make_release(model, number=1)
    factories.make_release(model, number=2)
    factories.make_plan(model, number=1, weights={"1": 100})
    factories.make_plan(model, number=2, weights={"2": 100})


def test_a_rollback_returns_the_older_weights_and_names_silent_gateways(as_operator: APIClient) -> None:
    make_two_plans()
    factories.make_gateway("gw-silent")

    answer = as_operator.post(f"{V1}/models/m/rollback/")

    assert answer.status_code == 200
    assert answer.json()["plan"]["weights"] == {"1": 100}
    assert answer.json()["gateways"] == [{"id": "gw-silent", "applied_at": None}]


def test_a_rollback_shows_when_a_gateway_applied_it(as_operator: APIClient) -> None:
    make_two_plans()
    epoch = RoutingState.objects.get().epoch
    factories.make_gateway("gw-1", epoch=epoch, version=10**6, applied_at=factories.T0)

    answer = as_operator.post(f"{V1}/models/m/rollback/")

    assert answer.json()["gateways"] == [{"id": "gw-1", "applied_at": "2026-11-02T08:00:00Z"}]


def test_a_second_rollback_changes_nothing(as_operator: APIClient) -> None:
    make_two_plans()
    first = as_operator.post(f"{V1}/models/m/rollback/").json()

    second = as_operator.post(f"{V1}/models/m/rollback/").json()

    assert second["plan"]["number"] == first["plan"]["number"] == 3
    assert Plan.objects.count() == 3


def test_a_rollback_without_a_plan_is_a_conflict(as_operator: APIClient) -> None:
    factories.make_model("m")

    assert as_operator.post(f"{V1}/models/m/rollback/").status_code == 409


def test_a_replica_is_drained_and_another_restarted(as_operator: APIClient) -> None:
    release = factories.make_release(factories.make_model("m"))
    node = factories.make_node()
    leaving, staying = (factories.make_replica(release, node=node, id=name) for name in ("r1", "r2"))

    as_operator.post(f"{V1}/replicas/r1/drain/")
    as_operator.post(f"{V1}/replicas/r2/restart/")

    leaving.refresh_from_db()
    staying.refresh_from_db()
    assert (leaving.wish, staying.restart_asked) == ("stop", True)
    assert as_operator.post(f"{V1}/replicas/r1/restart/").status_code == 409


def test_a_replica_is_shown_with_history_intents_and_log(as_viewer: APIClient) -> None:
    factories.make_pool(1)
    replica = Replica.objects.get()
    Replica.objects.update(log_tail="INFO <b>ready</b>")

    view = as_viewer.get(f"{V1}/replicas/{replica.pk}/").json()

    assert [(step["phase"], step["lasted_s"]) for step in view["history"]] == [
        ("pending", 5.0),
        ("ready", None),
    ]
    assert view["intents"][0]["action"] == "start"
    assert view["log_tail"] == "INFO <b>ready</b>"


@pytest.mark.parametrize(("action", "wish"), [("cordon", "cordon"), ("drain", "drain"), ("return", "serve")])
def test_a_nodes_wish_is_stored(as_operator: APIClient, action: str, wish: str) -> None:
    factories.make_node("n", wish="drain" if action == "return" else "serve")

    answer = as_operator.post(f"{V1}/nodes/n/{action}/")

    assert answer.json()["wish"] == wish
    assert Node.objects.get().wish == wish


def test_a_key_is_shown_once_and_never_again(as_admin: APIClient) -> None:
    made = as_admin.post(f"{V1}/keys/", {"name": "app", "tier": "vip", "label": "mobile"}).json()

    assert digest_key(made["key"]) == Key.objects.get().digest
    assert made["key"] not in as_admin.get(f"{V1}/keys/app/").content.decode()
    assert made["key"] not in str(list(AuditEntry.objects.values_list("details", flat=True)))


def test_a_key_is_revoked_by_either_way_and_keeps_its_first_time(as_admin: APIClient) -> None:
    factories.make_key("app")

    first = as_admin.delete(f"{V1}/keys/app/").json()["revoked_at"]
    second = as_admin.post(f"{V1}/keys/app/revoke/").json()["revoked_at"]

    assert first is not None
    assert first == second


def test_everybody_sees_only_their_own_tokens(as_viewer: APIClient, as_operator: APIClient) -> None:
    made = as_operator.post(f"{V1}/tokens/", {"name": "mine"}).json()

    seen = as_viewer.get(f"{V1}/tokens/").json()["results"]

    assert {token["user"] for token in seen} == {"vera"}
    assert as_viewer.delete(f"{V1}/tokens/{made['id']}/").status_code == 404
    assert as_operator.delete(f"{V1}/tokens/{made['id']}/").json()["revoked_at"] is not None


def test_a_new_token_works_and_a_revoked_one_does_not(as_viewer: APIClient, client: Any) -> None:
    made = as_viewer.post(f"{V1}/tokens/", {"name": "mine"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}

    assert client.get(f"{V1}/models/", headers=headers).status_code == 200
    as_viewer.delete(f"{V1}/tokens/{made['id']}/")
    assert client.get(f"{V1}/models/", headers=headers).status_code == 401


def test_a_user_is_made_changed_and_deactivated(as_admin: APIClient) -> None:
    made = as_admin.post(
        f"{V1}/users/", {"name": "eva", "password": "correct horse staple", "groups": ["viewer"]}
    )

    changed = as_admin.patch(f"{V1}/users/eva/", {"groups": ["operator"], "is_active": False}).json()

    assert made.status_code == 201
    assert "password" not in made.json()
    assert (changed["groups"], changed["is_active"]) == (["operator"], False)


def test_the_last_administrator_stays(as_admin: APIClient) -> None:
    assert as_admin.patch(f"{V1}/users/ada/", {"groups": ["viewer"]}).status_code == 409
    assert as_admin.patch(f"{V1}/users/ada/", {"is_active": False}).status_code == 409


def test_a_weak_password_is_refused_and_not_repeated_in_the_answer(as_admin: APIClient) -> None:
    answer = as_admin.post(f"{V1}/users/", {"name": "eva", "password": "password123"})

    assert answer.status_code == 400
    assert "password123" not in answer.content.decode()


REFUSED_SOURCES = [
    "path:../../etc",
    "path:/etc",
    "hub:a/../b",
    "--model=x",
    "file:///etc/passwd",
    "path:a\x1bb",
    "package:../x",
]


@pytest.mark.parametrize("key", [None, "key-1"])
@pytest.mark.parametrize("source", REFUSED_SOURCES)
def test_a_source_that_leads_elsewhere_is_refused_and_recorded(
    as_operator: APIClient, source: str, key: str | None, tmp_path: Path
) -> None:
    factories.make_model("m")
    headers = {"Idempotency-Key": key} if key else {}

    answer = as_operator.post(f"{V1}/models/m/versions/", {"source": source}, headers=headers)

    assert answer.status_code == 400, answer.content  # FC-51
    assert source not in error_of(answer)["message"]
    assert AuditEntry.objects.get().action == "refused"
    assert not Version.objects.exists()


def write_config(folder: Path, **more: object) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "vocab_size": 128,
        "intermediate_size": 128,
        "torch_dtype": "float32",
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | more))


def test_a_models_own_code_needs_an_approval(as_operator: APIClient, tmp_path: Path, settings: Any) -> None:
    settings.MODEL_ROOTS = [str(tmp_path)]
    factories.make_model("m")
    write_config(tmp_path / "tiny", auto_map={"AutoModel": "modeling.Own"})
    write_safetensors(tmp_path / "tiny" / "model.safetensors")

    answer = as_operator.post(f"{V1}/models/m/versions/", {"source": "path:tiny"})

    assert answer.status_code == 422, answer.content  # FC-52
    assert error_of(answer)["code"] == "remote_code"
    assert AuditEntry.objects.get().details == {"code": "remote_code"}


def test_fc52_code_from_a_hub_is_approved_of_one_commit_only(as_admin: APIClient) -> None:
    factories.make_model("m")
    wish = {"source": "hub:org/name", "approve_remote_code": True}

    moving = [as_admin.post(f"{V1}/models/m/versions/", wish | {"revision": name}) for name in ("", "main")]
    pinned = as_admin.post(f"{V1}/models/m/versions/", wish | {"revision": "a1" * 20})

    assert [error_of(answer)["code"] for answer in moving] == ["remote_code"] * 2
    assert pinned.status_code == 201, pinned.content


def write_safetensors(path: Path, *, cut_bytes: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    path.write_bytes(content[: len(content) - cut_bytes])


def test_a_version_of_a_folder_has_facts_from_its_config(
    as_operator: APIClient, tmp_path: Path, settings: Any
) -> None:
    settings.MODEL_ROOTS = [str(tmp_path)]
    factories.make_model("m")
    write_config(tmp_path / "tiny")
    write_safetensors(tmp_path / "tiny" / "model.safetensors")

    answer = as_operator.post(f"{V1}/models/m/versions/", {"source": "path:tiny", "name": "first"})

    assert answer.status_code == 201, answer.content
    assert answer.json()["name"] == "first"
    assert answer.json()["facts"] is not None


def test_a_truncated_shard_is_named(as_operator: APIClient, tmp_path: Path, settings: Any) -> None:
    settings.MODEL_ROOTS = [str(tmp_path)]
    factories.make_model("m")
    write_config(tmp_path / "tiny")
    write_safetensors(tmp_path / "tiny" / "model.safetensors", cut_bytes=8)

    answer = as_operator.post(f"{V1}/models/m/versions/", {"source": "path:tiny"})

    assert answer.status_code == 422, answer.content  # FC-76
    assert "model.safetensors" in str(error_of(answer))


def test_a_profile_with_broken_rules_names_each(as_operator: APIClient) -> None:
    answer = as_operator.post(
        f"{V1}/profiles/", {"name": "p", "settings": {"gpu_memory_utilization": 5, "no_such_setting": 1}}
    )

    assert answer.status_code == 422
    assert error_of(answer)["code"] == "profile_conflicts"
    assert len(error_of(answer)["details"]["conflicts"]) == 2


def test_a_profile_is_made_and_found(as_operator: APIClient) -> None:
    made = as_operator.post(f"{V1}/profiles/", {"name": "p", "settings": {"max_num_seqs": 8}})

    assert made.status_code == 201, made.content
    assert as_operator.get(f"{V1}/profiles/p/").json()["settings"]["max_num_seqs"] == 8


def test_a_release_is_numbered_and_needs_one_kind_of_profile(as_operator: APIClient) -> None:
    factories.make_runtime(factories.make_node())
    factories.make_version(factories.make_model("m"))
    factories.make_profile()
    wish = {"version": "v1", "runtime": "sim-1", "replicas": 2}

    made = as_operator.post(f"{V1}/models/m/releases/", wish | {"profile": "balanced"})
    neither = as_operator.post(f"{V1}/models/m/releases/", wish)
    both = as_operator.post(
        f"{V1}/models/m/releases/", wish | {"profile": "balanced", "profiles": {"short": "balanced"}}
    )

    assert made.status_code == 201, made.content
    assert (made.json()["number"], made.json()["counts"][0]["wanted"]) == (1, 2)
    assert (neither.status_code, both.status_code) == (400, 400)
