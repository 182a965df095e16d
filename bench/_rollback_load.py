"""What `bench rollback` sends meanwhile: streams and plain requests, each of a session and a connection of its own.

    python -m bench._rollback_load --port N --key KEY --model NAME --streams N --plains N

A process of its own, until its stdin is closed. Each answer is one JSON line:
`[sent at, release, "" or what was wrong]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time

import uvloop

STREAM_TOKENS, PLAIN_TOKENS = 48, 8
# Between two requests of one client.
PAUSE_S = (0.005, 0.05)
ANSWER_LIMIT_S = 60.0


async def run(options: argparse.Namespace) -> None:
    clients = [
        asyncio.create_task(ask_on(options, stream=number < options.streams))
        for number in range(options.streams + options.plains)
    ]
    await asyncio.to_thread(sys.stdin.read)
    # Each finishes what it has asked: a request that is left would look lost.
    options.over = True
    await asyncio.gather(*clients)


async def ask_on(options: argparse.Namespace, *, stream: bool) -> None:
    while not options.over:
        sent_at = time.time()
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                release, fault = await ask(options, stream=stream)
        except (OSError, TimeoutError) as exc:
            release, fault = 0, repr(exc)
        print(json.dumps([sent_at, release, fault]), flush=True)  # noqa: T201
        await asyncio.sleep(random.uniform(*PAUSE_S))


async def ask(options: argparse.Namespace, *, stream: bool) -> tuple[int, str]:
    """The release that answered, 0 = not said; and what was wrong with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    try:
        writer.write(make_request(options, stream=stream))
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    release = int(lines.get(b"x-sluice-release", b"0"))
    if b" 200 " not in head[:16]:
        return release, (head[:40] + b" " + body[:160]).decode("utf-8", "replace")
    whole = body.endswith(b"0\r\n\r\n") and b"[DONE]" in body[-200:] if stream else b'"usage"' in body
    return release, "" if whole else "the answer is not whole"


def make_request(options: argparse.Namespace, *, stream: bool) -> bytes:
    messages = [
        {"role": "user", "content": f"Session {random.random()}: tell me about the weather in Paris."}
    ]
    tokens = STREAM_TOKENS if stream else PLAIN_TOKENS
    body = json.dumps(
        {"model": options.model, "messages": messages, "max_tokens": tokens, "stream": stream}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {options.key}\r\n"
        f"content-type: application/json\r\nx-sluice-session: {random.getrandbits(48):x}\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--plains", type=int, default=6)
    options = parser.parse_args()
    options.over = False
    uvloop.run(run(options))


if __name__ == "__main__":
    main()
