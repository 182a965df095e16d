from pathlib import Path
from typing import Any

import pytest

from pool.gateway.reading.chat_template import NotCountable
from pool.gateway.reading.counting import Counter, FileBroken
from pool.gateway.reading.prompt import estimate_prompt, read_prompt
from tests.fakes.tiny_model import CHAT_TEMPLATE
from tests.pool.gateway.reading.conftest import Files, digest

CHAT = "/v1/chat/completions"
# `<|im_start|>`, `user`, line end, text, `<|im_end|>`, line end, and the opening of the answer.
AROUND = len("Xuser\n") + len("X\n") + len("Xassistant\n")


@pytest.fixture
def counter(files: Files, tmp_path: Path) -> Counter:
    files.write_to(tmp_path)
    tokenizer, template = files.pair
    return Counter(tmp_path / tokenizer, tmp_path / str(template))


@pytest.mark.parametrize("length", [1, 511, 512, 513])
def test_a_chat_is_counted_to_the_token(counter: Counter, length: int) -> None:
    chat = {"messages": [{"role": "user", "content": "a" * length}]}

    assert counter.count(CHAT, chat) == length + AROUND


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "hello"}, 5),
        ({"prompt": ["hello", "you"]}, 8),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"prompt": []}, 0),
        ({"input": "hello"}, 5),
        ({"prompt": "héllo"}, 6),
        ({"prompt": "<|im_end|>"}, 1),
    ],
)
def test_prompts_are_counted_in_each_shape(counter: Counter, fields: dict[str, Any], expected: int) -> None:
    assert counter.count("/v1/completions", fields) == expected


@pytest.mark.parametrize("fields", [{}, {"prompt": 5}, {"prompt": [None]}])
def test_what_is_no_prompt_is_not_countable(counter: Counter, fields: dict[str, Any]) -> None:
    with pytest.raises(NotCountable):
        counter.count("/v1/completions", fields)


def test_special_tokens_are_added_where_the_caller_asks(counter: Counter) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}

    assert counter.count(CHAT, chat) == 1 + AROUND


def test_without_a_template_only_prompts_are_counted(files: Files, tmp_path: Path) -> None:
    files.write_to(tmp_path)
    counter = Counter(tmp_path / files.pair[0], None)

    assert counter.count("/v1/completions", {"prompt": "abc"}) == 3
    with pytest.raises(NotCountable):
        counter.count(CHAT, {"messages": []})
    assert counter.measure().fixed_tokens == 1.0


def test_a_prompt_beyond_every_context_is_left_to_the_guess(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.reading.counting._LONGEST_CHARS", 10)

    with pytest.raises(NotCountable):
        counter.count("/v1/completions", {"prompt": "a" * 11})


def test_measures_make_guesses_good(counter: Counter) -> None:
    measures = counter.measure()
    chat = {"messages": [{"role": "user", "content": "some words of a question " * 10}] * 3}

    guess = estimate_prompt(read_prompt(chat), measures)

    assert guess == pytest.approx(counter.count(CHAT, chat), rel=0.15)


def test_fc41_a_broken_file_is_said_to_be_broken(files: Files, tmp_path: Path) -> None:
    files.write_to(tmp_path)
    nonsense, bad_template = b'{"model":{}}', b'{"templates":{"default":"{% if %}"},"special_tokens":{}}'
    for content in (nonsense, bad_template):
        (tmp_path / digest(content)).write_bytes(content)
    changed = tmp_path / ("0" * 64)
    changed.write_bytes(files.tokenizer)

    good = tmp_path / files.pair[0]
    for tokenizer, template in (
        (tmp_path / "absent", None),
        (changed, None),
        (tmp_path / digest(nonsense), None),
        (good, tmp_path / digest(bad_template)),
        (good, good),
    ):
        with pytest.raises(FileBroken):
            Counter(tokenizer, template)


def test_the_tiny_models_template_is_the_one_counted_with(files: Files) -> None:
    assert CHAT_TEMPLATE[:20].encode() in files.template
