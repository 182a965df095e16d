from __future__ import annotations

from typing import Any

import pytest

from pool.queries.overview import load_overview
from tests.factories import T0, make_pool

pytestmark = pytest.mark.django_db


def test_an_empty_pool_is_an_empty_overview() -> None:
    overview = load_overview(now=T0)

    assert (overview.nodes, overview.replicas, overview.models, overview.table) == ((), (), (), None)
    assert overview.counts.replicas_ready == 0


@pytest.mark.parametrize("size", [1, 6])
def test_the_number_of_queries_does_not_depend_on_the_size(
    size: int, django_assert_num_queries: Any, routing_state: None
) -> None:
    make_pool(size)

    with django_assert_num_queries(16):
        overview = load_overview(now=T0)

    assert overview.counts.nodes == size
    assert overview.counts.replicas_ready == size * size
