from typing import Any

import pytest

from pool.domain.chat_template_file import ChatTemplates
from pool.gateway.reading.chat_template import ChatTemplate, NotCountable, list_messages

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PARTS = "{% for m in messages %}{% for c in m['content'] | list %}[{{ c.text }}]{% endfor %}{% endfor %}"


def render(
    template: str, *messages: dict[str, Any], tokens: dict[str, str] | None = None, **fields: Any
) -> str:
    one = ChatTemplate(ChatTemplates({"default": template}, tokens or {}))
    return one.render({"messages": list(messages), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_contents_are_one_text_unless_the_template_loops_over_them() -> None:
    content = [{"type": "text", "text": "a"}, "b"]

    assert render(PLAIN, user(content)) == "<user>a\nb"
    assert render(PARTS, user(content), user("c")) == "[a][b][c]"
    assert render("{% for content in messages[0].content %}{{ content.text }}{% endfor %}", user("x")) == "x"


@pytest.mark.parametrize("loop", ["content", "messages[0].content", "messages[0]['content']"])
def test_a_loop_over_contents_is_known_in_each_spelling(loop: str) -> None:
    source = "{% set content = messages[0].content %}{% for c in " + loop + " %}{{ c.text }}{% endfor %}"

    assert render(source, user("x")) == "x"


def test_special_tokens_and_the_prompt_for_an_answer_are_there() -> None:
    source = "{{ bos_token }}{% if add_generation_prompt %}>{% endif %}"

    assert render(source, tokens={"bos_token": "<s>"}) == "<s>>"
    assert render(source, tokens={"bos_token": "<s>"}, add_generation_prompt=False) == "<s>"
    assert render(source, chat_template_kwargs={"add_generation_prompt": False}) == ""


def test_what_a_request_adds_for_its_template_is_there() -> None:
    source = "{{ thinking }}{{ reasoning_effort }}{{ documents[0] }}"

    text = render(source, chat_template_kwargs={"thinking": 1}, reasoning_effort="low", documents=["d"])

    assert text == "1lowd"


def test_tools_are_written_as_the_engine_writes_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": None, "x": 1, "defer_loading": True}}

    text = render("{{ tools | tojson }}", tools=[tool])

    assert text == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": null, '
        '"defer_loading": true}}]'
    )


def test_a_template_for_tools_is_used_with_tools_only() -> None:
    one = ChatTemplate(ChatTemplates({"default": "D", "tool_use": "U"}, {}))
    tools = [{"type": "function", "function": {"name": "f"}}]

    assert one.render({"messages": []}) == "D"
    assert one.render({"messages": [], "tools": tools}) == "U"


def test_calls_have_their_arguments_as_objects() -> None:
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', "{", "5", None)]

    assert render(source, {"role": "assistant", "tool_calls": calls}) == '{"a": 1}{}{}{}'


def test_a_tools_answer_is_text_even_for_templates_with_parts() -> None:
    source = PARTS.replace("for m in messages", "for m in messages[:0]") + "{{ messages[0].content }}"

    answer = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]}

    assert render(source, answer) == "42"


def test_reasoning_is_passed_under_both_names() -> None:
    source = "{{ messages[0].reasoning }}{{ messages[0].reasoning_content }}{{ messages[0].name }}"

    assert render(source, {"role": "assistant", "reasoning": "r", "name": "n"}) == "rrn"


def test_developers_become_the_one_system_message_where_the_template_does_not_know_them() -> None:
    system, developer = {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}

    assert render(PLAIN, system, user("u"), developer) == "<system>s\n\nd<user>u"
    assert render(PLAIN, developer, user("u")) == "<system>d<user>u"
    knows = "{% if messages[0].role == 'developer' %}!{% endif %}"
    assert render(knows, developer) == "!"
    both = "{{ messages[0].content }}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}"
    assert render(both, system, developer) == "s\n\nd"


def test_marks_for_training_and_loop_controls_are_understood() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )

    assert render(source, user("a"), user("b")) == "a"


def test_the_date_is_known() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.x() }}",
        "{{ 1 / 0 }}",
        "{% for n in range(10**9) %}x{% endfor %}",
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_not_countable(source: str) -> None:
    with pytest.raises(NotCountable):
        render(source)


@pytest.mark.parametrize(
    "message",
    [
        5,
        {"content": "x"},
        user(5),
        user([{"type": "image_url", "image_url": {}}]),
        user([{"type": "text", "text": 5}]),
        user([5]),
        {"role": "assistant", "tool_calls": [5]},
    ],
)
def test_what_has_no_text_is_not_countable(message: Any) -> None:
    with pytest.raises(NotCountable):
        render(PLAIN, message)


def test_a_tool_that_is_no_function_is_not_countable() -> None:
    with pytest.raises(NotCountable):
        render(PLAIN, tools=[5])


def test_a_refusal_has_its_text_in_a_field_of_its_own() -> None:
    assert render(PLAIN, user([{"type": "refusal", "refusal": "no"}])) == "<user>no"


def test_the_input_of_the_responses_api_is_a_conversation() -> None:
    assert list_messages({"input": "hi"}) == [user("hi")]
    assert list_messages({"input": [user("hi")], "instructions": "be kind"}) == [
        {"role": "system", "content": "be kind"},
        user("hi"),
    ]
    with pytest.raises(NotCountable):
        list_messages({})
