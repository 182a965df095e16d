from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.life.box import Box, open_box


@pytest.fixture
def box(transactional_db: None) -> Iterator[Box]:
    with open_box() as made:
        yield made
