"""vllm-router's `cache_aware` policy in front of the affinity benchmark's engines, over HTTP and in faster time.

A block of 512 tokens becomes 16, and an hour two minutes; the limits that count tokens or seconds are scaled in the
same way (without that it does worse), all others are its defaults. It asks engines for a prompt's token ids first.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench._figures import say
from bench._prefix_sim import CACHE_BLOCKS, REPLICAS, Engines, Outcome
from bench._prefix_trace import Call

FASTER = 30.0
_SHORT_TOKENS = 16
_EVICTION_S = 120.0
_START_LIMIT_S = 60.0


def find_router(given: Path | None) -> Path | None:
    """The given program, else beside this interpreter, else on the path."""
    if given is not None:
        return given
    beside = Path(sys.executable).with_name("vllm-router")
    found = str(beside) if beside.exists() else shutil.which("vllm-router")
    return Path(found) if found is not None else None


def run_router(program: Path, calls: Sequence[Call]) -> Outcome:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(_run(program, calls))


async def _run(program: Path, calls: Sequence[Call]) -> Outcome:
    engines = Engines(REPLICAS, CACHE_BLOCKS)
    servers, ports = [], []
    for number in range(REPLICAS):
        server = await asyncio.start_server(partial(_answer, engines, number, calls), "127.0.0.1", 0)
        servers.append(server)
        ports.append(server.sockets[0].getsockname()[1])
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="sl-") as folder:
        process = _start(program, port, ports, folder)
        try:
            await _wait_ready(process, port)
            await _play(port, calls)
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(_end, process)
            for server in servers:
                server.close()
    return engines.outcome


def _start(program: Path, port: int, ports: Sequence[int], folder: str) -> subprocess.Popen[bytes]:
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
    command += ["--worker-urls", *(f"http://127.0.0.1:{one}" for one in ports)]
    command += ["--max-tree-size", str(CACHE_BLOCKS * _SHORT_TOKENS)]
    command += ["--eviction-interval-secs", str(max(1, round(_EVICTION_S / FASTER)))]
    command += ["--disable-retries", "--request-timeout-secs", "3600", "--max-concurrent-requests", "100000"]
    # Its engines here are one busy process: that one is slow to answer must not count against the router.
    command += ["--disable-circuit-breaker", "--health-check-interval-secs", "3600"]
    command += ["--prometheus-port", str(_free_port()), "--log-level", "error"]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if await _ask(port, b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n") == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("vllm-router did not start")


async def _play(port: int, calls: Sequence[Call]) -> None:
    started = time.monotonic()
    tasks = []
    for number, call in enumerate(calls):
        wait_s = started + call.at_s / FASTER - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(_ask(port, _write_request(number, call))))
    statuses = await asyncio.gather(*tasks, return_exceptions=True)
    failed = sum(status != 200 for status in statuses)
    if failed:
        say(f"vllm-router: {failed} of {len(calls)} requests failed")


def _write_request(number: int, call: Call) -> bytes:
    prompt = "".join([f"{block:0{_SHORT_TOKENS}x}" for block in call.blocks])
    body = json.dumps({"model": "bench", "prompt": prompt, "seed": number}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _ask(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        status = int((await reader.readline()).split()[1])
        await reader.read()
        return status
    finally:
        writer.close()


async def _answer(
    engines: Engines,
    number: int,
    calls: Sequence[Call],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_find_length(head))
            answer: object = {"object": "text_completion", "choices": []}
            if head.startswith(b"POST /v1/completions/render "):
                answer = [_render(calls[json.loads(body)["seed"]])]
            elif head.startswith(b"POST /v1/completions "):
                call = calls[json.loads(body)["seed"]]
                served = engines.serve(number, call)
                await asyncio.sleep((served.finished_at_s - call.at_s) / FASTER)
            content = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        pass  # the router closed a connection, or the run is over
    finally:
        writer.close()


def _render(call: Call) -> dict[str, object]:
    tokens = [block * _SHORT_TOKENS + place for block in call.blocks for place in range(_SHORT_TOKENS)]
    return {"request_id": "cmpl-1", "token_ids": tokens, "sampling_params": {}, "model": "bench"}


def _find_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
