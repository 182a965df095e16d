import pytest
from django.db import IntegrityError, transaction

from pool.models import Profile, Release, Scale, Version
from pool.services.catalog import (
    ReleaseWish,
    VersionWish,
    ask_full_check,
    create_model,
    create_profile,
    create_release,
    create_version,
    retire_version,
    set_scale,
)
from pool.services.errors import Conflict, Invalid, NotFound
from pool.services.lanes import LaneWish
from tests.pool.services.world import ACTOR, make_replica, make_world

pytestmark = pytest.mark.django_db
ONE = [LaneWish("all", None, 8, 300)]


def test_only_a_version_that_is_there_is_verified() -> None:
    world = make_world()

    with pytest.raises(NotFound):
        ask_full_check(world.model.name, "v" * 3000, actor=ACTOR)


def test_a_model_name_is_used_once() -> None:
    make_world()

    with pytest.raises(Conflict):
        create_model("chatty", lanes=ONE, owner="", actor=ACTOR)


def test_releases_are_numbered_per_model_and_bring_their_wish() -> None:
    make_world()

    release = create_release(
        "chatty", ReleaseWish("v1", "sim-1", {"short": "plain", "long": "plain"}, 2), actor=ACTOR
    )

    assert release.number == 2
    assert set(Scale.objects.filter(release=release).values_list("lane", "replicas")) == {
        ("short", 2),
        ("long", 2),
    }


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        (ReleaseWish("v9", "sim-1", {"": "plain"}), "no version 'v9'"),
        (ReleaseWish("v1", "sim-9", {"": "plain"}), "no node has a runtime"),
        (ReleaseWish("v1", "sim-1", {"": "fancy"}), "no profile 'fancy'"),
        (ReleaseWish("v1", "sim-1", {"giant": "plain"}), "no lane 'giant'"),
        (ReleaseWish("v1", "sim-1", {}), "needs a profile"),
        (ReleaseWish("v1", "sim-1", {"": "plain", "short": "plain"}), "not both"),
        (ReleaseWish("v1", "sim-1", {"": "plain"}, replicas=-1), "outside 0 to 512"),
    ],
)
def test_a_release_that_cannot_be_served_is_refused_with_each_rule(wish: ReleaseWish, problem: str) -> None:
    make_world()

    with pytest.raises(Invalid, match=problem):
        create_release("chatty", wish, actor=ACTOR)

    assert Release.objects.count() == 1


@pytest.mark.parametrize("rows", [Release.objects, Profile.objects])
def test_the_database_refuses_to_change_releases_and_profiles(rows: object) -> None:
    make_world()

    with pytest.raises(IntegrityError, match="never change"), transaction.atomic():
        rows.update(comment="rewritten")  # type: ignore[attr-defined]


def test_a_versions_facts_are_written_once() -> None:
    make_world()
    Version.objects.update(facts={"layers": 1})

    with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
        Version.objects.update(facts={"layers": 2})


def test_a_version_name_is_used_once_per_model() -> None:
    make_world()

    with pytest.raises(Conflict):
        create_version("chatty", VersionWish(source="path:x", name="v1"), actor=ACTOR)


def test_a_version_that_is_served_is_not_retired() -> None:
    world = make_world()
    make_replica(world, phase="ready")

    with pytest.raises(Conflict, match="Scale its releases to 0"):
        retire_version("chatty", "v1", actor=ACTOR)


def test_a_retired_version_makes_no_release() -> None:
    make_world()
    retire_version("chatty", "v1", actor=ACTOR)
    retire_version("chatty", "v1", actor=ACTOR)

    with pytest.raises(Invalid, match="retired"):
        create_release("chatty", ReleaseWish("v1", "sim-1", {"": "plain"}), actor=ACTOR)


def test_a_profile_name_is_used_once() -> None:
    make_world()

    with pytest.raises(Conflict, match="never change"):
        create_profile("plain", {}, digest="d", actor=ACTOR)


@pytest.mark.parametrize(
    ("number", "replicas", "lane", "error"),
    [(9, 1, "", NotFound), (1, 513, "", Invalid), (1, 1, "short", Invalid)],
)
def test_a_wrong_scale_is_refused(number: int, replicas: int, lane: str, error: type[Exception]) -> None:
    make_world()

    with pytest.raises(error):
        set_scale("chatty", number, replicas=replicas, lane=lane, actor=ACTOR)
