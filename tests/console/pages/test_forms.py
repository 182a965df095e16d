"""Forms: what is right is done once, what is wrong is told at its field and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from pool.models import (
    ApiToken,
    AuditEntry,
    Key,
    Model,
    Node,
    Plan,
    Profile,
    Release,
    Replica,
    Scale,
    Version,
)
from tests import factories
from tests.browser.seed import seed_pool

PLAN = "/models/qwen2.5-7b/plan/"
SignIn = Callable[[User], Client]
LANES = "short 512 32 300\nlong - 2 2000"


@pytest.fixture
def client(operator: User, sign_in: SignIn) -> Client:
    return sign_in(operator)


@pytest.fixture
def admin_client(admin: User, sign_in: SignIn) -> Client:
    return sign_in(admin)


@pytest.fixture
def pool(db: None) -> None:
    seed_pool()


def _messages(client: Client, path: str = "/") -> str:
    return client.get(path).content.decode()


@pytest.mark.usefixtures("routing_state")
def test_a_model_is_registered_with_its_lanes(client: Client) -> None:
    answer = client.post("/models/new/", {"name": "smollm2", "owner": "platform", "lanes": LANES})

    assert answer.headers["Location"] == "/models/smollm2/"
    assert [lane.name for lane in Model.objects.get().lanes.all()] == ["short", "long"]
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.source, entry.action) == ("otto", "page", "model.create")


@pytest.mark.usefixtures("routing_state")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "Bad Name", "lanes": LANES}, "cannot be the name of a model"),
        ({"name": "taken", "lanes": LANES}, "There is a model &#x27;taken&#x27; already"),
        ({"name": "fine", "lanes": "short 512"}, "Line 1 needs a name and three numbers"),
        ({"name": "fine", "lanes": "short 512 1 1\nmid 256 1 1\nlong - 1 1"}, "the edges rise"),
        ({"name": "", "lanes": LANES}, "This field is required"),
    ],
)
def test_a_refused_model_keeps_what_was_typed(client: Client, given: dict[str, str], words: str) -> None:
    factories.make_model("taken")

    answer = client.post("/models/new/", {"owner": "the owner as typed", **given})

    page = answer.content.decode()
    assert answer.status_code == 422
    assert words in page
    assert "the owner as typed" in page
    assert Model.objects.count() == 1


@pytest.mark.usefixtures("pool")
def test_a_plan_is_put_in_force(client: Client) -> None:
    answer = client.post(
        "/models/qwen2.5-7b/plan/", {"weight_1": "60", "weight_2": "40", "comment": "next step"}
    )

    plan = Plan.objects.filter(model__name="qwen2.5-7b").latest("number")
    assert answer.status_code == 302
    assert (plan.number, plan.weights, plan.comment, plan.created_by) == (
        4,
        {"1": 60, "2": 40},
        "next step",
        "otto",
    )


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"weight_1": "60", "weight_2": "30"}, "The weights sum to 90 %, not to 100 %."),
        ({"weight_1": "160", "weight_2": "-60"}, "less than or equal to 100"),
        ({"weight_1": "many", "weight_2": "40"}, "Enter a whole number"),
    ],
)
def test_a_wrong_plan_is_told_and_changes_nothing(
    client: Client, weights: dict[str, str], words: str
) -> None:
    answer = client.post("/models/qwen2.5-7b/plan/", {**weights, "comment": "as typed"})

    page = answer.content.decode()
    assert answer.status_code == 422
    assert words in page
    assert f'value="{weights["weight_1"]}"' in page
    assert "as typed" in page
    assert Plan.objects.filter(model__name="qwen2.5-7b").count() == 3


@pytest.mark.usefixtures("pool")
def test_the_preview_names_a_release_that_cannot_carry_its_share(client: Client) -> None:
    page = client.post(
        "/models/qwen2.5-7b/plan/preview/", {"weight_1": "0", "weight_2": "100"}
    ).content.decode()

    assert "Release 2 has no ready replica: its 100 % spill" in page
    assert "Release 1 gets no new request any more (75 % → 0 %)" in page


@pytest.mark.usefixtures("pool")
def test_one_click_goes_back_to_what_the_page_told(client: Client) -> None:
    page = client.get("/models/qwen2.5-7b/").content.decode()
    assert "Puts plan 2 back: release 2: 5 %, release 1: 95 %." in page

    client.post("/models/qwen2.5-7b/rollback/")

    plan = Plan.objects.filter(model__name="qwen2.5-7b").latest("number")
    assert (plan.number, plan.rollback_of, plan.weights) == (4, 2, {"1": 95, "2": 5})


@pytest.mark.usefixtures("pool")
def test_a_second_click_changes_nothing(client: Client) -> None:
    client.post("/models/qwen2.5-7b/rollback/")
    client.post("/models/qwen2.5-7b/rollback/")

    assert Plan.objects.filter(model__name="qwen2.5-7b").count() == 4
    assert "Nothing was changed" in _messages(client, "/models/qwen2.5-7b/")


@pytest.mark.usefixtures("pool")
def test_an_older_plan_is_put_back_by_its_number(client: Client) -> None:
    client.post("/models/qwen2.5-7b/rollback/", {"to_plan": "1"})

    assert Plan.objects.filter(model__name="qwen2.5-7b").latest("number").weights == {"1": 100}


@pytest.mark.usefixtures("pool")
def test_a_release_is_scaled(client: Client) -> None:
    client.post("/models/qwen2.5-7b/releases/1/scale/", {"replicas": "5", "lane": ""})

    assert Scale.objects.get(release__model__name="qwen2.5-7b", release__number=1).replicas == 5


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("replicas", ["-1", "many", "", "9999", "1e3"])
def test_a_wrong_scale_is_told(client: Client, replicas: str) -> None:
    client.post("/models/qwen2.5-7b/releases/1/scale/", {"replicas": replicas, "lane": ""})

    assert Scale.objects.get(release__model__name="qwen2.5-7b", release__number=1).replicas == 2
    assert "0 to 512" in _messages(client)


@pytest.mark.usefixtures("pool")
def test_a_release_needs_a_profile(client: Client) -> None:
    before = Release.objects.count()
    given = {"version": "v1", "runtime": "sim-1", "replicas": "1", "comment": "kept"}

    answer = client.post("/models/smollm2/releases/new/", given)

    assert answer.status_code == 422
    assert "A release needs a profile." in answer.content.decode()
    assert "kept" in answer.content.decode()
    assert Release.objects.count() == before


@pytest.mark.usefixtures("pool")
def test_a_retired_version_that_is_served_is_refused(client: Client) -> None:
    client.post("/models/smollm2/versions/v1/retire/")

    assert Version.objects.get(model__name="smollm2").retired_at is None
    assert "Scale its releases to 0 first" in _messages(client)


@pytest.mark.usefixtures("pool")
def test_only_an_administrator_approves_a_models_code(client: Client) -> None:
    given = {"kind": "path", "place": "x", "approve_remote_code": "on"}

    assert client.post("/models/smollm2/versions/new/", given).status_code == 403


@pytest.mark.usefixtures("pool")
def test_drain_and_restart_store_the_wish(client: Client) -> None:
    client.post("/replicas/rk3m9d2q71/drain/")
    client.post("/replicas/rb5y1h8z3e/restart/")

    assert Replica.objects.get(pk="rk3m9d2q71").wish == "stop"
    assert Replica.objects.get(pk="rb5y1h8z3e").restart_asked


@pytest.mark.usefixtures("pool")
def test_a_replica_on_its_way_out_is_not_restarted(client: Client) -> None:
    Replica.objects.filter(pk="rk3m9d2q71").update(wish="stop")

    client.post("/replicas/rk3m9d2q71/restart/")

    assert "Raise the scale instead" in _messages(client)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(("action", "wish"), [("cordon", "cordon"), ("drain", "drain"), ("return", "serve")])
def test_a_node_is_asked(client: Client, action: str, wish: str) -> None:
    Node.objects.filter(name="desk").update(wish="drain" if action == "return" else "serve")

    client.post(f"/nodes/desk/{action}/")

    assert Node.objects.get(name="desk").wish == wish


@pytest.mark.usefixtures("routing_state")
def test_conflicts_of_a_profile_stand_at_their_fields(client: Client) -> None:
    given = _profile(max_num_seqs="256", max_num_batched_tokens="64", enable_chunked_prefill="")

    page = client.post("/profiles/check/", given).content.decode()

    assert "max_num_batched_tokens" in page
    assert 'data-state="bad"' in page


@pytest.mark.usefixtures("routing_state")
def test_a_value_out_of_range_keeps_the_form(client: Client) -> None:
    answer = client.post("/profiles/new/", _profile(gpu_memory_utilization="1.5", comment="as typed"))

    assert answer.status_code == 422
    assert "less than or equal to 0.98" in answer.content.decode()
    assert "as typed" in answer.content.decode()
    assert Profile.objects.count() == 0


@pytest.mark.usefixtures("routing_state")
def test_a_profile_is_made(client: Client) -> None:
    answer = client.post("/profiles/new/", _profile())

    assert answer.status_code == 302
    assert Profile.objects.get().settings["max_num_seqs"] == 64


def _profile(**given: str) -> dict[str, Any]:
    fields = {
        "name": "mine",
        "max_num_seqs": "64",
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "gpu_memory_utilization": "0.85",
        "enable_chunked_prefill": "on",
        "enable_prefix_caching": "on",
    } | given
    return {name: value for name, value in fields.items() if value}


@pytest.mark.usefixtures("routing_state")
def test_a_key_is_shown_once(admin_client: Client) -> None:
    factories.make_model("smollm2")

    page = admin_client.post(
        "/keys/new/", {"name": "desk", "tier": "vip", "models": ["smollm2"]}
    ).content.decode()

    value = page.split('id="secret">')[1].split("<")[0]
    key = Key.objects.get()
    assert value.startswith("sk-sluice-")
    assert (key.tier, key.allowed_models, key.may_pin) == ("vip", ["smollm2"], False)
    assert value not in admin_client.get("/keys/").content.decode()
    assert value not in admin_client.get("/audit/").content.decode()


@pytest.mark.usefixtures("routing_state")
def test_a_taken_key_name_is_told_at_the_field(admin_client: Client) -> None:
    factories.make_key("desk")

    answer = admin_client.post("/keys/new/", {"name": "desk", "tier": "batch"})

    assert answer.status_code == 422
    assert 'id="id_name_problem"' in answer.content.decode()


@pytest.mark.usefixtures("routing_state")
def test_a_key_is_revoked(admin_client: Client) -> None:
    factories.make_key("desk")

    admin_client.post("/keys/desk/revoke/")

    assert Key.objects.get().revoked_at is not None


@pytest.mark.usefixtures("routing_state")
def test_one_makes_and_revokes_tokens_of_ones_own_only(
    admin_client: Client, operator: User, client: Client
) -> None:
    page = client.post("/account/", {"name": "cron"}).content.decode()
    token = ApiToken.objects.get(user=operator)

    assert 'id="secret">slt_' in page
    assert admin_client.post(f"/account/tokens/{token.pk}/revoke/").status_code == 404
    client.post(f"/account/tokens/{token.pk}/revoke/")

    token.refresh_from_db()
    assert token.revoked_at is not None


@pytest.mark.usefixtures("routing_state")
def test_the_audit_is_filtered_and_paged(client: Client) -> None:
    for number in range(60):
        factories.make_audit(subject=f"model/m{number}", actor="ada" if number % 2 else "otto")

    first = client.get("/audit/").content.decode()
    second = client.get("/audit/?offset=50").content.decode()
    filtered = client.get("/audit/?actor=ada&subject=model/m7").content.decode()

    assert "model/m59" in first
    assert "model/m5<" not in first
    assert "Older" in first
    assert "model/m5<" in second
    assert filtered.count("<tr>") == 2


@pytest.mark.usefixtures("routing_state")
def test_the_audit_tells_changes_from_what_to_what(client: Client) -> None:
    lanes = {"short": {"tokens_per_min": [None, 9000], "adaptive": [True, False]}, "huge": "added"}
    factories.make_audit(details={"lanes": ["short"], "changes": lanes})
    factories.make_audit(details={"changes": {"tier": ["batch", "vip"]}})
    factories.make_audit(details={"changes": 7})

    page = client.get("/audit/").content.decode()

    for words in (
        "short tokens_per_min: not set → 9000",
        "short adaptive: true → false",
        "huge: added",
        "tier: batch → vip",
        "changes: 7",
    ):
        assert words in page


@pytest.mark.parametrize("query", ["offset=-1", "offset=x", "offset=99999999999", "subject=%27%22", "actor="])
def test_a_strange_filter_is_no_error(client: Client, query: str) -> None:
    assert client.get(f"/audit/?{query}").status_code == 200
    assert client.get("/replicas/?phase=nonsense&node=../x&model=%22").status_code == 200


@pytest.mark.usefixtures("pool")
def test_a_shadow_is_set_kept_and_taken_away(client: Client) -> None:
    weights = {"weight_1": "75", "weight_2": "25"}
    plans = Plan.objects.filter(model__name="qwen2.5-7b")

    client.post(PLAN, {**weights, "shadow_release": "2", "shadow_percent": "12.5"})
    assert plans.latest("number").shadow == {"release": 2, "percent": 12.5}
    client.post(PLAN, {"weight_1": "70", "weight_2": "30"})
    assert plans.latest("number").shadow == {"release": 2, "percent": 12.5}
    client.post(PLAN, {**weights, "shadow_release": "", "shadow_percent": "12.5"})
    assert plans.latest("number").shadow is None


@pytest.mark.usefixtures("pool")
def test_a_shadow_without_a_percent_is_told(client: Client) -> None:
    shadow = {"shadow_release": "2", "shadow_percent": ""}

    answer = client.post(PLAN, {"weight_1": "75", "weight_2": "25", **shadow})

    assert answer.status_code == 422
    assert "How many of the requests, in percent?" in answer.content.decode()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"shadow_release": "1", "shadow_percent": "10"}, "a copy of 10 % of the requests that others serve"),
        ({"shadow_release": "2", "shadow_percent": "10"}, "Release 2 has no ready replica: it sees nothing"),
        ({"weight_1": "100", "weight_2": "0", "shadow_release": "1"}, "nothing for it to shadow"),
        ({"shadow_release": "2", "shadow_percent": "many"}, "its 25 % spill"),
    ],
)
def test_the_preview_tells_what_a_shadow_would_see(client: Client, typed: dict[str, str], words: str) -> None:
    fields = {"weight_1": "75", "weight_2": "25", "shadow_percent": "10", **typed}

    page = client.post(f"{PLAN}preview/", fields).content.decode()

    assert words in page


@pytest.mark.usefixtures("pool")
def test_the_shadow_of_the_plan_in_force_is_shown_with_its_unknown_cost(client: Client) -> None:
    client.post(PLAN, {"weight_1": "100", "shadow_release": "2", "shadow_percent": "5"})

    page = client.get(PLAN).content.decode()

    assert '<option value="2" selected>' in page
    assert "Cost so far: unknown, no gateway tells." in page
    assert "shadow: release 2 at 5 %" in client.get("/models/qwen2.5-7b/").content.decode()
