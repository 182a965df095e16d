"""What each release makes of a lane."""

from __future__ import annotations

import pytest

from pool.queries.lanes import list_lane_uses
from tests import factories
from tests.browser.seed import FACTS

pytestmark = pytest.mark.django_db


def test_a_lane_shows_each_release_with_its_precision_and_kv_cache() -> None:
    model = factories.make_model()
    version = factories.make_version(model, facts=FACTS)
    profile = factories.make_profile(
        "fp8-cache", settings={"kv_cache_dtype": "fp8", "max_num_seqs": 8, "odd": 1}
    )
    release = factories.make_release(model, version=version, profile=profile, replicas=2)
    figures = {"printed": {"kv_cache_tokens": 4096, "block_size_tokens": 32}}
    node = factories.make_node()
    factories.make_replica(release, node=node, figures=figures)
    factories.make_replica(release, node=node, figures=figures | {"printed": {"kv_cache_tokens": 2048}})
    factories.make_plan(model, weights={"1": 100})

    short, *others = list_lane_uses("smollm2")

    assert [use.lane for use in others] == ["mid", "long"]
    assert (short.weight_percent, short.own, short.wanted, short.ready, short.slots) == (100, False, 2, 2, 8)
    assert (short.kv_tokens, short.block_tokens, short.context_tokens) == (2048, 32, 32_768)
    assert (short.weights_as, short.cache_as, short.kv_bytes_per_token) == (
        "bfloat16",
        "fp8",
        2 * 28 * 4 * 128,
    )


def test_a_lane_of_its_own_counts_its_own_replicas_and_the_plans_lane_weights() -> None:
    model = factories.make_model()
    release = factories.make_release(model, lanes=("short", "long"), replicas=1)
    factories.make_release(model, number=2, replicas=0)
    factories.make_replica(release, node=factories.make_node(), lane="long")
    factories.make_plan(model, weights={"1": 0, "2": 100}, lanes={"long": {"1": 100}})

    uses = {(use.lane, use.release): use for use in list_lane_uses("smollm2")}

    assert set(uses) == {("short", 1), ("short", 2), ("mid", 2), ("long", 1)}
    assert (uses["long", 1].own, uses["long", 1].ready, uses["long", 1].weight_percent) == (True, 1, 100)
    assert (uses["short", 1].ready, uses["short", 1].weight_percent) == (0, 0)
    assert uses["short", 2].kv_bytes_per_token is None


@pytest.mark.parametrize("facts", [None, {"dtype": "bfloat16"}, FACTS | {"cache_kind": "unknown"}])
def test_what_cannot_be_computed_is_none(facts: dict[str, object] | None) -> None:
    model = factories.make_model()
    factories.make_release(model, version=factories.make_version(model, facts=facts))

    assert list_lane_uses("smollm2")[0].kv_bytes_per_token is None
