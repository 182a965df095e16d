from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.live.cells import Cells, Changes, compare, flatten

KEYS = st.sampled_from(["a", "b", "rows/x/n", "rows/y/n"])
STATES = st.dictionaries(KEYS, st.integers(0, 2))


def test_rows_become_a_list_of_ids_and_cells_under_each() -> None:
    tree = {
        "calm": True,
        "rows": [{"id": "x", "n": 1, "inner": [{"id": "u", "m": None}]}],
        "tiles": {"k": "v"},
    }

    assert flatten(tree) == {
        "calm": True,
        "rows#": ["x"],
        "rows/x/id": "x",
        "rows/x/n": 1,
        "rows/x/inner#": ["u"],
        "rows/x/inner/u/id": "u",
        "rows/x/inner/u/m": None,
        "tiles/k": "v",
    }


def test_what_is_no_cell_is_refused() -> None:
    with pytest.raises(TypeError, match="rows/x/when"):
        flatten({"rows": [{"id": "x", "when": object()}]})


def test_a_value_that_becomes_none_is_a_change_and_no_removal() -> None:
    changes = compare({"a": 1, "b": 2}, {"a": None, "b": 2})

    assert changes == Changes(put={"a": None}, gone=set())


@given(st.lists(STATES, min_size=2, max_size=6))
def test_merged_changes_lead_to_the_newest_state(states: list[Cells]) -> None:
    """FC-65: a slow reader gets all that it missed as one small frame."""
    merged = Changes()
    for before, after in zip(states, states[1:], strict=False):
        merged.add(compare(before, after))

    shown = {key: value for key, value in (states[0] | merged.put).items() if key not in merged.gone}
    assert shown == states[-1]
    assert not merged.put.keys() & merged.gone
