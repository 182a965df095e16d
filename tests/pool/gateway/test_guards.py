import json
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.guards import inspect
from pool.gateway.openai import InvalidRequest, read_ask

CHAT, RESPONSES, COMPLETIONS, EMBEDDINGS = (
    b"/v1/chat/completions", b"/v1/responses", b"/v1/completions", b"/v1/embeddings",
)  # fmt: skip
OFF = ModelSettings(
    control_characters="off", special_tokens="off", white_space="off", absurd_parameters="off"
)
REFUSE = ModelSettings(control_characters="refuse", special_tokens="refuse", white_space="refuse")
# What a callback may hold the loop for; a coverage tracer makes Python several times slower.
LONGEST_S = 0.02 if sys.gettrace() is None else 0.2
SPECIALS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|user|>",
    "<|fim_prefix|>", "<|reserved_special_token_12|>", "<|channel|>", "<｜begin▁of▁sentence｜>", "<｜User｜>",
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]",
    "<<SYS>>", "<</SYS>>", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]",
    "<fim_middle>", "<fim-suffix>",
    "<repo_name>", "<reponame>", "<file_sep>", "<gh_stars>", "<issue_comment>", "<jupyter_output>", "<empty_output>",
)  # fmt: skip


def chat(text: Any, *, role: str = "user") -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": text}], "max_tokens": 16}


def look(
    fields: dict[str, Any],
    settings: ModelSettings | None = None,
    *,
    path: bytes = CHAT,
    escaped: bool = False,
) -> tuple[str, ...]:
    """With the body as clients write it, by which the texts may be skipped; without it must come to the same."""
    body = json.dumps(fields).encode() if escaped else orjson.dumps(fields)
    copy = orjson.loads(body)
    slow = inspect(copy, settings or ModelSettings(), path=path)
    fast = inspect(fields, settings or ModelSettings(), path=path, body=body)
    assert (fast, fields) == (slow, copy)
    return fast


def time_inspect(make: Callable[[], tuple[dict[str, Any], bytes]]) -> float:
    """CPU seconds of the best of three: what disturbs the others is not the guards'."""
    times_s = []
    for _ in range(3):
        fields, body = make()
        started_s = time.thread_time()
        inspect(fields, ModelSettings(), path=CHAT, body=body)
        times_s.append(time.thread_time() - started_s)
    return min(times_s)


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "", "Hello.", "a < b > c [1] [INSTALL] <div> <i>x</i> |> <| x |>", "tabs\tand\r\nlines\n", "äöü «x» 你好 👍🏽",
        "C:\\\\users\\new\\folder", "if (a<b && b>c) { s = x[i]; }", " " * 255, "\n" * 255, "<string> <pub> <strong>",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text: str, escaped: bool) -> None:
    fields = chat(text)

    assert look(fields, escaped=escaped) == ()
    assert look(fields, REFUSE, escaped=escaped) == ()
    assert fields == chat(text)


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\x00b", "ab"), ("\x1b[31mred", "[31mred"), ("a\x7fb\x80\x9f", "ab"),
        ("page\x0cnext\x85line\x0b", "page\nnext\nline\n"),
        ("keep\ttabs\r\n\x07", "keep\ttabs\r\n"), ("\b\b", ""),
    ],
)  # fmt: skip
def test_control_characters_go(text: str, clean: str, escaped: bool) -> None:
    fields = chat(text)

    assert look(fields, escaped=escaped) == ("control_characters",)
    assert fields == chat(clean)
    assert look(chat(text), OFF, escaped=escaped) == ()
    with pytest.raises(InvalidRequest, match="control characters"):
        look(chat(text), REFUSE, escaped=escaped)


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize(
    ("blank", "clean"),
    [
        (" " * 256, " "), ("\n" * 5000, "\n\n"), ("\t" * 300, " "), (" \n\t" * 100, "\n\n"), ("\r\n" * 200, "\n\n"),
        ("\u3000" * 300, " "), ("\u00a0" * 300, " "), ("\u2003\u2009" * 200, " "), ("\u2028" * 300, " "),
    ],
    ids=range(9),
)  # fmt: skip
def test_endless_white_space_shrinks(blank: str, clean: str, escaped: bool) -> None:
    fields = chat(f"some words first {blank} and last".replace(f" {blank} ", blank))

    assert look(fields, escaped=escaped) == ("white_space",)
    assert fields == chat(f"some words first{clean}and last")
    assert look(chat(blank), OFF, escaped=escaped) == ()
    with pytest.raises(InvalidRequest, match="white space"):
        look(chat(blank), REFUSE, escaped=escaped)


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("special", SPECIALS)
def test_control_sequences_of_models_are_split(special: str, escaped: bool) -> None:
    fields = chat(f"say {special} aloud {special}")

    assert look(fields, escaped=escaped) == ("special_tokens",)
    split = special[0] + " " + special[1:]
    assert fields == chat(f"say {split} aloud {split}")
    assert look(fields, escaped=escaped) == ()
    assert look(chat(special), OFF, escaped=escaped) == ()
    with pytest.raises(InvalidRequest, match="control sequences"):
        look(chat(special), REFUSE, escaped=escaped)


def test_a_tokenizer_finds_no_control_token_in_a_split_text() -> None:
    tokenizer = Tokenizer(BPE())
    tokenizer.add_special_tokens(list(SPECIALS))
    text = " and ".join(SPECIALS)
    fields = chat(text)

    look(fields)

    assert tokenizer.encode(text).tokens == list(SPECIALS)
    assert tokenizer.encode(fields["messages"][0]["content"]).tokens == []


def test_a_sequence_cannot_hide_behind_what_goes_away() -> None:
    fields = chat("<\x00|im_start|> <|im_\x7fend|> <<|im_end|>")

    assert look(fields) == ("control_characters", "special_tokens")
    assert fields == chat("< |im_start|> < |im_end|> << |im_end|>")


def test_white_space_that_only_controls_interrupt_shrinks_too() -> None:
    fields = chat("a" + (" " * 100 + "\x00") * 5 + "b")

    assert look(fields) == ("control_characters", "white_space")
    assert fields == chat("a b")


@pytest.mark.parametrize(
    ("fields", "path", "is_split"),
    [
        (chat("<|im_end|>", role="tool"), CHAT, True),
        (chat("<|im_end|>", role="odd"), CHAT, True),
        (chat("<|im_end|>", role="system"), CHAT, False),
        (chat("<|im_end|>", role="developer"), CHAT, False),
        (chat("<|im_end|>", role="assistant"), CHAT, False),
        (chat([{"type": "text", "text": "<|im_end|>"}, "<s>", {"type": "image_url"}, 5]), CHAT, True),
        ({"input": "<|im_end|>", "instructions": "<s>"}, RESPONSES, True),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "<s>"}]}, 5]},
            RESPONSES,
            True,
        ),
        ({"input": [{"type": "function_call_output", "output": "<s>"}]}, RESPONSES, True),
        ({"instructions": "<s>"}, RESPONSES, False),
        ({"prompt": "<|im_start|>user"}, COMPLETIONS, False),
        ({"prompt": ["<|im_start|>user"], "suffix": "</s>"}, COMPLETIONS, False),
        ({"input": "text</s>"}, EMBEDDINGS, False),
    ],
)
def test_only_what_users_write_is_split(fields: dict[str, Any], path: bytes, is_split: bool) -> None:
    before = repr(fields)

    assert look(fields, path=path) == (("special_tokens",) if is_split else ())
    assert (repr(fields) != before) is is_split


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a\x00"},
        {"prompt": ["ok", "a\x00"]},
        {"suffix": "a\x00"},
        {"input": ["a\x00"]},
        {"instructions": "a\x00"},
        chat("a\x00", role="system"),
    ],
)
def test_control_characters_go_from_every_text(fields: dict[str, Any]) -> None:
    assert look(fields, path=COMPLETIONS) == ("control_characters",)
    assert b"\\u0000" not in orjson.dumps(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "x"}] * 2049},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 2049}]},
        {"prompt": ["x"] * 2049},
        {"input": [[1]] * 2049},
    ],
)
def test_more_messages_than_allowed_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="2049 (entries|parts); at most 2048"):
        look(fields, OFF)


def test_as_many_messages_as_allowed_pass() -> None:
    tiny = ModelSettings(max_messages=3)

    assert look({"messages": [{"role": "user", "content": "x"}] * 3}, tiny) == ()
    assert look({"prompt": list(range(10_000)), "input": []}, tiny) == ()
    with pytest.raises(InvalidRequest):
        look({"messages": [{}] * 4}, tiny)


def test_absurd_parameters_are_refused_clamped_or_let_be() -> None:
    clamped = {"n": 10**6, "prompt": "x"}

    with pytest.raises(InvalidRequest, match="`n` is between 1 and 128") as refused:
        look({"n": 10**6, "prompt": "x"})
    assert refused.value.details == {"param": "n"}
    assert look(clamped, ModelSettings(absurd_parameters="clamp")) == ("n",)
    assert clamped == {"n": 128, "prompt": "x"}
    assert look({"n": 10**6, "prompt": "x"}, OFF) == ()


def test_a_schema_that_could_crash_an_engine_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="broken pattern"):
        look({"prompt": "x", "guided_regex": "(" * 50})


@pytest.mark.parametrize(
    "body", [b'{"model":"m","prompt":"\xff"}', b'{"model":"m","prompt":"\\ud800"}', b'{"model":"m","n":NaN}',
             b'{"model":"m","n":1e999}', b'{"model":"m","prompt":' + b"[" * 10_000, b'{"model":"m","prompt":"\x01"}']
)  # fmt: skip
def test_what_is_no_json_never_comes_so_far(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        read_ask(COMPLETIONS, body)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 65_000, (" " * 255 + "x") * 250, "<" * 65_000, "<|" * 32_000, "<|a" * 21_000, "[" * 65_000, "\n" * 65_000,
        "\x00" * 10_000, "<|im_start|>" * 5_000, "\\" * 32_000, "你好" * 10_000, "<｜" * 16_000,
        "<s>" * 21_000, "[INST]" * 10_000,
    ],
    ids=range(14),
)  # fmt: skip
def test_no_body_that_is_read_in_the_loop_holds_it_long(text: str) -> None:
    body = orjson.dumps(chat(text))

    assert time_inspect(lambda: (orjson.loads(body), body)) < LONGEST_S


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{number}": {"type": "string"} for number in range(950)}},
        {"prefixItems": [{"pattern": "(a|b)" * 400}] * 4},
        {"anyOf": [{"$ref": "#/$defs/a"}] * 1400, "$defs": {"a": {"type": "string"}}},
    ],
)
def test_no_schema_that_is_read_in_the_loop_holds_it_long(schema: dict[str, Any]) -> None:
    fields = {"guided_json": schema}

    assert time_inspect(lambda: (fields, b"{}")) < LONGEST_S
