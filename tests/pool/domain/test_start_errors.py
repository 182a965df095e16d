"""The logs are those of vLLM 0.32 on `cpu`, provoked one by one and cut to the lines that matter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pool.domain.start_errors import ADVICE, GIB, StartCode, classify_failure, make_failure

LOGS: dict[str, list[str]] = json.loads((Path(__file__).parents[2] / "fakes" / "vllm_logs.json").read_text())

PROVOKED = {
    "kv_small": (StartCode.KV_TOO_SMALL, True),
    "kv_len": (StartCode.KV_TOO_SMALL, True),
    "len": (StartCode.CONTEXT_TOO_LONG, True),
    "badflag": (StartCode.BAD_ARGUMENT, True),
    "badval": (StartCode.BAD_ARGUMENT, True),
    "badchoice": (StartCode.BAD_ARGUMENT, True),
    "seqs": (StartCode.BAD_ARGUMENT, True),
    "tp": (StartCode.BAD_ARGUMENT, True),
    "block": (StartCode.BAD_ARGUMENT, True),
    "missing": (StartCode.MISSING_FILE, True),
    "noconf": (StartCode.MISSING_FILE, True),
    "notok": (StartCode.MISSING_FILE, True),
    "now": (StartCode.MISSING_FILE, True),
    "template": (StartCode.MISSING_FILE, True),
    "trunc": (StartCode.CORRUPT_WEIGHTS, True),
    "badarch": (StartCode.UNSUPPORTED_MODEL, True),
    "badshape": (StartCode.UNSUPPORTED_MODEL, True),
    "q_awq": (StartCode.UNSUPPORTED_QUANTIZATION, True),
    "q_bnb": (StartCode.UNSUPPORTED_QUANTIZATION, True),
    "q_fp8": (StartCode.UNSUPPORTED_QUANTIZATION, True),
    "specng": (StartCode.MISSING_RUNTIME, True),
    "port": (StartCode.PORT_IN_USE, False),
    "kvbig": (StartCode.OUT_OF_MEMORY, False),
    "util": (StartCode.OUT_OF_MEMORY, False),
    "gpuutil": (StartCode.OUT_OF_MEMORY, False),
}

FROM_SOURCES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of "
    "79.10 GiB of which 1.25 GiB is free.": StartCode.OUT_OF_MEMORY,
    "ValueError: Free memory on device cuda:0 (3.10/79.10 GiB) on startup is less than desired GPU memory "
    "utilization (0.92, 72.77 GiB). Decrease GPU memory utilization": StartCode.OUT_OF_MEMORY,
    "OSError: [Errno 28] No space left on device": StartCode.DISK_FULL,
    "ValueError: The repository /models/x contains custom code which must be executed to correctly load the "
    "model.": StartCode.REMOTE_CODE,
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": StartCode.DRIVER_FAULT,
    "RuntimeError: No CUDA GPUs are available": StartCode.DRIVER_FAULT,
    "ERROR [core.py:1] EngineCore encountered a fatal error.": StartCode.ENGINE_DIED,
}


def log_of(name: str) -> str:
    return "\n".join(LOGS[name])


@pytest.mark.parametrize("name", sorted(PROVOKED))
def test_fc_33_a_provoked_log_is_recognised(name: str) -> None:
    code, permanent = PROVOKED[name]

    found = classify_failure(log_of(name), exit_code=1)

    assert (found.code, found.permanent) == (code, permanent)
    assert found.message
    assert found.advice
    assert found.lines


@pytest.mark.parametrize("line", sorted(FROM_SOURCES))
def test_a_line_from_the_sources_is_recognised(line: str) -> None:
    assert classify_failure(line, exit_code=1).code is FROM_SOURCES[line]


def test_a_cache_too_small_says_how_much_fits() -> None:
    line = (
        "ValueError: To serve at least one request with the model's max seq len (8192), (2.5 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, "
        "the estimated maximum model length is 3264."
    )

    found = classify_failure(line, exit_code=1)

    assert found.figures == {
        "wanted_tokens": 8192,
        "needed_bytes": round(2.5 * GIB),
        "available_bytes": GIB,
        "suggested_tokens": 3264,
    }
    assert "at most 3,264" in found.advice


def test_a_context_beyond_the_model_says_the_limit() -> None:
    found = classify_failure(log_of("len"), exit_code=1)

    assert found.figures["suggested_tokens"] == 2048
    assert "at most 2,048" in found.advice


def test_out_of_memory_keeps_the_printed_figures() -> None:
    found = classify_failure(log_of("util"), exit_code=1)

    assert found.figures["utilization_ratio"] == 0.92
    assert found.figures["needed_bytes"] == round(6.06 * GIB)


def test_a_sound_log_is_no_known_failure() -> None:
    found = classify_failure(log_of("ok"), exit_code=0)

    assert (found.code, found.permanent) == (StartCode.UNKNOWN, False)
    assert found.message == "The engine ended with exit code 0."


def test_an_unknown_exception_is_the_message() -> None:
    log = "\n".join(
        (
            "(EngineCore pid=9) ERROR 11-29 19:21:37 [core.py:1510] RuntimeError: expect weight to be bfloat16",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        )
    )

    found = classify_failure(log, exit_code=1)

    assert (found.code, found.message) == (StartCode.UNKNOWN, "RuntimeError: expect weight to be bfloat16")


@pytest.mark.parametrize(("signal", "code"), [(9, StartCode.KILLED), (11, StartCode.UNKNOWN)])
def test_an_end_by_signal_without_a_word_names_it(signal: int, code: StartCode) -> None:
    found = classify_failure("", signal=signal)

    assert found.code is code
    assert found.figures == {"signal": signal}


def test_nothing_known_at_all_is_said() -> None:
    assert classify_failure("").message == "The engine ended without an exit code."


def test_every_code_has_advice() -> None:
    assert set(ADVICE) == set(StartCode)


def test_a_failure_can_come_from_elsewhere_than_the_log() -> None:
    found = make_failure(StartCode.NO_CHAT_TEMPLATE, "No template.", status=400)

    assert found.permanent
    assert found.figures == {"status": 400}
