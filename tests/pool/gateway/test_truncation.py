from typing import Any

import pytest

from pool.gateway.truncation import truncate

CHAT, RESPONSES, COMPLETIONS = b"/v1/chat/completions", b"/v1/responses", b"/v1/completions"


def count(text: str) -> int:
    return len(text) // 4


def say(role: str, text: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def talk(turns: int, *, chars: int = 400) -> list[dict[str, Any]]:
    messages = [say("system", "Be brief.")]
    for number in range(turns):
        messages += [
            say("user", f"question {number} " + "q" * chars),
            say("assistant", f"answer {number} " + "a" * chars),
        ]
    return [*messages, say("user", "the last question")]


def starts(messages: list[dict[str, Any]]) -> list[str]:
    return [" ".join(str(message["content"]).split()[:2]) for message in messages]


def cut(
    fields: dict[str, Any], excess_tokens: int, *, how: str = "message", path: bytes = CHAT
) -> int | None:
    return truncate(fields, path=path, how=how, excess_tokens=excess_tokens, count=count)


def test_turns_of_the_middle_go_first() -> None:
    fields = {"messages": talk(5)}

    tokens = cut(fields, 300)

    assert tokens is not None
    assert 300 <= tokens < 500
    assert starts(fields["messages"]) == [
        "Be brief.", "question 0", "answer 0", "question 1", "answer 1", "question 4", "answer 4", "the last",
    ]  # fmt: skip


def test_no_more_goes_than_must() -> None:
    fields = {"messages": talk(5)}

    cut(fields, 1)

    assert len(fields["messages"]) == len(talk(5)) - 2


def test_frame_of_a_conversation_stays() -> None:
    fields = {"messages": talk(3)}

    assert cut(fields, 10_000) is None
    assert fields == {"messages": talk(3)}


def test_a_tool_result_never_loses_its_call() -> None:
    calls = say(
        "assistant", None, tool_calls=[{"id": "c1", "function": {"name": "f", "arguments": "x" * 400}}]
    )
    messages = [
        say("user", "first"), say("assistant", "yes"),
        say("user", "look it up"), calls, say("tool", "t" * 400, tool_call_id="c1"), say("assistant", "found"),
        say("user", "last"),
    ]  # fmt: skip
    fields = {"messages": list(messages)}

    tokens = cut(fields, 50)

    assert tokens is not None
    assert tokens >= 200
    assert fields["messages"] == [messages[0], messages[1], messages[6]]


def test_roles_still_alternate_when_a_user_speaks_twice() -> None:
    fields = {"messages": [say("user", "a"), say("user", "b"), *talk(3)[1:]]}

    cut(fields, 100)

    roles = [message["role"] for message in fields["messages"]]
    assert roles == ["user", "user", "user", "assistant", "user", "assistant", "user"]


def test_system_messages_in_the_middle_stay() -> None:
    messages = talk(4)
    messages.insert(5, say("system", "Remember."))
    fields = {"messages": messages}

    cut(fields, 200)

    assert [one["content"] for one in fields["messages"] if one["role"] == "system"] == [
        "Be brief.",
        "Remember.",
    ]


def test_a_message_of_parts_is_dropped_or_kept_as_a_whole() -> None:
    parts = [{"type": "text", "text": "x" * 4000}, {"type": "image_url", "image_url": {"url": "http://x"}}]
    fields = {"messages": [say("user", "a"), say("user", parts), say("assistant", "b"), say("user", parts)]}

    assert cut(fields, 100, how="paragraph") is None
    assert len(fields["messages"]) == 4

    fields = {
        "messages": [
            say("user", "a"),
            say("assistant", "b"),
            say("user", parts),
            say("assistant", "c"),
            say("user", "d"),
        ]
    }
    assert cut(fields, 100) is not None
    assert starts(fields["messages"]) == ["a", "b", "d"]


@pytest.mark.parametrize("separator", ["\n\n", "\n", " ", "\u3002"])
def test_a_text_loses_its_middle_at_the_best_place(separator: str) -> None:
    pieces = [f"piece-{number:03}-{'x' * 30}" for number in range(100)]
    fields = {"prompt": separator.join(pieces)}

    tokens = cut(fields, 400, how="paragraph", path=COMPLETIONS)

    left = fields["prompt"].split(separator)
    gap = left.index("[...]")
    assert tokens is not None
    assert 400 <= tokens < 460
    assert left[:gap] == pieces[:gap]
    assert left[gap + 1 :] == pieces[gap + 1 - len(left) :]
    assert abs(gap - (len(left) - gap)) <= 2


def test_a_line_is_cut_where_paragraphs_are_chapters() -> None:
    chapter = "\n".join(f"line {number} {'y' * 30}" for number in range(100))
    fields = {"prompt": f"head\n\n{chapter}\n\ntail"}

    tokens = cut(fields, 100, how="paragraph", path=COMPLETIONS)

    assert tokens is not None
    assert tokens < 220
    assert fields["prompt"].startswith("head\n\nline 0")


def test_turns_go_before_paragraphs() -> None:
    document = "\n\n".join("z" * 100 for _ in range(50))
    fields = {"messages": [*talk(3)[:-1], say("user", document)]}

    tokens = cut(fields, 900, how="paragraph")

    assert tokens is not None
    assert tokens >= 900
    assert starts(fields["messages"])[:3] == ["Be brief.", "question 0", "answer 0"]
    assert "[...]" in fields["messages"][-1]["content"]
    assert len(fields["messages"]) == 4


def test_several_texts_are_cut_when_one_is_not_enough() -> None:
    long, short = (" ".join("w" * 9 for _ in range(words)) for words in (200, 150))
    fields = {"messages": [say("user", long), say("assistant", "ok"), say("user", short)]}

    tokens = cut(fields, 600, how="paragraph")

    assert tokens is not None
    assert tokens >= 600
    assert all("[...]" in fields["messages"][index]["content"] for index in (0, 2))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": "x" * 10_000}, COMPLETIONS),
        ({"prompt": [1, 2, 3]}, COMPLETIONS),
        ({"prompt": ""}, COMPLETIONS),
        ({"prompt": "a b"}, COMPLETIONS),
        ({"prompt": "a b c d e f"}, COMPLETIONS),
        ({"input": "a b c"}, b"/v1/embeddings"),
        ({"messages": "none"}, CHAT),
        ({"messages": ["text", 3]}, CHAT),
        ({}, CHAT),
    ],
)
def test_what_cannot_be_cut_stays_as_it_is(fields: dict[str, Any], path: bytes) -> None:
    before = repr(fields)

    assert cut(fields, 100, how="paragraph", path=path) is None
    assert repr(fields) == before


def test_items_of_responses_are_turns_too() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "x" * 400}
    result = {"type": "function_call_output", "call_id": "c1", "output": "y" * 400}
    items = [
        say("user", "a"),
        say("user", "b"),
        say("assistant", "ok"),
        say("user", "c"),
        call,
        result,
        say("user", "d"),
    ]
    fields: dict[str, Any] = {"input": list(items)}

    assert cut(fields, 100, path=RESPONSES) is not None
    assert fields["input"] == [*items[:3], items[6]]


def test_a_long_tool_output_of_responses_is_cut() -> None:
    result = {
        "type": "function_call_output",
        "call_id": "c1",
        "output": "\n".join("y" * 40 for _ in range(100)),
    }
    fields: dict[str, Any] = {"input": [say("user", "a"), result]}

    tokens = cut(fields, 300, how="paragraph", path=RESPONSES)

    assert tokens is not None
    assert "[...]" in fields["input"][1]["output"]
    text: dict[str, Any] = {"input": "word " * 1000}
    assert cut(text, 300, how="paragraph", path=RESPONSES) is not None


def test_the_hole_grows_until_enough_tokens_are_in_it() -> None:
    fields = {"prompt": "\n".join(("w" * 20 if abs(number - 50) > 20 else ".") for number in range(100))}

    tokens = truncate(
        fields, path=COMPLETIONS, how="paragraph", excess_tokens=400, count=lambda text: text.count("w")
    )

    assert tokens is not None
    assert tokens >= 400


def test_a_middle_without_a_place_to_cut_goes_as_a_whole_or_not() -> None:
    prompt = f"head {'x' * 1000} tail"

    assert cut({"prompt": prompt}, 250, how="paragraph", path=COMPLETIONS) is None
    assert cut({"prompt": prompt}, 200, how="paragraph", path=COMPLETIONS) is not None
