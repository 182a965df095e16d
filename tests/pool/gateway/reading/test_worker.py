"""The reader's side, in this process: questions in, answers out."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from pool.gateway.reading import frames
from pool.gateway.reading.prompt import measures_of
from pool.gateway.reading.worker import Worker
from tests.pool.gateway.reading.conftest import Files, chat_body

CHAT = "/v1/chat/completions"


def ask(worker: Worker, question: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
    return worker.answer(question, bytearray(body))[0]


def load(worker: Worker, files: Files, folder: Path, **changes: Any) -> dict[str, Any]:
    files.write_to(folder)
    tokenizer, template = files.pair
    question = {"do": "load", "tokenizer": tokenizer, "template": template, "folder": str(folder)}
    return ask(worker, {**question, "keep": [[tokenizer, template]], **changes})


def test_a_tokenizer_is_loaded_measured_and_counts(files: Files, tmp_path: Path) -> None:
    worker = Worker()

    measures = measures_of(load(worker, files, tmp_path)["measures"])

    question = {"do": "count", "tokenizer": files.pair[0], "template": files.pair[1], "path": CHAT}
    assert ask(worker, question, chat_body("abc")) == {"tokens": 22}
    assert measures.weights[0] == pytest.approx(1.2, abs=0.1)


def test_a_tokenizer_that_is_wanted_no_more_makes_room(files: Files, tmp_path: Path) -> None:
    worker = Worker()
    load(worker, files, tmp_path)

    load(worker, files, tmp_path, template=None, keep=[[files.pair[0], None]])

    question = {"do": "count", "tokenizer": files.pair[0], "template": files.pair[1], "path": CHAT}
    assert ask(worker, question, chat_body("abc")) == {"failure": "KeyError"}


def test_settings_reach_the_guards() -> None:
    worker = Worker()
    ask(worker, {"do": "configure", "settings": {"m": {}}, "measures": {"m": [[1.0] * 9, 0.0, 0.0]}})

    answer, payload = worker.answer({"do": "read", "path": CHAT}, bytearray(chat_body("a\x00b")))

    assert answer["rewritten"]
    assert answer["reading"]["changed"] == ("control_characters",)
    assert json.loads(payload)["messages"][0]["content"] == "ab"


def test_a_body_that_goes_on_as_it_came_is_not_sent_back() -> None:
    answer, payload = Worker().answer({"do": "read", "path": CHAT}, bytearray(chat_body("ab")))

    assert (answer["rewritten"], payload) == (False, b"")


def test_no_failure_quotes_a_prompt() -> None:
    worker = Worker()

    refused = ask(worker, {"do": "read", "path": CHAT}, b'{"model":"m","secret')
    broken = ask(worker, {"do": "count", "tokenizer": "a", "template": None, "path": CHAT}, b"secret")

    assert refused["refusal"]["code"] == "invalid_request"
    assert broken == {"failure": "KeyError"}
    assert "secret" not in str(refused)


def test_what_cannot_be_counted_says_so(files: Files, tmp_path: Path) -> None:
    worker = Worker()
    load(worker, files, tmp_path)

    question = {"do": "count", "tokenizer": files.pair[0], "template": files.pair[1], "path": CHAT}

    assert ask(worker, question, b"[]") == {"failure": "not_countable"}


def test_frames_arrive_whole_and_an_end_is_seen() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, {"a": 1}, b"payload")
        frames.send(ours, {"b": 2})
        ours.sendall(frames.pack({"c": 3}, 10))
        ours.shutdown(socket.SHUT_WR)

        assert frames.receive(theirs) == ({"a": 1}, bytearray(b"payload"))
        assert frames.receive(theirs) == ({"b": 2}, bytearray())
        assert frames.receive(theirs) is None
        assert frames.receive(theirs) is None
