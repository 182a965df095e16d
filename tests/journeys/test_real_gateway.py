"""What only a real vLLM can say of the gateway: its usage, its prefix cache, its queue, and clients unchanged."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.layout import ROOT
from pool.ports import EngineLoad
from tests.engine_runtime import find_test_runtime
from tests.fakes.tiny_model import make_tiny_model
from tests.journeys.installation import Answer, Installed, ask, wait_until
from tests.journeys.real import release, wait_ready
from tests.openai_client import chat, make_calls, text_of
from workers.engines.vllm import VllmDriver

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EXPECTED = "sluice_affinity_expected_tokens_total"
CACHED = "sluice_affinity_cached_tokens_total"
# vLLM's blocks on a CPU hold so many tokens.
BLOCK_TOKENS = 128
# A step of the tiny model takes milliseconds.
CANCEL_S = 3.0


@pytest.fixture(scope="module")
def twins(real: Installed) -> Installed:
    """The model `twins` with two ready replicas, so that there is a choice."""
    make_tiny_model(real.layout.data / "models" / "twins")
    release(real, "twins", replicas=2)
    real.post("models/twins/plans/", {"weights": {"1": 100}})
    wait_ready(real, "twins", count=2)
    wait_until(lambda: len(serving(real, "twins")) == 2, limit_s=10, what="the gateway knows both")
    return real


def serving(real: Installed, model: str) -> set[str]:
    answers = [real.chat(model=model, tokens=1) for _ in range(6)]
    return {answer.headers.get("x-sluice-replica", "") for answer in answers}


def body_for(path: str, *, model: str = "tiny", text: str = "Who are you?", **fields: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": model, **said, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields}


def ask_v1(real: Installed, path: str, body: dict[str, Any]) -> Answer:
    answer = ask(real.gateway_port, "POST", path, body, key=real.key, timeout_s=60)
    assert answer.status == 200, answer
    return answer


def events_of(answer: Answer) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.content.decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def read_load(real: Installed, row: dict[str, Any]) -> EngineLoad:
    """From the engine itself."""
    address = f"unix:{real.layout.sockets}/e/{row['id']}.{row['generation']}.sock"
    return VllmDriver().read_load(address, engine_key="")


def read_counter(real: Installed, name: str, model: str) -> float:
    """Of the gateway's own metrics."""
    text = ask(real.gateway_port, "GET", "/metrics").content.decode()
    found = re.findall(rf'^{name}\{{[^}}]*model="{model}"[^}}]*\}} (\S+)$', text, re.MULTILINE)
    return sum(float(value) for value in found)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_usage_of_a_stream_is_that_of_a_plain_answer_fc36(tiny: Installed, path: str) -> None:
    plain = ask_v1(tiny, path, body_for(path)).json["usage"]
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

    counted = events_of(ask_v1(tiny, path, body_for(path, **asked)))
    bare = events_of(ask_v1(tiny, path, body_for(path, stream=True)))

    said = counted[-1]["usage"]
    assert counted[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert said[name] == plain[name] > 0, name
    assert plain["completion_tokens"] == 12
    assert not any(event.get("usage") for event in bare)
    assert all(event["choices"] for event in bare)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_that_goes_takes_its_request_from_the_engine_fc07(
    tiny: Installed, path: str, stream: bool
) -> None:
    row = wait_ready(tiny, "tiny")
    connection = http.client.HTTPConnection("127.0.0.1", tiny.gateway_port, timeout=30)
    headers = {"Authorization": f"Bearer {tiny.key}", "Content-Type": "application/json"}
    body = body_for(path, stream=stream, max_tokens=900)
    connection.request("POST", path, body=json.dumps(body), headers=headers)
    wait_until(lambda: read_load(tiny, row).running == 1, limit_s=CANCEL_S, what="it runs")

    connection.close()

    gone_s = wait_until(lambda: read_load(tiny, row).running == 0, limit_s=CANCEL_S, what="it is cancelled")
    print(f"the engine was free after {gone_s:.2f} s")  # noqa: T201
    assert read_load(tiny, row).waiting == 0
    assert tiny.chat(model="tiny").status == 200


def test_a_prompt_that_comes_again_is_found_where_it_is_expected_fc41(twins: Installed) -> None:
    # A token a character, and the gateway counts blocks of 512 characters.
    text = "the same long beginning of many questions " * 20
    before = read_counter(twins, EXPECTED, "twins")
    found_before = read_counter(twins, CACHED, "twins")

    answers = [
        ask_v1(twins, CHAT, body_for(CHAT, model="twins", text=f"{text} {number}")) for number in range(8)
    ]

    usages = [answer.json["usage"] for answer in answers]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert len({answer.headers["x-sluice-replica"] for answer in answers}) == 1
    assert usages[0]["prompt_tokens"] > 3 * BLOCK_TOKENS, usages[0]
    assert cached[0] < BLOCK_TOKENS <= min(cached[1:]), cached
    # Counters are brought up to date each second.
    wait_until(lambda: read_counter(twins, CACHED, "twins") - found_before == sum(cached), limit_s=5)
    expected = read_counter(twins, EXPECTED, "twins") - before
    print(f"expected {expected:.0f} cached tokens, the engines found {cached}")  # noqa: T201
    assert 0.5 * expected < sum(cached) < 2 * expected


async def test_the_openai_client_works_unchanged(tiny: Installed) -> None:
    listed, plain, stream, completed, embedded, long = await make_calls(
        tiny.gateway_port,
        tiny.key,
        {"method": "models.list"},
        chat(model="tiny", max_tokens=6, temperature=0),
        chat(model="tiny", max_tokens=6, temperature=0, stream=True),
        {"method": "completions.create", "arguments": {"model": "tiny", "prompt": "Hi", "max_tokens": 4}},
        {"method": "embeddings.create", "arguments": {"model": "tiny", "input": "Hi"}},
        chat(model="tiny", messages=[{"role": "user", "content": "long " * 2000}]),
    )

    assert "tiny" in [model["id"] for model in listed["answer"]["data"]]
    assert text_of(stream) == plain["answer"]["choices"][0]["message"]["content"]
    assert completed["answer"]["object"] == "text_completion"
    # The engine's own refusal: this model makes no embeddings.
    assert (embedded["error"], embedded["status"]) in [("NotFoundError", 404), ("BadRequestError", 400)]
    assert (long["error"], long["code"]) == ("BadRequestError", "context_length_exceeded")


def test_vllms_own_benchmark_runs_unchanged(tiny: Installed, tmp_path: Path) -> None:
    folder = tiny.layout.data / "models" / "tiny"
    options = {
        "--backend": "openai-chat",
        "--base-url": f"http://127.0.0.1:{tiny.gateway_port}",
        "--endpoint": CHAT,
        "--model": "tiny",
        "--tokenizer": str(folder),
        "--dataset-name": "random",
        "--random-input-len": "100",
        "--random-output-len": "8",
        "--num-prompts": "10",
        "--request-rate": "5",
        "--result-filename": str(tmp_path / "result.json"),
    }
    words = [word for pair in options.items() for word in pair]

    done = subprocess.run(
        [find_test_runtime().interpreter, "-m", "bench._vllm_bench", *words, "--save-result"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENAI_API_KEY": tiny.key},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (10, 0)
    assert result["median_ttft_ms"] > 0
