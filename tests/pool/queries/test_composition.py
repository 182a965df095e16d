from __future__ import annotations

from datetime import timedelta

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.heatmap import choose_columns
from pool.queries.ages import FigureState
from pool.queries.cells import CellFilter
from pool.queries.composition import Clock, Composition, Part, load_composition
from pool.telemetry.store import add_cells
from tests.factories import T0

pytestmark = pytest.mark.django_db
NOW = T0 + timedelta(minutes=5)
GATEWAY = {
    "tokenize_s": 1.0,
    "queue_s": 30.0,
    "first_byte_s": 20.0,
    "decode_s": 40.0,
    "stream_s": 5.0,
    "e2e_s": 100.0,
}


def load(sums: dict[str, float], **counts: int) -> Composition:
    add_cells({(SeriesKey("smollm2"), T0): Cell(counts=counts, sums=sums)})
    columns = choose_columns(T0, NOW, now=NOW)
    return load_composition(CellFilter(model="smollm2"), columns, now=NOW)


def seconds_of(found: Composition) -> dict[Part, float]:
    return {component.part: component.seconds for component in found.components}


def test_the_engines_times_explain_the_gateways_and_the_gap_is_shown() -> None:
    engine = {"engine_queue_s": 4.0, "engine_prefill_s": 12.0, "engine_decode_s": 38.0, "joined_e2e_s": 100.0}

    found = load(GATEWAY | engine, requests=10, joined=10)

    assert seconds_of(found) == pytest.approx(
        {
            Part.TOKENIZE: 1,
            Part.QUEUE: 30,
            Part.ENGINE_QUEUE: 4,
            Part.PREFILL: 12,
            Part.DECODE: 38,
            Part.GAP: 6,
            Part.STREAM: 5,
            Part.OTHER: 4,
        }
    )
    assert {component.state for component in found.components} == {FigureState.MEASURED}
    assert [component.part for component in found.components if component.marked] == [Part.QUEUE, Part.DECODE]
    assert {c.part for c in found.components if c.clock is Clock.GAP} == {Part.GAP}


def test_of_partly_joined_requests_the_engines_part_is_an_estimate() -> None:
    engine = {"engine_queue_s": 2.0, "engine_prefill_s": 6.0, "engine_decode_s": 19.0, "joined_e2e_s": 50.0}

    found = load(GATEWAY | engine, requests=10, joined=4)

    assert sum(seconds_of(found).values()) == pytest.approx(found.e2e_s)
    assert seconds_of(found)[Part.PREFILL] == pytest.approx(12)
    assert (found.joined, found.joined_share) == (4, 0.5)
    states = {component.part: component.state for component in found.components}
    assert (states[Part.PREFILL], states[Part.QUEUE]) == (FigureState.ESTIMATED, FigureState.MEASURED)


def test_an_engine_that_tells_nothing_leaves_its_time_whole_fc11() -> None:
    found = load(GATEWAY, requests=10)

    assert seconds_of(found)[Part.FIRST_BYTE] == 20
    assert Part.PREFILL not in seconds_of(found)
    assert (found.joined, found.joined_share) == (0, 0.0)


def test_refused_requests_have_no_part_in_the_mean() -> None:
    found = load(GATEWAY, requests=30, refused=20)

    assert found.requests == 10
    assert found.components[1].mean_s == pytest.approx(3.0)


def test_without_requests_there_are_no_shares_fc11() -> None:
    columns = choose_columns(T0, NOW, now=NOW)

    found = load_composition(CellFilter(model="smollm2"), columns, now=NOW)

    assert found.joined_share is None
    assert {component.share for component in found.components} == {None}
    assert found.data.state is FigureState.ABSENT
