from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from pool.domain.signing import derive_playground_key
from pool.domain.starter_profiles import STARTER_PROFILES
from pool.models import ApiToken, AuditEntry, Key, Model, Plan, Profile, Release, RoutingState
from pool.services.audit import Actor
from pool.services.keys import digest_key, digest_token, find_token_user, revoke_key
from tests import factories

pytestmark = pytest.mark.django_db

PASSWORD, TOKEN, KEY = "a first password", "slt_" + "t" * 32, "sk-sluice-" + "k" * 32


@pytest.fixture(autouse=True)
def data_dir(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    monkeypatch.setenv("SLUICE_ADMIN_PASSWORD", PASSWORD)
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
    monkeypatch.setenv("SLUICE_GATEWAY_KEY", KEY)
    return tmp_path / "data"


def bootstrap(*arguments: str) -> str:
    output = StringIO()
    call_command("bootstrap", "--engine", "sim", "--wait-s", "0", *arguments, stdout=output)
    return output.getvalue()


def test_a_first_start_makes_accounts_keys_and_profiles(data_dir: Path, settings: Any) -> None:
    bootstrap()

    admin = User.objects.get(username="admin")
    assert admin.check_password(PASSWORD)
    assert find_token_user(TOKEN) == admin
    assert set(Key.objects.values_list("name", "digest")) == {
        ("first-key", digest_key(KEY)),
        ("console-playground", digest_key(derive_playground_key(settings.SECRET_KEY))),
    }
    assert set(Profile.objects.values_list("name", flat=True)) == set(STARTER_PROFILES)
    assert (data_dir / "installation").read_text().strip() == RoutingState.objects.get().installation


def test_a_second_start_changes_nothing() -> None:
    bootstrap()
    before = (AuditEntry.objects.count(), RoutingState.objects.get().version)

    bootstrap()

    assert (AuditEntry.objects.count(), RoutingState.objects.get().version) == before


def test_the_admins_own_password_is_kept() -> None:
    bootstrap()
    admin = User.objects.get(username="admin")
    admin.set_password("another password")
    admin.save()

    bootstrap()

    assert User.objects.get(username="admin").check_password("another password")


def test_changed_variables_change_token_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap()
    monkeypatch.setenv("SLUICE_API_TOKEN", "slt_" + "u" * 32)
    monkeypatch.setenv("SLUICE_GATEWAY_KEY", "sk-sluice-" + "l" * 32)

    bootstrap()

    assert find_token_user(TOKEN) is None
    assert ApiToken.objects.get().digest == digest_token("slt_" + "u" * 32)
    assert Key.objects.get(name="first-key").digest == digest_key("sk-sluice-" + "l" * 32)


def test_a_revoked_key_stays_revoked() -> None:
    bootstrap()
    revoke_key("first-key", actor=Actor("ada", "api"))

    bootstrap()

    assert Key.objects.get(name="first-key").revoked_at is not None


def test_nothing_secret_is_printed_or_recorded() -> None:
    said = bootstrap() + str(list(AuditEntry.objects.values()))

    assert not [secret for secret in (PASSWORD, TOKEN, KEY) if secret in said]


def make_probed_node() -> None:
    factories.make_runtime(factories.make_node(), name="sim-1", kind="sim", probed_at=timezone.now())


def test_the_demo_has_a_release_all_traffic_and_one_replica() -> None:
    make_probed_node()

    said = bootstrap("--demo")

    lanes = [(lane.name, lane.max_prompt_tokens) for lane in Model.objects.get(name="smollm2").lanes.all()]
    assert lanes == [("short", 512), ("mid", 2048), ("long", None)]
    assert Release.objects.get().scales.get().replicas == 1
    assert Plan.objects.get().weights == {"1": 100}
    assert "registered smollm2 release 1 on sim-1" in said


def test_the_demo_is_found_again_and_an_operators_scale_is_kept() -> None:
    make_probed_node()
    bootstrap("--demo")
    Release.objects.get().scales.update(replicas=0)

    said = bootstrap("--demo")

    assert "found smollm2 release 1" in said
    assert (Release.objects.count(), Plan.objects.count()) == (1, 1)
    assert Release.objects.get().scales.get().replicas == 0


def test_a_demo_without_a_runtime_says_where_to_look() -> None:
    with pytest.raises(CommandError, match=r"No node has a usable sim runtime .* \(no_runtime\)"):
        bootstrap("--demo")


def test_a_start_without_demo_makes_no_model() -> None:
    bootstrap("--no-demo")

    assert not Model.objects.exists()


def test_the_replicas_are_printed_as_json() -> None:
    release = factories.make_release(factories.make_model())
    factories.make_replica(release, node=factories.make_node(), id="r1", pid=42)
    output = StringIO()

    call_command("status_json", stdout=output)

    assert json.loads(output.getvalue()) == [
        {
            "id": "r1",
            "model": "smollm2",
            "release": 1,
            "lane": None,
            "phase": "ready",
            "reason": "",
            "pid": 42,
        }
    ]
