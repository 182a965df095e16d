"""The events that end a stream before its engine would: the reason `length`, figures of use, [DONE]."""

import orjson

NO_END = 1 << 60
"""More events than any stream has."""


def build_end(last: bytes, *, prompt_tokens: int, output_tokens: int) -> bytes:
    """After the event `last`, whose names it takes over. `prompt_tokens`: -1 = the caller asked for no figures.

    b"" if it cannot be said in this stream's form: several choices at once, or no choices at all.
    """
    event = _read_event(last)
    choices = event.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return b""
    choice = choices[0]
    if choice.get("index") != 0 or choice.get("finish_reason") is not None:
        return b""
    names: dict[str, object] = {
        name: event[name] for name in ("id", "object", "created", "model") if name in event
    }
    text: dict[str, object] = {"delta": {}} if "delta" in choice else {"text": ""}
    ended = {"index": 0, **text, "logprobs": None, "finish_reason": "length"}
    events: list[dict[str, object]] = [{**names, "choices": [ended]}]
    if prompt_tokens >= 0:
        total = prompt_tokens + output_tokens
        use = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "total_tokens": total}
        events.append({**names, "choices": [], "usage": use})
    return b"".join([b"data: %b\n\n" % orjson.dumps(one) for one in events]) + b"data: [DONE]\n\n"


def _read_event(piece: bytes) -> dict[str, object]:
    """The last one of a piece that may have its chunk's framing; {} if it is none."""
    start = piece.rfind(b"data: {")
    text = piece if start < 0 else piece[start + 6 :].partition(b"\n")[0]
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}
