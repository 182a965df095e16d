"""Runs inside the engine environment: makes calls with the `openai` client and prints what came of each.

Input: JSON `{"base_url", "key", "calls": [{"method": "chat.completions.create", "arguments": {…}}]}`. Output: a JSON
line per call: `{"answer"}` or `{"events"}`, and `{"error", "status", "code", "kind", "message"}` where one was raised.
"""

import json
import operator
import sys
from typing import Any

import openai


def make_call(client: openai.OpenAI, call: dict[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments", {})
    told: dict[str, Any] = {"events": []} if arguments.get("stream") else {}
    try:
        answer = operator.attrgetter(call["method"])(client)(**arguments)
        if arguments.get("stream"):
            told["events"].extend(event.model_dump() for event in answer)
        else:
            told["answer"] = answer.model_dump()
    except openai.APIError as exc:
        told |= {"error": type(exc).__name__, "status": getattr(exc, "status_code", None)}
        told |= {"code": exc.code, "kind": exc.type, "message": exc.message}
    return told


def main() -> None:
    asked = json.load(sys.stdin)
    client = openai.OpenAI(base_url=asked["base_url"], api_key=asked["key"], max_retries=0, timeout=30)
    for call in asked["calls"]:
        own = client.with_options(**call.get("options", {}))
        sys.stdout.write(json.dumps(make_call(own, call), default=str) + "\n")


if __name__ == "__main__":
    main()
