"""The `openai` client of the engine environment, as a process: what a caller's program sees of a gateway."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.engine_runtime import find_test_runtime

LIMIT_S = 60.0


async def make_calls(port: int, key: str, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    """What `tests/engine/openai_calls.py` prints of each."""
    script = Path(__file__).parent / "engine" / "openai_calls.py"
    asked = {"base_url": f"http://127.0.0.1:{port}/v1", "key": key, "calls": calls}
    process = await asyncio.create_subprocess_exec(
        find_test_runtime().interpreter,
        str(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            told, log = await process.communicate(json.dumps(asked).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, log.decode()[-2000:]
    return [json.loads(line) for line in told.splitlines()]


def chat(**arguments: Any) -> dict[str, Any]:
    usual = {"model": "m", "messages": [{"role": "user", "content": "Who are you?"}]}
    return {"method": "chat.completions.create", "arguments": usual | arguments}


def text_of(told: dict[str, Any]) -> str:
    """Of a streamed chat."""
    choices = [choice for event in told["events"] for choice in event["choices"]]
    return "".join(choice["delta"]["content"] or "" for choice in choices)
