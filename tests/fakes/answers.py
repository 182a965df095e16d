"""What the fake engine says: bodies, events and pages in vLLM's shapes. No sockets here."""

import json
from typing import Any

from tests.fakes.switches import Switches

GARBAGE = "zq zq zq zq zq zq zq zq"
_BLOCK_CHARS = 64
DEAD_CORE = "EngineCore encountered an issue. See stack trace (above) for the root cause."

FATAL_LINES = {
    "kv": "ValueError: To serve at least one request with the model's max seq len (8192), (0.18 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (0.06 GiB). Based on the available "
    "memory, the estimated maximum model length is 2730. Try increasing `gpu_memory_utilization` (which also "
    "controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine.",
    "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 1.20 GiB is free. Process 4242 has 70.00 GiB memory in use.",
    "port": "OSError: [Errno 98] Address already in use",
    "corrupt": "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, "
    "file not fully covered: model-00001-of-00002.safetensors",
}


def fatal_log(reason: str, *, pid: int) -> str:
    stamp = "11-05 09:00:00"
    line = FATAL_LINES[reason]
    return (
        f"(EngineCore pid={pid}) ERROR {stamp} [core.py:1001] EngineCore failed to start.\n"
        f"(EngineCore pid={pid}) ERROR {stamp} [core.py:1001] {line}\n"
        f"(APIServer pid={pid}) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )


def words_of(switches: Switches, body: dict[str, Any]) -> list[str]:
    words = [word + " " for word in _text_of(switches).split(" ")]
    wanted = _wanted(switches)
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or wanted
    return [words[index % len(words)] for index in range(min(wanted, int(limit)))]


def _text_of(switches: Switches) -> str:
    return GARBAGE if switches.variant == "garbage" else switches.text


def _wanted(switches: Switches) -> int:
    return switches.chunks or len(_text_of(switches).split(" "))


def prompt_of(body: dict[str, Any]) -> str:
    if "messages" in body:
        return "\n".join(str(message.get("content", "")) for message in body["messages"])
    return str(body.get("prompt", body.get("input", "")))


def count_tokens(text: str) -> int:
    return max(1, len(text) // 4)


class PrefixMemory:
    """Which beginnings of prompts came before, in whole blocks of 16 tokens; it never forgets."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def note(self, prompt: str) -> int:
        """Tokens of this one that were known. The last one is always computed."""
        beginning, known = 0, 0
        for end in range(_BLOCK_CHARS, len(prompt) + 1, _BLOCK_CHARS):
            beginning = hash((beginning, prompt[end - _BLOCK_CHARS : end]))
            known += beginning in self._known
            self._known.add(beginning)
        return min(known * _BLOCK_CHARS // 4, count_tokens(prompt) - 1)


def usage_of(prompt_tokens: int, output_tokens: int, *, cached: int | None = None) -> dict[str, Any]:
    """`cached` None: as vLLM without --enable-prompt-tokens-details."""
    total = prompt_tokens + output_tokens
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": total, "completion_tokens": output_tokens}
    return usage | ({} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}})


class Answer:
    """One completion's pieces; `chat` chooses between the two shapes of the API. `cached`: tokens of its prompt."""

    def __init__(
        self,
        switches: Switches,
        body: dict[str, Any],
        *,
        request_id: str,
        chat: bool,
        cached: int | None = None,
    ) -> None:
        self.switches = switches
        self.cached = cached
        self.chat = chat
        self.words = words_of(switches, body)
        self.reason = "stop" if len(self.words) >= _wanted(switches) else "length"
        self.prompt_tokens = count_tokens(prompt_of(body))
        self.wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        kind = "chat.completion" if chat else "text_completion"
        name = ("chatcmpl-" if chat else "cmpl-") + request_id
        self._frame = {"id": name, "object": kind, "created": 1, "model": switches.model}

    def plain(self) -> bytes:
        text = "".join(self.words)
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self.reason}
        answer: dict[str, Any] = {**self._frame, "choices": [choice]}
        if self.switches.usage != "none":
            answer["usage"] = usage_of(self.prompt_tokens, len(self.words), cached=self.cached)
        return _dump(answer)

    def event(self, index: int) -> bytes:
        if index == self.switches.bad_json_at:
            return b'data: {"id":"broken","choices":[{"delta":{"con\n\n'
        if self.chat:
            delta = {"role": "assistant", "content": ""} if index < 0 else {"content": self.words[index]}
            return self._event({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None})
        return self._event({"index": 0, "text": self.words[index], "logprobs": None, "finish_reason": None})

    def ending(self, finish_reason: str, *, spoken: int) -> bytes:
        """The last chunk, usage where the switch says so, and [DONE]."""
        said: dict[str, object] = {"delta": {}} if self.chat else {"text": ""}
        usage = usage_of(self.prompt_tokens, spoken, cached=self.cached)
        shape = self.switches.usage
        last = {"index": 0, **said, "finish_reason": finish_reason}
        end = self._event(last)
        if shape in ("last_no_choices", "always") or (shape == "last" and self.wants_usage):
            end += self._event(usage=usage)
        return end + b"data: [DONE]\n\n"

    def dead_core(self) -> bytes:
        error = {"message": DEAD_CORE, "type": "InternalServerError", "code": 500}
        return b"data: " + _dump({"error": error}) + b"\n\ndata: [DONE]\n\n"

    def _event(self, choice: dict[str, Any] | None = None, **more: object) -> bytes:
        kind = self._frame["object"] + (".chunk" if self.chat else "")  # type: ignore[operator]
        event = {**self._frame, "object": kind, "choices": [choice] if choice else [], **more}
        if choice and self.switches.usage == "null_each":
            event["usage"] = None
        if choice and self.switches.usage == "zero_each":
            event["usage"] = usage_of(0, 0)
        return b"data: " + _dump(event) + b"\n\n"


def error_body(
    status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
) -> bytes:
    return _dump({"error": {"message": message, "type": kind, "param": param, "code": status}})


def models_page(switches: Switches) -> bytes:
    model = {
        "id": switches.model,
        "object": "model",
        "created": 1,
        "owned_by": "vllm",
        "root": switches.model,
    }
    return _dump({"object": "list", "data": [{**model, "parent": None, "max_model_len": switches.max_ctx}]})


def metrics_page(switches: Switches, *, running: int, waiting: int, finished: int, tokens: int) -> bytes:
    """A cut of vLLM's page under the names that the `metrics` switch chooses."""
    kv_name = {"v0": "gpu_cache_usage_perc", "renamed": "kv_usage_ratio"}.get(
        switches.metrics, "kv_cache_usage_perc"
    )
    if switches.metrics == "reset":
        finished = tokens = 0
    kv_used = "NaN" if switches.metrics == "nan" else f"{min(1.0, running / max(1, switches.slots)):.4f}"
    label = f'{{engine="0",model_name="{switches.model}"}}'
    success = f'{{engine="0",finished_reason="stop",model_name="{switches.model}"}}'
    rows = [
        ("gauge", "num_requests_running", label, str(running)),
        ("gauge", "num_requests_waiting", label, str(waiting)),
        ("gauge", kv_name, label, kv_used),
        ("counter", "generation_tokens_total", label, str(tokens)),
        ("counter", "request_success_total", success, str(finished)),
    ]
    page = "".join(
        f"# TYPE vllm:{name} {kind}\nvllm:{name}{labels} {value}\n" for kind, name, labels, value in rows
    )
    return (page[: len(page) // 2] if switches.metrics == "partial" else page).encode()


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
