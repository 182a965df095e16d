import asyncio
import subprocess
from typing import Any, cast

import pytest

from pool.gateway.reading.child import Child
from pool.gateway.reading.frames import pack


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing


@pytest.mark.parametrize("closing", [False, True])
async def test_a_long_answer_is_taken_over_several_turns_of_the_loop(closing: bool) -> None:
    answers: list[dict[str, Any]] = []
    transport = Transport()
    transport.closing = closing
    process = cast("subprocess.Popen[bytes]", None)
    child = Child(process, on_answer=lambda _, meta, payload: answers.append(meta), on_gone=lambda _: None)
    child.connection_made(transport)
    left = pack({"a": 1}, 3_000_000) + b"x" * 3_000_000
    while left and not transport.paused:
        buffer = child.get_buffer(-1)
        taken, left = left[: len(buffer)], left[len(buffer) :]
        buffer[: len(taken)] = taken
        child.buffer_updated(len(taken))

    assert 1_900_000 < len(left) < 2_100_000
    await asyncio.sleep(0)
    assert transport.paused is closing
    assert answers == []
