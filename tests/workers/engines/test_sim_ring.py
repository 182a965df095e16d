"""The simulated engine's ring holds what a real one's holds, marked as simulated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine_ring import RingReader
from workers.engines.sim_model import SimModel, SimRequest, SimSettings
from workers.engines.sim_ring import SimRing
from workers.plugin.sluice_engine import ring

SETTINGS = SimSettings(block_size=16, kv_tokens=1600, max_num_seqs=2, max_num_batched_tokens=64)


class Engine:
    """Steps of a model without the waiting between them."""

    def __init__(self, path: Path) -> None:
        self.model = SimModel(SETTINGS)
        self.ring = SimRing.open(str(path), self.model)

    def submit(self, request: SimRequest, name: str) -> SimRequest:
        self.ring.note_arrival(request, name)
        self.model.add(request)
        return request

    def step(self) -> bool:
        self.ring.note_begin()
        step = self.model.step()
        if step is not None:
            self.ring.note_end(step)
        return step is not None


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "steps.ring")


@pytest.fixture
def reader(engine: Engine, tmp_path: Path) -> Iterator[RingReader]:
    reader = RingReader(str(tmp_path / "steps.ring"), from_start=True)
    yield reader
    reader.close()


def test_steps_are_told_by_what_they_computed(engine: Engine, reader: RingReader) -> None:
    engine.submit(SimRequest(100, 3), "long")
    engine.step()
    engine.step()
    engine.submit(SimRequest(10, 2), "short")
    engine.submit(SimRequest(10, 2), "later")
    engine.step()

    steps = reader.read_steps()

    assert reader.head is not None
    assert reader.head.simulated
    assert [(one.kind, one.prefill_tokens, one.decode_tokens) for one in steps] == [
        ("prefill", 64, 0),
        ("prefill", 36, 0),
        ("mixed", 10, 1),
    ]
    assert [(one.running, one.waiting) for one in steps] == [(1, 0), (1, 0), (2, 1)]


def test_finished_requests_are_told_with_their_times(engine: Engine, reader: RingReader) -> None:
    engine.submit(SimRequest(10, 3), "req-1")
    gone = engine.submit(SimRequest(10, 50), "req-2")
    engine.step()
    engine.model.remove(gone)
    engine.ring.note_gone(gone)
    while engine.step():
        pass

    finished = {one.request_id: one for one in reader.read_finished()}

    assert {name: one.outcome for name, one in finished.items()} == {"req-1": "done", "req-2": "aborted"}
    one = finished["req-1"]
    assert (one.prompt_tokens, one.output_tokens) == (10, 3)
    assert None not in (one.queue_s, one.prefill_s, one.decode_s)


def test_the_block_map_adds_up_to_what_the_model_holds(engine: Engine, reader: RingReader) -> None:
    engine.submit(SimRequest(32, 1, blocks=(1, 2)), "cached")
    engine.step()
    engine.submit(SimRequest(40, 9), "req-1")
    engine.step()
    engine.ring._mapped_ns = 0
    engine.step()

    found = reader.read_block_map()

    assert found is not None
    assert found.used_blocks == engine.model.used_blocks
    assert (found.reusable_blocks, found.used_blocks + found.reusable_blocks + found.free_blocks) == (2, 100)
    assert [(one.request_id, one.blocks, one.tail_tokens) for one in found.requests] == [("req-1", 3, 6)]
    assert found.states[0] == ring.NULL


def test_a_cache_that_is_full_of_prefixes_still_has_free_blocks(engine: Engine, reader: RingReader) -> None:
    for number in range(60):
        blocks = tuple(range(10 * number, 10 * number + 3))
        engine.submit(SimRequest(52, 20, blocks=blocks), f"req-{number}")
        while engine.step():
            pass
    engine.submit(SimRequest(40, 9), "last")
    engine.step()
    engine.ring._mapped_ns = 0
    engine.step()

    found = reader.read_block_map()

    assert found is not None
    assert found.used_blocks == 3
    assert found.reusable_blocks == engine.model.cached_blocks > found.free_blocks > 20
    assert found.used_blocks + found.reusable_blocks + found.free_blocks == engine.model.total_blocks


def test_an_idle_engine_says_so(engine: Engine, reader: RingReader) -> None:
    engine.submit(SimRequest(10, 2), "req-1")
    while engine.step():
        pass

    newest = reader.read_newest_step()

    assert newest is not None
    assert (newest.running, newest.waiting, newest.used_blocks) == (0, 0, 0)


def test_without_a_place_for_the_ring_the_engine_runs(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "absent" / "steps.ring")
    engine.submit(SimRequest(10, 2), "req-1")

    assert engine.step()
    assert engine.ring.writer is None
