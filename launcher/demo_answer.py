"""Waits until the demo model answers through the gateway, and tells what its replicas are doing meanwhile."""

import time
from collections.abc import Callable
from typing import Any, ClassVar

from launcher.errors import LauncherError
from launcher.progress import Step
from launcher.rest import CallFailed, ask_model, list_replicas

MODEL = "smollm2"
TIMEOUT_S = 900.0
POLL_S = 0.5


class NoAnswer(LauncherError):
    """The demo model does not answer; the message says what its replica is stuck at."""

    code: ClassVar[str] = "demo_no_answer"


def wait_for_answer(
    *, web_url: str, token: str, gateway_url: str, key: str, step: Step, is_stopping: Callable[[], bool]
) -> str:
    """The model's first answer."""
    deadline = time.monotonic() + TIMEOUT_S
    problem = "it has no replica yet"
    while time.monotonic() < deadline and not is_stopping():
        replicas = _list_ours(web_url, token)
        step.note = problem = "; ".join(map(describe_replica, replicas)) or "it has no replica yet"
        if any(replica.get("phase") == "ready" for replica in replicas):
            try:
                return ask_model(gateway_url, key, MODEL)
            except CallFailed as failure:
                step.note = problem = failure.message
        elif replicas and all(is_hopeless(replica) for replica in replicas):
            break
        time.sleep(POLL_S)
    raise NoAnswer(f"The demo model does not answer: {problem}.")


def describe_replica(replica: dict[str, Any]) -> str:
    """`replica r3k9d2m1qz is loading (weights)`."""
    detail = replica.get("stage") or replica.get("reason_text") or replica.get("reason")
    return f"replica {replica.get('id')} is {replica.get('phase')}" + (f" ({detail})" if detail else "")


def is_hopeless(replica: dict[str, Any]) -> bool:
    return replica.get("phase") == "failed" and replica.get("retryable") is False


def _list_ours(web_url: str, token: str) -> list[dict[str, Any]]:
    try:
        return [entry for entry in list_replicas(web_url, token) if entry.get("model") == MODEL]
    except CallFailed:
        return []
