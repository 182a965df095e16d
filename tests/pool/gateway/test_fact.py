"""The fact of a request: its stages follow each other, and it says what stood in its way."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.domain.histogram import bucket_of
from pool.telemetry.facts import fold
from tests.pool.gateway.rig import CHAT, Rig, chat_body, chat_request, make_release, make_table

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
ELSEWHERE = ipaddress.ip_network("203.0.113.0/24")


async def ask_one(rig: Rig, **fields: Any) -> dict[str, Any]:
    await rig.ask(**fields)
    (fact,) = rig.gateway.plane.facts.take(10)
    return fact


def sum_stages(fact: dict[str, Any]) -> float:
    return float(
        sum(fact[name] for name in ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s"))
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_the_stages_fill_the_time_from_end_to_end(rig: Rig, stream: bool) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(gap_s=0.005, first_s=0.02))))

    fact = await ask_one(rig, stream=stream)

    assert sum_stages(fact) == pytest.approx(fact["e2e_s"], abs=1e-6)
    assert fact["first_byte_s"] >= 0.019  # a sleep of 20 ms, by clocks that round
    assert (fact["ttft_s"] is not None) is stream
    assert fact["stream_s"] == 0.0


async def test_telemetry_finds_all_that_it_reads(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    fact = await ask_one(rig, stream=True)

    folded = fold([fact])
    (record,), (cell,) = folded.records, folded.cells.values()
    assert folded.unreadable == 0
    assert set(cell.stages) == {"queue", "ttft", "itl", "e2e", "per_token"}
    named = ("model", "lane", "replica", "node", "key", "tier", "label", "finish_reason", "tries")
    assert [name for name in named if not getattr(record, name)] == []
    timed = (
        "tokenize_s",
        "queue_s",
        "first_byte_s",
        "decode_s",
        "stream_s",
        "ttft_s",
        "e2e_s",
        "longest_gap_s",
    )
    assert [name for name in timed if getattr(record, name) is None] == []
    counted = (
        "release",
        "wished_release",
        "attempts",
        "chunks",
        "bytes_out",
        "prompt_tokens",
        "output_tokens",
    )
    assert [name for name in counted if not getattr(record, name)] == []


async def test_requests_of_one_session_have_one_number_where_there_is_a_choice(rig: Rig) -> None:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2")
    releases = (make_release(1, first), make_release(2, second))
    await rig.serve(make_table(*releases, weights={1: 50, 2: 50}))

    same = [await ask_one_of(rig, "a") for _ in range(2)]
    other = await ask_one_of(rig, "b")
    rig.apply(make_table(*releases, weights={1: 100}, version=2))
    alone = await ask_one_of(rig, "a")

    assert same[0] == same[1]
    assert same[0] != other
    assert other is not None
    assert 0 <= other < 2**31
    assert alone is None


async def ask_one_of(rig: Rig, session: str) -> int | None:
    fact = await ask_one(rig, headers={"x-sluice-session": session})
    (record,) = fold([fact]).records
    assert record.session == fact["session"]
    return record.session


async def test_gaps_come_in_the_buckets_of_telemetry(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(gap_s=0.01, chunks=20))))

    fact = await ask_one(rig, stream=True)

    sum_s, counts = fact["gaps"]
    assert sum(counts.values()) >= 19
    assert bucket_of(fact["longest_gap_s"]) == max(counts)
    assert sum_s == pytest.approx(fact["decode_s"], rel=0.2)


async def test_a_second_try_says_what_became_of_the_first(rig: Rig) -> None:
    dying = await rig.start_engine("r1", die_at=0)
    await rig.serve(make_table(make_release(1, dying)))
    rig.apply(make_table(make_release(1, dying, await rig.start_engine("r2")), version=2))
    facts = [await ask_one(rig) for _ in range(6)]

    (fact,) = [fact for fact in facts if fact["attempts"] == 2]

    (first, sent_s, fault), (second, later_s, end) = fact["tries"]
    assert (first, fault, second, end) == ("r1", "lost", "r2", "ok")
    assert 0 <= sent_s <= later_s <= fact["e2e_s"]
    assert all(len(fact["tries"]) == 1 for fact in facts if fact["attempts"] == 1)


async def test_the_last_try_of_a_failure_bears_its_fault(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(close_at=3))))

    fact = await ask_one(rig, stream=True)

    assert [(try_[0], try_[2]) for try_ in fact["tries"]] == [("r1", "broken")]
    assert (fact["finish_reason"], fact["flags"]) == ("", [])


async def test_what_waited_in_the_queue_says_for_what(rig: Rig) -> None:
    engine = await rig.start_engine(gap_s=0.01, chunks=10)
    await rig.serve(make_table(make_release(1, engine), lane={"concurrency": 1, "adaptive": False}))

    await asyncio.gather(*(rig.ask(stream=True) for _ in range(3)))

    first, *others = rig.gateway.plane.facts.take(10)
    assert first["waits"] == []
    waits = [wait for fact in others for wait in fact["waits"]]
    assert {reason for reason, _ in waits} <= {"lane_limit", "queue"}
    assert "lane_limit" in {reason for reason, _ in waits}
    assert all(fact["queue_s"] == pytest.approx(fact["waits"][0][1], abs=0.01) for fact in others)


async def test_who_waited_in_vain_counts_in_the_queue_too(rig: Rig) -> None:
    engine = await rig.start_engine(gap_s=0.05, chunks=20)
    lane = {"concurrency": 1, "adaptive": False, "queue_timeout_s": 0.1}
    await rig.serve(make_table(make_release(1, engine), lane=lane))
    holder = await rig.connect()
    holder.send(chat_request(stream=True))
    await rig.until(lambda: rig.engines["r1"].tokens)

    fact = await ask_one(rig)

    assert (fact["outcome"], fact["replica"], fact["tries"]) == ("queue_timeout", None, [])
    assert fact["queue_s"] >= 0.1
    assert fact["waits"][0][0] == "lane_limit"


async def test_an_equal_request_says_that_it_waited_for_the_other(rig: Rig) -> None:
    engine = await rig.start_engine(err_s=0.0, first_s=0.05)
    settings = ModelSettings(coalesce=True)
    await rig.serve(make_table(make_release(1, engine), settings=settings))

    await asyncio.gather(rig.ask(temperature=0), rig.ask(temperature=0))

    facts = rig.gateway.plane.facts.take(10)
    (follower,) = [fact for fact in facts if fact["from_cache"]]
    assert [reason for reason, _ in follower["waits"]] == ["equal_request"]
    assert (follower["queue_s"], follower["tries"]) == (None, [])


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("asked", [True, False])
async def test_an_answer_cut_by_its_limit_says_so(rig: Rig, path: str, stream: bool, asked: bool) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    body = chat_body() if path == CHAT else {"model": "m", "prompt": "What?"}
    options = {"stream_options": {"include_usage": True}} if asked and stream else {}

    await rig.ask(body | {"stream": stream, "max_tokens": 3, **options}, path=path)
    await rig.ask(body | {"stream": stream, **options}, path=path)

    cut, whole = rig.gateway.plane.facts.take(10)
    assert (cut["finish_reason"], cut["flags"]) == ("length", ["cut_by_length"])
    assert (whole["finish_reason"], whole["flags"]) == ("stop", [])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_loop_is_flagged_and_a_long_answer_is_not(rig: Rig, stream: bool) -> None:
    text = " ".join(f"word{n}" for n in range(200))
    looping, varied = await rig.start_engine("r1", chunks=200), await rig.start_engine("r2", text=text)
    await rig.serve(make_table(make_release(1, looping)))
    first = await ask_one(rig, stream=stream)
    rig.apply(make_table(make_release(1, varied), version=2))

    second = await ask_one(rig, stream=stream)

    assert (first["flags"], second["flags"]) == (["repeated"], [])


async def test_the_time_that_the_client_did_not_read_is_told_apart(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(text="x" * 200_000, chunks=60))))
    client = await rig.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(chat_request(stream=True))
    await rig.until(lambda: any(one._slow for one in rig.gateway.plane.clients))
    await asyncio.sleep(0.1)

    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    await client.read_response()

    (fact,) = rig.gateway.plane.facts.take(10)
    assert fact["stream_s"] >= 0.09
    assert sum_stages(fact) == pytest.approx(fact["e2e_s"], abs=1e-6)


@pytest.mark.parametrize(
    ("proxies", "headers", "region"),
    [
        ((), {"x-client-region": "eu-central-1"}, "eu-central-1"),
        ((), {"x-client-region": "<script>alert(1)</script>"}, "script_alert_1_/script"),
        ((), {"x-client-region": "x" * 500}, "x" * 63),
        ((), {"cf-ipcountry": "DE"}, ""),
        ((), {}, ""),
        ((LOOPBACK,), {"cf-ipcountry": "DE"}, "DE"),
        ((LOOPBACK,), {"cf-ipcountry": "DE", "x-client-region": "eu"}, "eu"),
        ((ELSEWHERE,), {"cf-ipcountry": "DE", "x-client-region": "eu"}, ""),
    ],
)
async def test_the_region_is_what_a_trusted_header_says(
    rig: Rig, proxies: Any, headers: dict[str, str], region: str
) -> None:
    engine = await rig.start_engine()
    await rig.serve(make_table(make_release(1, engine)), trusted_proxies=proxies)
    client = await rig.connect()

    for _ in range(2):  # The second head is known by its bytes.
        client.send(chat_request(headers=headers))
        await client.read_response()

    assert [fact["region"] for fact in rig.gateway.plane.facts.take(10)] == [region] * 2


async def test_regions_of_one_process_are_bounded(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    regions = rig.gateway.plane.regions

    found = {regions.bound(f"region-{number}") for number in range(1000)}

    assert len(found) == 257
    assert regions.bound("region-0") == "region-0"
    assert regions.bound("one-more") == "other"
