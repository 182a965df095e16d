"""The launcher's few HTTP calls: the console's REST API and one completion through the gateway."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, ClassVar

from launcher.errors import LauncherError

TIMEOUT_S = 3.0


class CallFailed(LauncherError):
    """The other side is down, slow or refuses; `status` is None when there was no answer."""

    code: ClassVar[str] = "call_failed"


def call(
    url: str, *, token: str, body: dict[str, object] | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """GET, or POST where there is a body. Only ever to this host: proxies are not asked."""
    request = urllib.request.Request(url, data=json.dumps(body).encode() if body is not None else None)
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Accept", "application/json")
    if body is not None:
        request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        said = error.read(300).decode(errors="replace")
        raise CallFailed(f"{url} answers {error.code}: {said}", status=error.code) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CallFailed(f"{url} does not answer: {error}", status=None) from error
    if not isinstance(found, dict):
        raise CallFailed(f"{url} answers with something else than an object.", status=None)
    return found


def list_replicas(web_url: str, token: str) -> list[dict[str, Any]]:
    """Those that run, should run or failed."""
    results = call(f"{web_url}/api/v1/replicas/", token=token).get("results", [])
    return [entry for entry in results if isinstance(entry, dict) and entry.get("phase") != "stopped"]


def ask_model(gateway_url: str, key: str, model: str, *, timeout_s: float = 60.0) -> str:
    """The text of one short completion through the gateway."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 16,
        "temperature": 0,
    }
    answer = call(f"{gateway_url}/v1/chat/completions", token=key, body=body, timeout_s=timeout_s)
    try:
        return str(answer["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError) as error:
        raise CallFailed("The gateway's answer holds no message.", status=200) from error
