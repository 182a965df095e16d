"""A tiny random model on a real vLLM, registered by REST, served through the gateway, and hurt."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.identity import find_session, list_pids
from tests.fakes.tiny_model import make_tiny_model, truncate_weights
from tests.journeys.installation import Installed, ask, read_proc, send, wait_until
from tests.journeys.real import SMALL, START_S, find_runtime, release, wait_ready
from tests.journeys.streams import Stream

pytestmark = pytest.mark.engine

# Three probes of five seconds and the eight seconds of silence before them.
HUNG_S = 60.0
PROFILED_S = 90.0


def wait_failed(real: Installed, model: str) -> dict[str, Any]:
    wait_until(lambda: real.replicas(model=model, phase="failed"), limit_s=START_S, what=f"{model} failed")
    return real.replicas(model=model, phase="failed")[0]


def session_of(row: dict[str, Any]) -> list[int]:
    return [pid for pid in list_pids() if find_session(pid) == row["pid"]]


def find_core(row: dict[str, Any]) -> int:
    return next(pid for pid in session_of(row) if b"EngineCore" in read_proc(pid, "cmdline"))


def endings(real: Installed, row: dict[str, Any]) -> list[str]:
    history = real.get(f"replicas/{row['id']}/")["history"]
    return [
        one["reason"]
        for one in history
        if one["phase"] == "failed" and one["generation"] == row["generation"]
    ]


def refused(real: Installed, path: str, body: object) -> dict[str, Any]:
    answer = real.call("POST", path, body)
    assert 400 <= answer.status < 500, answer
    error = answer.json["error"]
    assert isinstance(error, dict)
    return error


def test_a_real_model_answers_plain_and_streamed(tiny: Installed) -> None:
    plain = tiny.chat(model="tiny", tokens=8, ignore_eos=True)
    stream = Stream(tiny, model="tiny", tokens=20)
    stream.finish()

    assert plain.status == 200, plain
    assert plain.json["usage"]["completion_tokens"] == 8
    assert plain.headers["x-sluice-release"] == "1"
    assert stream.ended_well
    (row,) = tiny.replicas(model="tiny")
    figures = row["figures"]
    assert figures["printed"]["kv_cache_tokens"] == figures["predicted"]["kv_tokens"]
    assert figures["warm_up"]["requests"] > 0


def test_a_working_engine_is_profiled_and_goes_on(tiny: Installed) -> None:
    row = wait_ready(tiny, "tiny")
    path = f"replicas/{row['id']}/profiles/"
    number = tiny.post(path, {"steps": 20})["profile"]["id"]

    def is_over() -> bool:
        assert tiny.chat(model="tiny", tokens=100, ignore_eos=True).status == 200
        return tiny.get(f"{path}{number}/")["profile"]["phase"] in ("done", "failed")

    wait_until(is_over, limit_s=PROFILED_S, what="profiled")
    view = tiny.get(f"{path}{number}/")

    assert view["profile"]["phase"] == "done", view["profile"]
    assert (view["profile"]["generation"], view["profile"]["on_device"]) == (row["generation"], False)
    assert view["profile"]["steps_seen"] >= 20
    assert view["profile"]["shares"]["matrix_products"] > 0
    assert view["kernels"][0]["seconds"] > 0
    assert view["flame"]["children"]
    after = wait_ready(tiny, "tiny")
    assert (after["generation"], endings(tiny, row)) == (row["generation"], [])
    gateways = tiny.get("models/tiny/traffic-control/")
    assert '"hung"' not in json.dumps(gateways)


def test_an_engine_core_that_hangs_is_found_and_replaced_fc01(tiny: Installed) -> None:
    row = wait_ready(tiny, "tiny")
    session = session_of(row)
    send(find_core(row), signal.SIGSTOP)
    stream = Stream(tiny, model="tiny", tokens=50)

    found_s = wait_until(lambda: endings(tiny, row), limit_s=HUNG_S, what="the hang is found")
    stream.finish()
    wait_ready(tiny, "tiny", generation=row["generation"] + 1)

    print(f"the hang was found after {found_s:.0f} s")  # noqa: T201
    assert endings(tiny, row) == ["hung"]
    assert "[DONE]" not in stream.events
    assert not [pid for pid in session if find_session(pid) == row["pid"]]
    assert tiny.chat(model="tiny").status == 200


def test_a_killed_api_server_leaves_no_engine_core_fc03(tiny: Installed) -> None:
    row = wait_ready(tiny, "tiny")
    core = find_core(row)

    send(row["pid"], signal.SIGKILL)
    gone_s = wait_until(lambda: not session_of(row), limit_s=5, what="nothing of the engine is left")
    back_s = wait_until(
        lambda: wait_ready(tiny, "tiny", generation=row["generation"] + 1, limit_s=1), limit_s=START_S
    )

    print(f"gone after {gone_s:.1f} s, the next one ready after {back_s:.1f} s")  # noqa: T201
    assert endings(tiny, row) == ["killed"]
    assert not read_proc(core, "cmdline")
    assert tiny.chat(model="tiny").status == 200
    assert not tiny.zombies()


def test_a_third_crash_waits_for_an_operator_fc03(tiny: Installed) -> None:
    """A killed core takes its API server along; after three crashes within ten minutes nothing restarts by itself."""
    row = wait_ready(tiny, "tiny")

    send(find_core(row), signal.SIGKILL)
    failed = wait_failed(tiny, "tiny")

    assert not session_of(row)
    assert (failed["generation"], failed["retryable"]) == (row["generation"], False)
    assert failed["reason_text"]
    tiny.post(f"replicas/{row['id']}/restart/", {})
    wait_ready(tiny, "tiny", generation=row["generation"] + 1)
    assert tiny.chat(model="tiny").status == 200


def test_a_shard_that_was_cut_is_refused_by_its_name_fc76(real: Installed) -> None:
    truncate_weights(make_tiny_model(real.layout.data / "models" / "cut"))
    real.post("models/", {"name": "cut"})

    error = refused(real, "models/cut/versions/", {"source": "path:cut"})

    assert "model.safetensors" in error["message"]


def test_a_shard_cut_after_its_registration_is_not_started_fc76(real: Installed) -> None:
    folder = make_tiny_model(real.layout.data / "models" / "later")
    release(real, "later")
    truncate_weights(folder)

    real.post("models/later/releases/1/scale/", {"replicas": 1})

    wait_until(lambda: tells(real, "later", "model.safetensors"), limit_s=90, what="the file is named")
    assert not real.replicas(model="later", phase="ready")


def tells(real: Installed, model: str, word: str) -> bool:
    texts = [json.dumps(real.get(f"models/{model}/versions/v1/"))]
    texts += [row["reason_text"] for row in real.replicas(model=model)]
    return any(word in text for text in texts[1:]) or ("broken" in texts[0] and word in texts[0])


def test_code_of_a_repository_is_refused_unless_it_is_approved_fc52(real: Installed) -> None:
    make_tiny_model(real.layout.data / "models" / "own-code", auto_map=True)
    real.post("models/", {"name": "own-code"})

    error = refused(real, "models/own-code/versions/", {"source": "path:own-code"})

    assert error["code"] == "remote_code"
    approved = {"source": "path:own-code", "approve_remote_code": True}
    assert real.call("POST", "models/own-code/versions/", approved).status == 201
    rows = real.get("audit/?limit=50")["results"]
    assert any(row["details"].get("remote_code_approved") is True for row in rows)


def test_a_context_that_does_not_fit_says_how_much_does_fc33(real: Installed) -> None:
    make_tiny_model(real.layout.data / "models" / "tight")
    real.post("models/", {"name": "tight", "lanes": [{"name": "all"}]})
    real.post("models/tight/versions/", {"source": "path:tight", "name": "v1"})
    real.post(
        "profiles/",
        {"name": "tight", "settings": SMALL | {"max_model_len": 2048, "kv_cache_memory_bytes": 1 << 20}},
    )

    wish = {"version": "v1", "profile": "tight", "runtime": find_runtime(real), "replicas": 1}
    error = refused(real, "models/tight/releases/", wish)

    text = json.dumps(error)
    # 1 MiB holds 1,024 tokens of 1 KiB; the reserve of a fifth is kept free.
    assert "2048" in text.replace(",", ""), text
    assert "max_model_len" in text


def test_a_model_without_a_template_serves_completions_only_fc75(real: Installed) -> None:
    make_tiny_model(real.layout.data / "models" / "base", chat_template=False)
    release(real, "base", replicas=1)
    real.post("models/base/plans/", {"weights": {"1": 100}})

    wait_ready(real, "base")

    body = {"model": "base", "prompt": "Once", "max_tokens": 4}
    done = ask(real.gateway_port, "POST", "/v1/completions", body, key=real.key, timeout_s=30)
    chat = real.chat(model="base")
    assert done.status == 200, done
    assert chat.status == 400, chat
    assert "template" in chat.json["error"]["message"]
    assert real.get("models/base/versions/v1/")["facts"]["has_chat_template"] is False
    real.post("models/base/releases/1/scale/", {"replicas": 0})
    wait_until(lambda: not real.replicas(model="base", phase="ready"), limit_s=30)


def test_bad_sources_are_refused_and_lose_nothing_fc51(real: Installed, tmp_path: Path) -> None:
    (real.layout.data / "models" / "way-out").symlink_to(make_tiny_model(tmp_path / "outside"))
    real.post("models/", {"name": "strange"})

    for source in (
        "path:../secrets",
        "path:/etc",
        "path:nowhere",
        "path:way-out",
        "ftp:x",
        "path:a\0b",
        "package:no-such",
    ):
        error = refused(real, "models/strange/versions/", {"source": source})
        assert error["message"], source
    assert real.get("models/strange/versions/")["results"] == []


def test_nothing_is_left_of_engines_that_ended(tiny: Installed) -> None:
    ready = {row["pid"] for row in tiny.replicas(phase="ready")}

    wait_until(lambda: {engine.pid for engine in tiny.engines()} == ready, limit_s=30)
    assert not tiny.zombies()
