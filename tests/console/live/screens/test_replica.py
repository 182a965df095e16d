from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from console.live.screens.replica import build_replica
from pool.ports import EngineLoad
from tests.factories import make_model, make_node, make_release, make_replica

pytestmark = pytest.mark.django_db
WHOLE = EngineLoad(1, 0, 0.0, 10.0, 20.0, 3.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({}, ""),
        (asdict(WHOLE), ""),
        (asdict(replace(WHOLE, kv_usage_ratio=None, cache_hits_tokens=None)), "KV in use, prefix hits"),
    ],
)
def test_what_an_engines_metrics_do_not_tell_is_named_fc28(load: dict[str, Any], words: str) -> None:
    make_replica(make_release(make_model("smollm2")), id="r1", node=make_node(), load=load)

    tree = build_replica("r1")

    assert (tree["untold"], tree["is_untold"]) == (words, bool(words))
