"""`python -m pool.gateway.reading.worker FD PARENT`: a reader. One question after the other, until the gateway leaves.

What it works on is a caller's, so nothing of it is ever printed, and everything about it is bounded from outside.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import orjson

from pool.domain.errors import PoolError
from pool.domain.gateway_settings import ModelSettings, read_model_settings
from pool.gateway.openai import GatewayError
from pool.gateway.reading.body import Reading, read_body
from pool.gateway.reading.counting import Counter
from pool.gateway.reading.frames import receive, send
from pool.gateway.reading.prompt import USUAL, Measures, count_with, measures_of
from pool.gateway.truncation import truncate

# Serving comes first where a core is short.
_NICENESS = 5
# A body of 27 MB in 100,000 messages takes 0.3 GiB, a tokenizer of 32 MiB as much.
_MEMORY_BYTES = 3 * 2**30
# The kernel's choice when memory is short: a reader before the gateway.
_OOM_SCORE = "500"
_PR_SET_PDEATHSIG = 1

Answer = tuple[dict[str, Any], bytes]


class Worker:
    def __init__(self) -> None:
        self._settings: dict[str, ModelSettings] = {}
        self._measures: dict[str, Measures] = {}
        self._counters: dict[tuple[str, str | None], Counter] = {}

    def answer(self, question: dict[str, Any], payload: bytearray) -> Answer:
        try:
            return self._answer(question, payload)
        except GatewayError as exc:
            return {"refusal": {"code": exc.code, "message": exc.message, "details": exc.details}}, b""
        except PoolError as exc:
            return {"failure": exc.code}, b""
        except Exception as exc:
            return {"failure": type(exc).__name__}, b""

    def _answer(self, question: dict[str, Any], payload: bytearray) -> Answer:
        match question["do"]:
            case "read":
                return self._read(question, payload)
            case "count":
                counter = self._counters[(question["tokenizer"], question["template"])]
                return {"tokens": counter.count(question["path"], _parse(payload))}, b""
            case "truncate":
                return self._truncate(question, _parse(payload))
            case "configure":
                self._configure(question)
                return {}, b""
            case _:
                return {"measures": self._load(question)}, b""

    def _read(self, question: dict[str, Any], payload: bytearray) -> Answer:
        reading = read_body(
            question["path"].encode(), payload, settings=self._settings, measures=self._measures
        )
        names = (name for name in Reading.__slots__ if name != "body")
        fields = {name: getattr(reading, name) for name in names}
        changed = reading.body is not payload
        return {"reading": fields, "rewritten": changed}, bytes(reading.body) if changed else b""

    def _truncate(self, question: dict[str, Any], fields: dict[str, Any]) -> Answer:
        cut = truncate(
            fields,
            path=question["path"].encode(),
            how=question["how"],
            excess_tokens=question["excess"],
            count=count_with(self._measures.get(question["model"], USUAL)),
        )
        return ({"cut": 0}, b"") if cut is None else ({"cut": cut}, orjson.dumps(fields))

    def _configure(self, question: dict[str, Any]) -> None:
        self._settings = {model: read_model_settings(own) for model, own in question["settings"].items()}
        self._measures = {model: measures_of(own) for model, own in question["measures"].items()}

    def _load(self, question: dict[str, Any]) -> list[Any]:
        tokenizer, template = question["tokenizer"], question["template"]
        folder = Path(question["folder"])
        counter = Counter(folder / tokenizer, None if template is None else folder / template)
        self._counters[(tokenizer, template)] = counter
        # What no table names any more makes room.
        kept = [(one[0], one[1]) for one in question["keep"]]
        self._counters = {key: one for key, one in self._counters.items() if key in kept}
        return list(counter.measure())


def _parse(payload: bytearray) -> dict[str, Any]:
    fields = orjson.loads(payload)
    return fields if isinstance(fields, dict) else {}


def confine(parent: int) -> None:
    """Dies with its parent, ignores what is meant for the parent's group, and can take neither core nor memory."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # Neither a dump nor the text of an error, which can quote a prompt, may leave it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.excepthook = lambda kind, *_: sys.stderr.write(f"reader ends: {kind.__name__}\n")


def main() -> None:
    confine(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    worker = Worker()
    with contextlib.suppress(OSError):
        while (frame := receive(connection)) is not None:
            send(connection, *worker.answer(*frame))


if __name__ == "__main__":
    main()
