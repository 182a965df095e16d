from pathlib import Path

import pytest
from django.utils import timezone

from pool.domain.version_facts import facts_from_json
from pool.models import Node, TokenizerUse, Version, VersionPresence
from pool.services.catalog import VersionWish, ask_full_check, create_version
from pool.services.versions import ensure_presences
from tests.fakes.tiny_model import Shape, make_tiny_model, truncate_weights
from tests.pool.services.world import ACTOR, make_world
from workers.presence import PresenceKeeper

pytestmark = pytest.mark.django_db


@pytest.fixture
def keeper(tmp_path: Path) -> PresenceKeeper:
    world = make_world()
    make_tiny_model(tmp_path / "tiny", Shape())
    return PresenceKeeper(world.node, roots=[tmp_path], packages={})


def register(source: str = "path:tiny") -> VersionPresence:
    version = create_version("chatty", VersionWish(source=source, name="tiny"), actor=ACTOR)
    return VersionPresence.objects.select_related("version").get(version=version)


def check(keeper: PresenceKeeper, presence: VersionPresence) -> VersionPresence:
    keeper.check(presence)
    return VersionPresence.objects.select_related("version").get(pk=presence.pk)


def test_the_first_node_that_reads_the_files_says_what_the_version_is(keeper: PresenceKeeper) -> None:
    presence = check(keeper, register())

    assert presence.phase == "present"
    assert presence.version.manifest is not None
    assert presence.version.manifest["digest"]
    assert facts_from_json(presence.version.facts or {}).layers > 0


def test_the_first_node_that_reads_the_files_stores_the_tokenizer(keeper: PresenceKeeper) -> None:
    presence = check(keeper, register())

    use = TokenizerUse.objects.select_related("tokenizer").get(version=presence.version)
    assert use.tokenizer is not None
    assert use.tokenizer.size_bytes > 1000
    assert use.chat_template is not None


def test_a_version_verified_before_gets_its_tokenizer_with_the_next_look(keeper: PresenceKeeper) -> None:
    presence = check(keeper, register())
    TokenizerUse.objects.all().delete()

    check(keeper, presence)

    assert TokenizerUse.objects.count() == 1


def test_files_that_were_hashed_are_not_read_again(
    keeper: PresenceKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence = check(keeper, register())
    monkeypatch.setattr("pool.weights.hash_file", lambda *_: pytest.fail("hashed again"))

    assert check(keeper, presence).phase == "present"


def test_a_full_check_on_demand_reads_everything(
    keeper: PresenceKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence = check(keeper, register())
    ask_full_check("chatty", "tiny", actor=ACTOR)
    hashed: list[Path] = []

    def hash_file(path: Path, _: object) -> str:
        hashed.append(path)
        return "0" * 64

    monkeypatch.setattr("pool.weights.hash_file", hash_file)
    presence = check(keeper, VersionPresence.objects.select_related("version").get(pk=presence.pk))

    assert len(hashed) > 2
    assert (presence.phase, presence.reason_code) == ("broken", "files_broken")
    assert not presence.full_check_wanted


def test_a_truncated_shard_is_named_fc76(keeper: PresenceKeeper, tmp_path: Path) -> None:
    presence = check(keeper, register())
    truncate_weights(tmp_path / "tiny")

    presence = check(keeper, presence)

    assert presence.phase == "broken"
    assert "model.safetensors" in presence.reason_text


@pytest.mark.parametrize(
    ("source", "code"), [("path:nothing", "source_not_found"), ("package:unknown", "source_not_found")]
)
def test_absent_files_are_said_to_be_absent(keeper: PresenceKeeper, source: str, code: str) -> None:
    presence = check(keeper, register(source))

    assert (presence.phase, presence.reason_code) == ("absent", code)


def test_a_link_out_of_the_root_is_refused_fc51(keeper: PresenceKeeper, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")

    presence = check(keeper, register("path:out"))

    assert (presence.phase, presence.reason_code) == ("absent", "path_outside_root")


def test_a_node_that_joins_later_looks_for_all_versions() -> None:
    make_world()
    late = Node.objects.create(name="late")

    assert ensure_presences(late) == Version.objects.count()
    assert ensure_presences(late) == 0


def test_simulated_versions_have_no_files_to_look_for(keeper: PresenceKeeper) -> None:
    create_version("chatty", VersionWish(source="sim:chatty", name="pretend"), actor=ACTOR)

    ensure_presences(keeper.node)

    assert not VersionPresence.objects.filter(version__name="pretend").exists()


def test_a_pass_takes_up_what_is_due(keeper: PresenceKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    presence = register()
    taken: list[object] = []
    monkeypatch.setattr(keeper.jobs, "submit", lambda key, work: taken.append(key))
    VersionPresence.objects.exclude(pk=presence.pk).update(verified_at=timezone.now())

    keeper.run_pass(timezone.now())

    assert taken == [presence.pk]
