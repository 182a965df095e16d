"""Bodies of the simulated engine: requests read as vLLM reads them, answers in its shapes, marked as simulated."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from workers.engines.sim_model import SimModel, SimRequest, SimSettings, count_tokens, hash_blocks

FINGERPRINT = "sim"
OWNER = "sluice-sim"
GARBAGE = (" zq", " 0x7f", " \ufffd", " zq")
SOUND_LOGPROB = -0.25
GARBAGE_LOGPROB = -9.0
WORDS = ("this", "answer", "is", "simulated", "and", "no", "model", "was", "asked", "for", "it")


class BadRequest(Exception):
    """Becomes an OpenAI-shaped error."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param or None


@dataclass(slots=True)
class Job:
    """One completion. `chat` chooses the shape; `usage` whether a stream ends with a usage event."""

    id: str
    model: str
    chat: bool
    stream: bool
    usage: bool
    request: SimRequest
    created: int
    garbage: bool = False
    prompt_logprobs: bool = False


def read_job(body: bytes, *, chat: bool, served: str, settings: SimSettings) -> Job:
    content = _read_object(body)
    if content.get("model") not in (None, "", served):
        raise BadRequest(
            f"The model `{content['model']}` does not exist.", status=404, kind="NotFoundError", param="model"
        )
    text = _chat_text(content, settings) if chat else _prompt_text(content)
    prompt_tokens = count_tokens(text)
    limit = content.get("max_completion_tokens") or content.get("max_tokens")
    answer_tokens = settings.default_answer_tokens if limit is None else _whole(limit, "max_tokens")
    if prompt_tokens >= settings.max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {settings.max_model_len} tokens. However, your prompt "
            f"contains at least {prompt_tokens} input tokens.",
            param="input_tokens",
        )
    answer_tokens = min(answer_tokens, settings.max_model_len - prompt_tokens)
    salt = str(content.get("cache_salt", ""))
    blocks = hash_blocks(text, block_size=settings.block_size, salt=salt)
    return Job(
        id=f"{'chatcmpl' if chat else 'cmpl'}-sim-{uuid.uuid4().hex[:16]}",
        model=served,
        chat=chat,
        stream=bool(content.get("stream")),
        usage=bool((content.get("stream_options") or {}).get("include_usage")),
        request=SimRequest(prompt_tokens, max(1, answer_tokens), blocks),
        created=int(time.time()),
        garbage=settings.garbage and prompt_tokens >= settings.garbage_from_tokens,
        prompt_logprobs=content.get("prompt_logprobs") is not None,
    )


def token_text(number: int, *, garbage: bool = False) -> str:
    if garbage:
        return GARBAGE[number % len(GARBAGE)]
    return WORDS[number % len(WORDS)] if number == 0 else f" {WORDS[number % len(WORDS)]}"


def whole_answer(job: Job) -> bytes:
    text = "".join(token_text(number, garbage=job.garbage) for number in range(job.request.generated))
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if job.chat else {"text": text}
    kind = "chat.completion" if job.chat else "text_completion"
    content = {**_head(job, kind), "choices": [choice], "usage": usage_of(job.request)}
    return _dump(content | ({"prompt_logprobs": _prompt_logprobs(job)} if job.prompt_logprobs else {}))


def _prompt_logprobs(job: Job) -> list[dict[str, Any] | None]:
    """One entry per prompt token, the first without, in vLLM's shape."""
    value = GARBAGE_LOGPROB if job.garbage else SOUND_LOGPROB
    entry = {"0": {"logprob": value, "rank": 1, "decoded_token": ""}}
    return [None, *[entry] * (job.request.prompt_tokens - 1)]


def first_event(job: Job) -> bytes:
    """The role event of a chat stream; completions have none."""
    return _event(job, {"delta": {"role": "assistant", "content": ""}}) if job.chat else b""


def token_event(job: Job, number: int, *, finish: str | None) -> bytes:
    text = token_text(number, garbage=job.garbage)
    return _event(job, {"delta": {"content": text}} if job.chat else {"text": text}, finish=finish)


def last_events(job: Job) -> bytes:
    usage = b""
    if job.usage:
        head = _head(job, "chat.completion.chunk" if job.chat else "text_completion")
        usage = b"data: " + _dump({**head, "choices": [], "usage": usage_of(job.request)}) + b"\n\n"
    return usage + b"data: [DONE]\n\n"


def abort_event(job: Job) -> bytes:
    return _event(job, {"delta": {}} if job.chat else {"text": ""}, finish="abort")


def usage_of(request: SimRequest) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": request.generated,
        "total_tokens": request.prompt_tokens + request.generated,
        "prompt_tokens_details": {"cached_tokens": request.cached},
    }


def models_answer(served: str, settings: SimSettings) -> bytes:
    model = {"id": served, "object": "model", "created": 0, "owned_by": OWNER}
    return _dump(
        {"object": "list", "data": [{**model, "root": served, "max_model_len": settings.max_model_len}]}
    )


def tokenize_answer(body: bytes, settings: SimSettings) -> bytes:
    content = _read_object(body)
    text = _chat_text(content, settings) if "messages" in content else _prompt_text(content)
    count = count_tokens(text)
    return _dump({"count": count, "max_model_len": settings.max_model_len, "tokens": list(range(count))})


def embeddings_answer(body: bytes, served: str) -> bytes:
    content = _read_object(body)
    given = content.get("input")
    listed = given if isinstance(given, list) else [given]
    texts = [text for text in listed if isinstance(text, str)]
    if not texts or len(texts) < len(listed):
        raise BadRequest("input must be a text or a list of texts", param="input")
    data = [
        {"object": "embedding", "index": index, "embedding": [float(hash(text) % 997) / 997] * 8}
        for index, text in enumerate(texts)
    ]
    tokens = sum(count_tokens(text) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _dump({"object": "list", "model": served, "data": data, "usage": usage})


def error_answer(error: BadRequest) -> bytes:
    detail = {"message": str(error), "type": error.kind, "param": error.param, "code": error.status}
    return _dump({"error": detail})


def metrics_answer(model: SimModel, served: str, counters: dict[str, float]) -> bytes:
    labels = f'{{model_name="{served}",engine="0"}}'
    usage = model.used_blocks / model.total_blocks
    lines = [
        f"vllm:num_requests_running{labels} {len(model.running)}",
        f"vllm:num_requests_waiting{labels} {len(model.waiting)}",
        f"vllm:kv_cache_usage_perc{labels} {usage:.6f}",
        f"vllm:prefix_cache_queries_total{labels} {model.prefix_queries}",
        f"vllm:prefix_cache_hits_total{labels} {model.prefix_hits}",
        f"vllm:num_preemptions_total{labels} {model.preemptions}",
        f"vllm:prompt_tokens_total{labels} {counters['prompt_tokens']}",
        f"vllm:generation_tokens_total{labels} {counters['generation_tokens']}",
        f'vllm:request_success_total{{model_name="{served}",engine="0",finished_reason="length"}} '
        f"{counters['finished']}",
        f'vllm:cache_config_info{{block_size="{model.settings.block_size}",'
        f'num_gpu_blocks="{model.total_blocks}",kv_cache_size_tokens="{model.settings.kv_tokens}"}} 1',
        f"vllm:time_to_first_token_seconds_sum{labels} {counters['ttft_s']:.6f}",
        f"vllm:time_to_first_token_seconds_count{labels} {counters['first_tokens']}",
        "sluice_simulated 1",
    ]
    return ("\n".join(lines) + "\n").encode()


def _head(job: Job, kind: str) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": kind,
        "created": job.created,
        "model": job.model,
        "system_fingerprint": FINGERPRINT,
    }


def _event(job: Job, choice: dict[str, Any], *, finish: str | None = None) -> bytes:
    kind = "chat.completion.chunk" if job.chat else "text_completion"
    content = {**_head(job, kind), "choices": [{"index": 0, **choice, "finish_reason": finish}]}
    return b"data: " + _dump(content) + b"\n\n"


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadRequest("The body is not JSON.", kind="Bad Request") from exc
    if not isinstance(content, dict):
        raise BadRequest("The body must be a JSON object.", kind="Bad Request")
    return content


def _chat_text(content: dict[str, Any], settings: SimSettings) -> str:
    messages = content.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", param="messages")
    if not settings.chat_template:
        raise BadRequest("The model has no chat template: provide a chat template.")
    return "".join(f"{one.get('role')}\n{one.get('content')}\n" for one in messages if isinstance(one, dict))


def _prompt_text(content: dict[str, Any]) -> str:
    prompt = content.get("prompt")
    if isinstance(prompt, list):
        prompt = " ".join(str(part) for part in prompt)
    if not isinstance(prompt, str) or not prompt:
        raise BadRequest("prompt must not be empty", param="prompt")
    return prompt


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequest(f"{name} must be at least 1", param=name)
    return value


def _dump(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
