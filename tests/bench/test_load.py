"""The load benchmark against a gateway with fake engines: what it sends, counts and prints."""

import asyncio
import io
import json
import random
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import load
from bench._bar import Bar
from bench._installation import NothingRuns, Target, find_target
from bench._stream_client import NO_LANE, Outcome, ask
from bench.load import Plan, Tally, make_plan, make_request, read_mix, report, run_load
from launcher.credentials import ensure_credentials
from launcher.layout import Layout
from launcher.locks import hold_lock
from launcher.record import SupervisorRecord, write_record
from pool.domain.gateway_settings import LaneSettings
from pool.domain.routing_table import LaneRoute
from tests.pool.gateway.rig import KEY, Rig, chat_body, make_release, make_table

PLAN = Plan("m", rate=50.0, seconds=0.6, short_tokens=20, long_tokens=400, output_tokens=4, timeout_s=10.0)
LANES = (
    LaneRoute("short", 100, LaneSettings(concurrency=64)),
    LaneRoute("long", None, LaneSettings(concurrency=64)),
)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    await made.stop()


async def serve(rig: Rig, **switches: Any) -> Target:
    await rig.serve(make_table(make_release(1, await rig.start_engine(**switches)), lanes=LANES))
    return Target(f"http://127.0.0.1:{rig.gateway.port}", KEY)


async def ask_one(target: Target, **fields: Any) -> Outcome:
    fields = chat_body(stream=True, stream_options={"include_usage": True}, **fields)
    return await ask(target, fields, due_s=time.perf_counter(), timeout_s=2.0)


def figures_of(printed: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {line["bench"] for line in lines} == {"load"}
    return {line["figure"]: line["value"] for line in lines}


async def test_both_kinds_are_sent_at_the_stated_rate_and_counted_by_lane(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    target = await serve(rig)

    tally = await run_load(target, PLAN, Bar(io.StringIO()))
    assert report(PLAN, tally)

    figures = figures_of(capsys.readouterr().out)
    assert 15 <= figures["requests"] <= 50
    assert figures["short_requests"] > figures["long_requests"] > 0
    assert figures["requests"] == figures["short_requests"] + figures["long_requests"] == tally.answered
    assert figures["short_error_ratio"] == figures["long_error_ratio"] == 0.0
    assert figures["tokens_per_s"] > 0
    assert 0 < figures["short_ttft_p50_s"] <= figures["short_ttft_p95_s"] <= figures["short_ttft_p99_s"]
    assert figures["short_itl_p50_s"] >= 0
    assert figures["send_delay_p99_s"] >= 0


async def test_an_answer_is_timed_token_by_token(rig: Rig) -> None:
    target = await serve(rig, first_s=0.1, gap_s=0.05, chunks=4)

    outcome = await ask_one(target)

    assert (outcome.code, outcome.status, outcome.lane) == ("", 200, "short")
    assert outcome.output_tokens == 4
    assert outcome.prompt_tokens > 0
    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= 0.1
    assert len(outcome.gaps_s) == 3
    assert min(outcome.gaps_s) > 0.02


@pytest.mark.parametrize(
    ("switches", "fields", "code"),
    [
        ({}, {"model": "nobody"}, "model_not_found"),
        ({"close_at": 2}, {}, "stream_interrupted"),
        ({"hang_after": 0}, {}, "client_timeout"),
    ],
)
async def test_how_a_request_failed_is_told_by_its_code(
    rig: Rig, switches: dict[str, Any], fields: dict[str, Any], code: str
) -> None:
    outcome = await ask_one(await serve(rig, **switches), **fields)

    assert outcome.code == code


async def test_a_refusal_tells_its_lane(rig: Rig) -> None:
    lanes = (replace(LANES[0], settings=LaneSettings(requests_per_min=1)), LANES[1])
    await rig.serve(make_table(make_release(1, await rig.start_engine()), lanes=lanes))
    target = Target(f"http://127.0.0.1:{rig.gateway.port}", KEY)

    outcomes = [await ask_one(target) for _ in range(2)]

    assert [(one.lane, one.code) for one in outcomes] == [("short", ""), ("short", "rate_limited")]


async def test_without_a_gateway_every_request_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    tally = await run_load(Target("http://127.0.0.1:9", KEY), PLAN, Bar(io.StringIO()))

    assert not report(PLAN, tally)
    figures = figures_of(capsys.readouterr().out)
    assert figures["errors_connection_lost"] == figures[f"{NO_LANE}_requests"] == tally.sent > 0


async def test_a_stream_without_its_end_is_cut() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n: wait\n\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        outcome = await ask_one(Target(f"http://127.0.0.1:{port}", KEY))

    assert (outcome.code, outcome.gaps_s) == ("cut", [])
    assert outcome.ttft_s is not None


def test_the_mix_is_short_to_long_and_no_two_prompts_begin_alike() -> None:
    draw = random.Random(1)
    prompts = [make_request(PLAN, draw)["messages"][0]["content"] for _ in range(1_000)]

    long = sum(len(prompt.split()) > 200 for prompt in prompts)
    assert 250 < long < 350
    assert len({prompt[:60] for prompt in prompts}) > 990
    assert read_mix("7:3") == (7.0, 3.0)
    for text in ("7", "0:0", "-1:2", "a:b"):
        with pytest.raises(ValueError, match=r".+"):
            read_mix(text)


def test_long_prompts_fit_the_models_context() -> None:
    options = Namespace(
        rate=1.0, seconds=60.0, mix=(1.0, 1.0), short_tokens=9, long_tokens=None, output_tokens=8,
        timeout=9.0, seed=1, quick=True,
    )  # fmt: skip

    assert make_plan(options, "m", 8192).long_tokens == 4096
    assert make_plan(options, "m", None).long_tokens == load.MOST_LONG_TOKENS
    assert make_plan(options, "m", 8192).seconds == load.QUICK_S


def test_the_installation_of_the_data_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_GATEWAY_KEY", raising=False)
    monkeypatch.delenv("SLUICE_GATEWAY_KEY_FILE", raising=False)
    layout = Layout(tmp_path / "var")
    with pytest.raises(NothingRuns, match="No gateway is known"):
        find_target(data=str(layout.data))
    layout.create()
    key = ensure_credentials(layout.secrets).read("gateway_key")
    record = SupervisorRecord(1, 1, "", "http://web", "http://127.0.0.1:8080", "sim", "ready", "", ())
    write_record(layout.record, record)

    with hold_lock(layout.lock):
        assert find_target(data=str(layout.data)) == Target("http://127.0.0.1:8080", key)
    named = find_target(url="https://elsewhere/v1", key="sk-x", data=str(layout.data))
    assert named == Target("https://elsewhere", "sk-x")
    with pytest.raises(NothingRuns, match="No key is known"):
        find_target(url="https://elsewhere", data=str(layout.data))


def test_the_bar_says_how_far_it_is() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    live, log = Terminal(), io.StringIO()
    for out in (live, log):
        bar = Bar(out)
        bar.show(0.5, "half")
        bar.show(2.0, "over")
        bar.end()

    assert live.getvalue().endswith(f"[{'#' * 30}] 100%  over\n")
    assert log.getvalue() == f"[{'#' * 15}{'.' * 15}]  50%  half\n"


def test_errors_are_counted_by_code() -> None:
    tally = Tally()
    tally.note(Outcome(lane="short", status=429, code="queue_full"))
    tally.note(Outcome(lane="short", status=200, ttft_s=0.1))

    assert (tally.failed, tally.answered, tally.errors["queue_full"]) == (1, 1, 1)
    assert tally.lanes["short"].errors == 1
