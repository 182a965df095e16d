"""What the README promises: an answer, plain and streamed, and a console that tells how it came about."""

from __future__ import annotations

import json
import re
from datetime import datetime

import openai
from openai.types.chat import ChatCompletionMessageParam

from tests.journeys.installation import Installed, ask
from tests.journeys.streams import Stream

PROCESSES = {"valkey", "postgres", "web", "gateway", "control", "telemetry", "worker"}
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who are you?"}]


def test_a_plain_chat_is_answered_and_names_its_way(sluice: Installed) -> None:
    answer = sluice.chat(tokens=8)

    (replica,) = sluice.replicas(phase="ready")
    assert answer.status == 200
    assert answer.json["model"] == "smollm2"
    assert answer.json["choices"][0]["message"]["content"]
    assert answer.json["usage"]["completion_tokens"] == 8
    assert answer.headers["x-request-id"]
    assert answer.headers["x-sluice-release"] == "1"
    assert answer.headers["x-sluice-replica"] == replica["id"]
    assert "x-sluice-lane" in answer.headers


def test_a_streamed_chat_ends_with_done(sluice: Installed) -> None:
    stream = Stream(sluice, tokens=20)
    stream.finish()

    assert stream.ended_well
    words = [json.loads(event)["choices"] for event in stream.events[:-1]]
    assert "".join(one[0]["delta"].get("content") or "" for one in words if one).strip()


def test_the_openai_client_gets_both(sluice: Installed) -> None:
    url = f"http://127.0.0.1:{sluice.gateway_port}/v1"
    with openai.OpenAI(api_key=sluice.key, base_url=url, max_retries=0) as client:
        plain = client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=6)
        with client.chat.completions.create(
            model="smollm2", messages=MESSAGES, max_tokens=6, stream=True
        ) as stream:
            chunks = list(stream)
        models = [model.id for model in client.models.list()]

    assert plain.choices[0].message.content
    assert any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices == [] or chunks[-1].choices[0].finish_reason
    assert "smollm2" in models


def test_the_replica_shows_its_phases_with_times(sluice: Installed) -> None:
    (row,) = sluice.replicas(phase="ready")

    replica = sluice.get(f"replicas/{row['id']}/")

    phases = [change["phase"] for change in replica["history"]]
    assert phases[:4] == ["starting", "loading", "warming", "ready"]
    times = [datetime.fromisoformat(change["at"]) for change in replica["history"]]
    assert times == sorted(times)
    assert replica["replica"]["figures"]["warm_up"]["requests"] > 0
    assert replica["replica"]["pid"] == sluice.engines()[0].pid


def test_the_metrics_count_what_was_answered(sluice: Installed) -> None:
    sluice.chat()

    page = ask(sluice.gateway_port, "GET", "/metrics").content.decode()

    counted = re.findall(r"^sluice_requests_total\{(.*)\} (\S+)$", page, re.MULTILINE)
    assert any(
        'model="smollm2"' in labels and 'release="1"' in labels and float(n) >= 1 for labels, n in counted
    )
    for name in ("sluice_ttft_seconds_bucket", "sluice_e2e_seconds_count", "sluice_in_flight"):
        assert f"\n{name}{{" in page, name
    assert re.search(r"^sluice_routing_table_version\S* \d", page, re.MULTILINE)


def test_status_has_the_shape_of_the_contract(sluice: Installed) -> None:
    status = sluice.read_status()

    assert status["ready"] is True
    assert status["web_url"] == f"http://127.0.0.1:{sluice.web_port}"
    assert status["gateway_url"] == f"http://127.0.0.1:{sluice.gateway_port}"
    assert {process["name"] for process in status["processes"]} == PROCESSES
    for process in status["processes"]:
        assert {"name", "pid", "phase", "since"} <= set(process)
        assert process["phase"] == "running"
        datetime.fromisoformat(process["since"])
    (replica,) = status["replicas"]
    assert set(replica) == {"id", "model", "release", "lane", "phase", "reason", "pid"}
    assert (replica["model"], replica["release"], replica["phase"]) == ("smollm2", 1, "ready")
