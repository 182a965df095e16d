"""Step rings as an engine writes them, and engines of a node that have one."""

from __future__ import annotations

import time
from pathlib import Path

from pool.ports import EngineSpec, RuntimeRef
from workers.plugin.sluice_engine import ring
from workers.replica_trace import WatchedEngine


def make_engine(
    folder: Path, replica: str = "r1", *, generation: int = 1, members: tuple[int, ...] = ()
) -> WatchedEngine:
    spec = EngineSpec(
        replica_id=replica,
        generation=generation,
        runtime=RuntimeRef("sim", "sim", "python"),
        model_path="",
        served_model_name="chat",
        settings={},
        address="unix:/nowhere",
        engines_dir=str(folder),
        compile_dir="",
        engine_key="",
    )
    Path(spec.directory).mkdir(parents=True, exist_ok=True)
    return WatchedEngine(spec, release=3, lane="short", members=members)


def make_ring(
    engine: WatchedEngine, *, blocks: int = 101, block_size: int = 16, flags: int = 0
) -> ring.RingWriter:
    path = f"{engine.spec.directory}/{ring.FILE_NAME}"
    return ring.RingWriter(
        path, blocks=blocks, block_size=block_size, engine="test", flags=flags, max_sequences=8, kv_bytes=4096
    )


def make_step(
    *, kind: int = ring.DECODE, execute_s: float = 0.010, running: int = 2, waiting: int = 1, used_blocks: int = 40,
    preempted: int = 0,
) -> ring.StepFields:  # fmt: skip
    """Ends now. Its times: 1 ms to schedule, `execute_s`, 1 ms to update."""
    took_ns = int((execute_s + 0.002) * 1e9)
    return ring.StepFields(
        started_ns=time.monotonic_ns() - took_ns,
        schedule_ns=1_000_000,
        execute_ns=int(execute_s * 1e9),
        update_ns=1_000_000,
        busy_ns=took_ns,
        kind=kind,
        prefill_tokens=0 if kind == ring.DECODE else 100,
        decode_tokens=0 if kind == ring.PREFILL else running,
        prefill_sequences=0 if kind == ring.DECODE else 1,
        decode_sequences=0 if kind == ring.PREFILL else running,
        running=running,
        waiting=waiting,
        preempted=preempted,
        cached_tokens=0,
        used_blocks=used_blocks,
        finished=0,
    )


def put_step(writer: ring.RingWriter, step: ring.StepFields) -> None:
    """As the hook does it: the record, and what runs, waits and is used now."""
    writer.put_step(step)
    writer.words[ring.RUNNING] = step.running
    writer.words[ring.WAITING] = step.waiting
    writer.words[ring.USED_BLOCKS] = step.used_blocks


def make_finished(request_id: str, *, queue_s: float | None = 0.2) -> ring.FinishedFields:
    return ring.FinishedFields(
        at_ns=time.monotonic_ns(),
        queue_ns=-1 if queue_s is None else int(queue_s * 1e9),
        prefill_ns=50_000_000,
        decode_ns=400_000_000,
        preemptions=1,
        prompt_tokens=100,
        cached_tokens=64,
        output_tokens=10,
        outcome=ring.DONE,
        request_id=request_id,
    )


def put_map(writer: ring.RingWriter, *, used: int, tail_tokens: int) -> None:
    """`used` blocks of one request after the null block, then two reusable ones; the rest is free."""
    states = bytearray([ring.FREE] * writer.blocks)
    states[0] = ring.NULL
    states[1 : 1 + used] = bytes([ring.USED]) * used
    states[1 + used : 3 + used] = bytes([ring.REUSABLE]) * 2
    owners = [ring.NO_OWNER] * writer.blocks
    owners[1 : 1 + used] = [0] * used
    packed = b"".join(owner.to_bytes(2, "little") for owner in owners)
    rows = [ring.MapRequest("chatcmpl-req-1-0123abcd", used, used * 16 - tail_tokens, tail_tokens)]
    writer.put_map(bytes(states), packed, rows, first_step=1, last_step=1)
