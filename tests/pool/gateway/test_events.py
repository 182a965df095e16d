"""The gate that a stream of events passes."""

import pytest

from pool.gateway.events import EventGate

TOKEN = b'data: {"choices":[{"delta":{"content":"\xe4\xbd\xa0"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def run(*pieces: bytes, responses: bool = False) -> tuple[bytes, EventGate]:
    gate = EventGate(responses=responses)
    passed = b"".join(gate.feed(piece) for piece in pieces)
    return passed + gate.finish(), gate


@pytest.mark.parametrize(
    "stream",
    [
        TOKEN * 3 + DONE,
        (TOKEN * 3 + DONE).replace(b"\n", b"\r\n"),
        b": a comment\n\n" + TOKEN + b"event: x\nid: 7\ndata: {\ndata: }\n\n" + DONE,
        b"data:{}\n\n" + b"data:[DONE]\n\n",
        TOKEN + b"data: [DONE]",
        TOKEN + b"data: [DONE]\n",
    ],
)
def test_fc35_bytes_pass_unchanged_wherever_they_are_cut(stream: bytes) -> None:
    for offset in range(len(stream) + 1):
        passed, gate = run(stream[:offset], stream[offset:])
        assert (passed, gate.done, gate.failure) == (stream, True, "")
    assert run(*(stream[at : at + 1] for at in range(len(stream))))[0] == stream


def test_an_incomplete_event_is_held_back() -> None:
    gate = EventGate()

    assert gate.feed(TOKEN + TOKEN[:10]) == TOKEN
    assert gate.feed(TOKEN[10:]) == TOKEN
    assert gate.chunks == 2


@pytest.mark.parametrize("ending", [b"", TOKEN[:20], b"data: [DON", TOKEN[:-2]])
def test_a_stream_without_its_terminal_event_is_not_done(ending: bytes) -> None:
    passed, gate = run(TOKEN, ending)

    assert not gate.done
    assert passed == TOKEN


def test_the_word_done_within_a_text_ends_nothing() -> None:
    _, gate = run(b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n')

    assert not gate.done


@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"choices":[{"delta":{"con\n\n',
        b"data: {not json}\n\n",
        b"data: <html>\n\n",
        b'data: {"error":{"message":"EngineCore encountered an issue.","code":500}}\n\n',
    ],
)
def test_nothing_passes_from_the_first_event_that_must_not(bad: bytes) -> None:
    for pieces in (
        (TOKEN, bad, TOKEN + DONE),
        (TOKEN + bad + TOKEN + DONE,),
        (TOKEN + bad[:9], bad[9:] + DONE),
    ):
        gate = EventGate()
        passed = b""
        for piece in pieces:
            passed += gate.feed(piece)
            if gate.failure:
                break
        assert passed == TOKEN
        assert gate.failure
        assert gate.finish() == b""


def test_an_endless_event_is_cut_instead_of_filling_the_memory() -> None:
    gate = EventGate()
    pieces = 0

    while not gate.failure:
        assert gate.feed(b'data: {"' + b"x" * 1_000_000) == b""
        pieces += 1

    assert pieces == 9


@pytest.mark.parametrize("name", ["response.completed", "response.incomplete", "response.failed"])
def test_the_events_of_responses_end_with_a_typed_event(name: str) -> None:
    start = b'event: response.created\ndata: {"type":"response.created"}\n\n'
    end = f'event: {name}\ndata: {{"type":"{name}"}}\n\n'.encode()

    passed, gate = run(start, end, responses=True)

    assert (passed, gate.done, gate.chunks) == (start + end, True, 2)
    assert not run(start, responses=True)[1].done
    assert not run(end)[1].done


def test_the_tail_holds_the_usage_event() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'

    assert run(TOKEN, usage, DONE)[1].tail in usage
    assert run(TOKEN + usage + DONE)[1].tail in usage
    assert b"completion_tokens" in run(TOKEN, usage, DONE)[1].tail
