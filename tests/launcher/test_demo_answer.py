import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from launcher.demo_answer import NoAnswer, describe_replica, wait_for_answer
from launcher.progress import Step
from launcher.rest import CallFailed, ask_model, call, list_replicas


class Answers(BaseHTTPRequestHandler):
    """Console and gateway in one: answers by path from a table, remembering the last request."""

    table: dict[str, tuple[int, Any]] = {}
    authorization = ""

    def do_GET(self) -> None:
        type(self).authorization = self.headers["Authorization"]
        status, body = self.table.get(self.path, (404, {"error": {"code": "not_found"}}))
        payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    Answers.table = {}
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def make_replica(phase: str, **fields: object) -> dict[str, object]:
    return {"id": "r1", "model": "smollm2", "phase": phase, **fields}


def wait(url: str) -> str:
    return wait_for_answer(
        web_url=url, token="slt_x", gateway_url=url, key="sk-x", step=Step("demo"), is_stopping=lambda: False
    )


def test_a_ready_replica_is_asked_through_the_gateway(url: str) -> None:
    Answers.table["/api/v1/replicas/"] = (200, {"results": [make_replica("ready")], "next": None})
    Answers.table["/v1/chat/completions"] = (200, {"choices": [{"message": {"content": "Paris."}}]})

    assert wait(url) == "Paris."
    assert Answers.authorization == "Bearer sk-x"


def test_a_replica_that_cannot_start_ends_the_wait_with_its_reason(url: str) -> None:
    failed = make_replica(
        "failed", retryable=False, reason="kv_too_small", reason_text="The KV cache is too small"
    )
    Answers.table["/api/v1/replicas/"] = (200, {"results": [failed], "next": None})

    with pytest.raises(NoAnswer, match="The KV cache is too small"):
        wait(url)


def test_replicas_of_the_past_are_left_out(url: str) -> None:
    Answers.table["/api/v1/replicas/"] = (
        200,
        {"results": [make_replica("stopped"), make_replica("loading")]},
    )

    assert [replica["phase"] for replica in list_replicas(url, "slt_x")] == ["loading"]


def test_what_a_replica_does_is_told_in_words() -> None:
    assert describe_replica(make_replica("loading", stage="weights")) == "replica r1 is loading (weights)"
    assert describe_replica(make_replica("pending")) == "replica r1 is pending"


@pytest.mark.parametrize("answer", [(503, {"error": {}}), (200, "no json"), (200, [])])
def test_a_bad_answer_is_a_failed_call(url: str, answer: tuple[int, Any]) -> None:
    Answers.table["/v1/chat/completions"] = answer

    with pytest.raises(CallFailed):
        ask_model(url, "sk-x", "smollm2")


def test_nobody_at_the_address_is_a_failed_call() -> None:
    with pytest.raises(CallFailed, match="does not answer"):
        call("http://127.0.0.1:9/", token="x")
