"""The step ring: what is written is read, and what is torn, overwritten or foreign is never taken for a record."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine_ring import RingReader
from workers.plugin.sluice_engine import ring
from workers.plugin.sluice_engine.ring import FinishedFields, MapRequest, RingWriter, StepFields
from workers.ring_records import clean_request_id


def make_fields(number: int = 1, *, kind: int = ring.DECODE) -> StepFields:
    """Every figure tells its number, so that a mixture of two records shows."""
    return StepFields(
        started_ns=number * 10**9,
        schedule_ns=number,
        execute_ns=number,
        update_ns=number,
        busy_ns=number,
        kind=kind,
        prefill_tokens=number,
        decode_tokens=number,
        prefill_sequences=number,
        decode_sequences=number,
        running=number,
        waiting=number,
        preempted=number,
        cached_tokens=number,
        used_blocks=number,
        finished=number,
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / ring.FILE_NAME)


@pytest.fixture
def writer(path: str) -> Iterator[RingWriter]:
    made = RingWriter(path, blocks=64, block_size=16, engine="vllm 0.32.0", max_sequences=4, slots=(8, 4))
    yield made
    made.close()


@pytest.fixture
def reader(path: str, writer: RingWriter) -> Iterator[RingReader]:
    made = RingReader(path, from_start=True)
    yield made
    made.close()


def test_a_step_is_read_as_it_was_written(writer: RingWriter, reader: RingReader) -> None:
    fields = StepFields(
        5 * 10**9, 100_000, 20_000_000, 300_000, 20_400_000, ring.MIXED, 512, 15, 1, 15, 16, 3, 2, 128, 40, 1
    )

    writer.put_step(fields)
    (step,) = reader.read_steps()

    assert step.at_s == pytest.approx(5.0204)
    assert (step.kind, step.prefill_tokens, step.decode_tokens, step.waiting) == ("mixed", 512, 15, 3)
    assert (step.schedule_s, step.execute_s, step.update_s, step.busy_s) == (0.0001, 0.02, 0.0003, 0.0204)
    assert (step.preempted, step.cached_tokens, step.used_blocks, step.finished) == (2, 128, 40, 1)
    assert reader.read_steps() == []


def test_what_was_overwritten_is_counted_as_lost(writer: RingWriter, reader: RingReader) -> None:
    for number in range(1, 21):
        writer.put_step(make_fields(number))

    assert [step.sequence for step in reader.read_steps()] == list(range(13, 21))
    assert reader.lost_steps == 12


def test_a_second_reader_begins_at_the_newest(writer: RingWriter, path: str) -> None:
    writer.put_step(make_fields(1))
    late = RingReader(path)

    assert late.read_steps() == []
    writer.put_step(make_fields(2))
    assert [step.sequence for step in late.read_steps()] == [2]
    late.close()


def test_a_finished_request_tells_its_times_and_the_id_that_was_sent(
    writer: RingWriter, reader: RingReader
) -> None:
    writer.put_finished(
        FinishedFields(9, 10**8, 2 * 10**8, -1, 1, 20, -1, 5, ring.ABORTED, "chatcmpl-req-1f-0123abcd")
    )

    (request,) = reader.read_finished()

    assert (request.request_id, request.outcome) == ("req-1f", "aborted")
    assert (request.queue_s, request.prefill_s, request.decode_s) == (0.1, 0.2, None)
    assert (request.cached_tokens, request.preemptions) == (None, 1)


@pytest.mark.parametrize(
    ("engine_id", "sent"),
    [
        ("chatcmpl-req-aa01-bb02-0123abcd", "req-aa01-bb02"),
        ("cmpl-req-aa01-0-0123abcd", "req-aa01"),
        ("2_cmpl-req-aa01-0-0123abcd", "req-aa01"),
        ("1_chatcmpl-req-aa01-2-0123abcd", "req-aa01-2"),
        ("something-else", "something-else"),
    ],
)
def test_the_engines_own_parts_are_taken_off_an_id(engine_id: str, sent: str) -> None:
    assert clean_request_id(engine_id) == sent


def make_map(blocks: int, used: int) -> tuple[bytes, bytes]:
    states = bytes([ring.NULL] + [ring.USED] * used + [ring.FREE] * (blocks - used - 1))
    owners = struct.pack(f"<{blocks}H", ring.NO_OWNER, *[0] * used, *[ring.NO_OWNER] * (blocks - used - 1))
    return states, owners


def test_the_newest_block_map_is_read(writer: RingWriter, reader: RingReader) -> None:
    assert reader.read_block_map() is None
    for used in (3, 5):
        states, owners = make_map(64, used)
        writer.put_map(states, owners, [MapRequest("a", used, 70, 10)], first_step=used, last_step=used)

    found = reader.read_block_map()

    assert found is not None
    assert (found.used_blocks, found.free_blocks, found.reusable_blocks) == (5, 58, 0)
    assert (found.held_tokens, found.tail_tokens, found.first_step) == (80, 10, 5)
    assert (found.runs_of_free, found.largest_free_run_blocks) == ({58: 1}, 58)
    assert found.requests[0].request_id == "a"


def test_runs_hold_free_and_reusable_blocks(writer: RingWriter, reader: RingReader) -> None:
    pattern = [ring.NULL, ring.FREE, ring.REUSABLE, ring.USED, ring.FREE, ring.SHARED]
    states = bytes(pattern + [ring.USED] * 58)
    writer.put_map(states, bytes(128), [MapRequest("a", 61, 1, -1)], first_step=1, last_step=1)

    found = reader.read_block_map()

    assert found is not None
    assert found.runs_of_free == {2: 1, 1: 1}
    assert (found.used_blocks, found.shared_blocks, found.tail_tokens) == (60, 1, None)


def test_a_map_of_another_size_is_refused(writer: RingWriter) -> None:
    with pytest.raises(ValueError, match="each block"):
        writer.put_map(b"\0", b"\0\0", [], first_step=1, last_step=1)


def test_a_map_that_is_being_written_leaves_the_one_before(
    writer: RingWriter, reader: RingReader, path: str
) -> None:
    for used in (3, 5):
        writer.put_map(*make_map(64, used), [], first_step=1, last_step=1)
    head = reader.head
    assert head is not None
    tear(path, head.areas.maps + ring.MAP_HEAD.size + 20, 8)

    found = reader.read_block_map()

    assert found is not None
    assert found.used_blocks == 3
    tear(path, head.areas.maps + head.area_bytes + ring.MAP_HEAD.size + 20, 8)
    assert reader.read_block_map() is None


def test_the_watch_reaches_the_writer(writer: RingWriter, reader: RingReader) -> None:
    now = time.monotonic_ns()
    assert not writer.is_watched(now)

    reader.watch(5.0)

    assert writer.is_watched(now)
    assert not writer.is_watched(now + 10 * 10**9)


def test_the_step_in_progress_and_the_age_are_told(writer: RingWriter, reader: RingReader) -> None:
    assert (reader.in_step_s(10.0), reader.newest_age_s(10.0)) == (None, None)
    writer.put_step(make_fields(1))
    writer.words[ring.IN_STEP_NS] = 4 * 10**9

    assert reader.in_step_s(10.0) == 6.0
    assert reader.newest_age_s(10.0) == pytest.approx(9.0)


def test_no_file_a_foreign_file_and_a_cut_one_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    reader = RingReader(str(path))
    assert "not installed" in reader.missing
    path.write_bytes(b"x" * 4096)
    assert "is none" in reader.missing
    path.unlink()
    path.write_bytes(b"x")
    assert "cut" in reader.missing
    assert (reader.read_steps(), reader.read_finished(), reader.read_block_map()) == ([], [], None)
    assert (reader.read_allocator(), reader.read_cost(), reader.newest_age_s()) == (None, None, None)
    reader.close()


def test_another_layout_and_a_lying_header_are_refused(path: str, writer: RingWriter) -> None:
    with open(path, "r+b") as file:
        head = bytearray(file.read(ring.HEADER.size))
        struct.pack_into("<I", head, 8, 9)
        file.seek(0)
        file.write(head)
    assert "has layout 9" in RingReader(path).missing

    struct.pack_into("<I", head, 8, ring.LAYOUT_VERSION)
    struct.pack_into("<I", head, 32, 2**31)
    Path(path).write_bytes(bytes(head) + bytes(8192))
    assert "does not fit" in RingReader(path).missing


def test_a_hook_that_was_removed_says_why(writer: RingWriter, reader: RingReader) -> None:
    assert reader.missing == ""

    writer.fail("The step hook was removed after 5 failures: AttributeError.")

    assert "after 5 failures" in reader.missing


def test_an_absence_is_a_ring_too(path: str) -> None:
    ring.write_absence(path, "This engine has no scheduler to look at.")
    reader = RingReader(path)

    assert reader.missing == "This engine has no scheduler to look at."
    assert (reader.read_steps(), reader.read_block_map()) == ([], None)
    reader.close()


def test_a_new_file_in_the_place_of_the_old_is_read_from_its_start(
    path: str, writer: RingWriter, reader: RingReader
) -> None:
    writer.put_step(make_fields(1))
    writer.put_step(make_fields(2))
    assert len(reader.read_steps()) == 2

    with_new = RingWriter(path, blocks=0, block_size=0, engine="next")
    with_new.put_step(make_fields(7))

    assert [step.running for step in reader.read_steps()] == [7]
    assert reader.head is not None
    assert reader.head.engine == "next"
    with_new.close()


def test_a_file_whose_folder_is_gone_stays_readable(
    path: str, writer: RingWriter, reader: RingReader
) -> None:
    assert reader.missing == ""
    writer.put_step(make_fields(1))
    os.unlink(path)

    assert len(reader.read_steps()) == 1


def tear(path: str, start: int, size: int, seed: int = 0) -> None:
    """Other bytes in the place of some, as a half-written record has."""
    with open(path, "r+b") as file:
        file.seek(start)
        before = file.read(size)
        noise = random.Random(seed).randbytes(size)
        file.seek(start)
        file.write(noise if noise != before else bytes(size))


@pytest.mark.parametrize("seed", range(40))
def test_a_torn_record_is_never_taken_for_one(path: str, writer: RingWriter, seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 30)
    for number in range(1, count + 1):
        writer.put_step(make_fields(number))
    slot, offset = chance.randrange(8), chance.randrange(ring.STEP_BYTES)
    size = chance.randint(1, ring.STEP_BYTES - offset)
    tear(path, ring.PAGE_BYTES + slot * ring.STEP_BYTES + offset, size, seed)
    reader = RingReader(path, from_start=True)

    steps = reader.read_steps()

    assert all(step.running == step.sequence == step.finished for step in steps)
    kept = min(count, 8)
    assert kept - 1 <= len(steps) <= kept
    reader.close()


@pytest.mark.parametrize("seed", range(20))
def test_reading_amid_writes_gives_each_step_once_or_counts_it_lost(
    path: str, writer: RingWriter, seed: int
) -> None:
    chance = random.Random(seed)
    reader = RingReader(path, from_start=True)
    seen: list[int] = []
    number = 0
    for _ in range(50):
        for _ in range(chance.randint(0, 12)):
            number += 1
            writer.put_step(make_fields(number))
        seen += [step.sequence for step in reader.read_steps()]

    assert seen == sorted(set(seen))
    assert len(seen) + reader.lost_steps == number
    reader.close()


def test_the_newest_record_is_awaited_while_its_bytes_come(
    path: str, writer: RingWriter, reader: RingReader
) -> None:
    writer.put_step(make_fields(1))
    writer.words[ring.STEPS] = 2
    assert [step.sequence for step in reader.read_steps()] == [1]

    writer.put_step(make_fields(2))

    assert [step.sequence for step in reader.read_steps()] == [2]
    assert reader.lost_steps == 0
