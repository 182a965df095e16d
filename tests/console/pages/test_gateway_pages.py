"""The lanes editor, the gateway settings, limits of keys and traffic control: saved live, told at their fields."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.pages.lane_forms import digest_lanes, make_lane_forms
from pool.models import AuditEntry, Key, Lane, Model, Scale
from pool.queries.lanes import list_lane_uses
from pool.queries.models import find_model
from tests import factories
from tests.browser.seed import seed_pool

SignIn = Callable[[User], Client]
LANES = "/models/smollm2/lanes/"
GATEWAY = "/models/smollm2/gateway/"


@pytest.fixture(autouse=True)
def _model(routing_state: None) -> None:
    factories.make_model()


@pytest.fixture
def client(operator: User, sign_in: SignIn) -> Client:
    return sign_in(operator)


def typed_lanes(**changes: str) -> dict[str, str]:
    """What a browser sends when nothing was touched but `changes`."""
    model = find_model("smollm2")
    assert model is not None
    forms = make_lane_forms(None, lanes=model.lanes, uses=list_lane_uses("smollm2"))
    fields = {"lane-TOTAL_FORMS": str(len(forms)), "lane-INITIAL_FORMS": str(len(forms))}
    for form in forms:
        for bound in form:
            value = bound.value()
            if value is not None and value is not False:
                fields[bound.html_name] = "on" if value is True else str(value)
    return fields | {"seen": digest_lanes(model.lanes)} | changes


def test_an_edge_and_a_limit_are_changed(client: Client) -> None:
    changes = {"lane-0-max_prompt_tokens": "1024", "lane-0-tokens_per_min": "9000", "lane-0-weight": "4"}

    answer = client.post(LANES, typed_lanes(**changes))

    short = Lane.objects.get(name="short")
    assert answer.headers["Location"] == "/models/smollm2/control/"
    assert (short.max_prompt_tokens, short.settings) == (1024, {"weight": 4, "tokens_per_min": 9000})
    assert AuditEntry.objects.get().details["changes"] == {
        "short": {"max_prompt_tokens": [512, 1024], "weight": [1, 4], "tokens_per_min": [None, 9000]}
    }


def test_lanes_are_sorted_by_their_edge_and_one_may_go(client: Client) -> None:
    changes = {"lane-0-max_prompt_tokens": "4096", "lane-1-DELETE": "on"}

    client.post(LANES, typed_lanes(**changes))

    assert list(Lane.objects.order_by("position").values_list("name", "max_prompt_tokens")) == [
        ("short", 4096),
        ("long", None),
    ]


def test_a_lane_is_added(client: Client) -> None:
    new = {
        name.replace("lane-0", "lane-3"): value for name, value in typed_lanes().items() if "lane-0" in name
    }
    new |= {"lane-3-name": "tiny", "lane-3-max_prompt_tokens": "64", "lane-TOTAL_FORMS": "4"}

    client.post(LANES, typed_lanes(**new))

    assert [lane.name for lane in Lane.objects.order_by("position")] == ["tiny", "short", "mid", "long"]


def test_replicas_of_a_lane_are_wished_with_it(client: Client) -> None:
    factories.make_release(Model.objects.get(), lanes=("short", "long"), replicas=1)

    client.post(LANES, typed_lanes(**{"lane-0-replicas_1": "3"}))

    assert set(Scale.objects.values_list("lane", "replicas")) == {("short", 3), ("long", 1)}
    assert [entry.action for entry in AuditEntry.objects.all()] == ["release.scale"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lane-0-weight": "0"}, "greater than or equal to 1"),
        ({"lane-0-max_prompt_tokens": ""}, "exactly the last lane has no upper edge"),
        ({"lane-0-name": "mid"}, "each lane has a name of its own"),
        ({"lane-0-name": "Bad Name"}, "cannot be the name of a lane"),
        ({"lane-0-DELETE": "on", "lane-1-DELETE": "on", "lane-2-DELETE": "on"}, "at least one lane"),
        ({"seen": "other"}, "Somebody changed the lanes meanwhile"),
        ({"lane-TOTAL_FORMS": "99"}, "at most 32 forms"),
    ],
)
def test_wrong_lanes_are_told_and_change_nothing(client: Client, changes: dict[str, str], words: str) -> None:
    answer = client.post(LANES, typed_lanes(**changes))

    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not AuditEntry.objects.exists()


def test_the_preview_of_lanes_foretells(client: Client) -> None:
    path = f"{LANES}preview/"

    sound = client.post(path, typed_lanes(**{"lane-0-max_prompt_tokens": "1024"})).content.decode()
    wrong = client.post(path, typed_lanes(**{"lane-0-weight": "x"})).content.decode()

    assert "Prompts of 512 to 1,023 tokens move from mid to short." in sound
    assert "Not yet sound" in wrong


def settings_typed(client: Client, **changes: str) -> dict[str, str]:
    form = client.get(GATEWAY).context["form"]
    fields = {}
    for bound in form:
        value = bound.value()
        if value is not None and value is not False:
            fields[bound.html_name] = "on" if value is True else str(value)
    return fields | changes


def test_settings_are_typed_in_percent_and_stored_as_ratios(client: Client) -> None:
    answer = client.post(
        GATEWAY, settings_typed(client, retry_ratio="25", cache_s="60", special_tokens="refuse")
    )

    assert answer.headers["Location"] == GATEWAY
    assert Model.objects.get().gateway == {"retry_ratio": 0.25, "cache_s": 60.0, "special_tokens": "refuse"}
    page = client.get(GATEWAY).content.decode()
    assert "default 10 %" in page
    assert 'value="25"' in page


def test_an_untouched_form_writes_nothing(client: Client) -> None:
    client.post(GATEWAY, settings_typed(client))

    assert Model.objects.get().gateway == {}
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"watermark_warn_ratio": "90"}, "The three marks must rise."),
        ({"retry_ratio": "1001"}, "Between 0 and 1000 %."),
        ({"retry_ratio": "many"}, "Enter a number."),
        ({"requests_per_min": "0"}, "greater than or equal to 1"),
        ({"watermark_warn_ratio": "2"}, "between 0.05 and 1"),
    ],
)
def test_a_wrong_setting_stands_at_its_field(client: Client, changes: dict[str, str], words: str) -> None:
    answer = client.post(GATEWAY, settings_typed(client, **changes))

    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert Model.objects.get().gateway == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache_s": "30"}, "an answer that was made for an earlier, equal request"),
        ({"special_tokens": "off"}, "pose as another role"),
        ({"special_tokens": "refuse"}, "get an error from now on"),
        ({"tokens_per_min": "9000"}, "Tokens per minute: none → 9,000. Callers over it"),
        ({"truncation": "message"}, "x-sluice-truncated"),
        ({"retry_ratio": "0"}, "costs its callers their answers"),
        ({"coalesce": "on"}, "Coalesce: off → on."),
        ({"affinity": ""}, "prefill rises"),
        ({"retry_ratio": "x"}, "Not sound yet: Retry budget"),
    ],
)
def test_the_preview_of_settings_foretells(client: Client, changes: dict[str, str], words: str) -> None:
    page = client.post(f"{GATEWAY}preview/", settings_typed(client, **changes)).content.decode()

    assert words in page


def test_a_keys_limits_are_changed_and_shown(admin: User, sign_in: SignIn) -> None:
    factories.make_key("desk", requests_per_min=60)
    client = sign_in(admin)
    assert 'value="60"' in client.get("/keys/desk/").content.decode()

    given = {
        "tier": "batch",
        "label": "report",
        "tokens_per_min": "90000",
        "keepalive_s": "15",
        "models": ["smollm2"],
    }
    answer = client.post("/keys/desk/", given)

    key = Key.objects.get()
    page = client.get("/keys/").content.decode()
    assert answer.headers["Location"] == "/keys/"
    assert (key.tier, key.requests_per_min, key.tokens_per_min, key.allowed_models) == (
        "batch",
        None,
        90_000,
        ["smollm2"],
    )
    assert "90,000 tokens/min" in page
    assert "keep-alive 15 s" in page


def test_a_wrong_or_late_change_of_a_key_is_told(admin: User, sign_in: SignIn) -> None:
    factories.make_key("desk")
    factories.make_key("gone", revoked_at=factories.T0)
    client = sign_in(admin)

    wrong = client.post("/keys/desk/", {"tier": "vip", "keepalive_s": "0.1"})
    late = client.post("/keys/gone/", {"tier": "vip"})

    assert (wrong.status_code, late.status_code, client.get("/keys/nobody/").status_code) == (422, 422, 404)
    assert "greater than or equal to 1" in wrong.content.decode()
    assert "revoked for good" in late.content.decode()


@pytest.mark.parametrize(
    "path", ["/models/nobody/control/", "/models/nobody/lanes/", "/models/nobody/gateway/"]
)
def test_an_unknown_model_is_not_found(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_decision_matrix_stands_on_both_pages(client: Client) -> None:
    Model.objects.all().delete()
    seed_pool()

    control = client.get("/models/qwen2.5-7b/control/").content.decode()
    lanes = client.get("/models/qwen2.5-7b/lanes/").content.decode()

    for page in (control, lanes):
        assert "512 to 2,047 tokens" in page
        assert "37.8 full contexts" in page
        assert "112 MiB the longest" in page
    assert "release 1: 2 of 2 ready" in lanes
