"""A streamed chat in a thread, as a client sees it: each event, how it ended, and when."""

from __future__ import annotations

import http.client
import json
import threading
import time

from tests.journeys.installation import Installed


class Stream(threading.Thread):
    """`events` are the data of each event. `ended_well`: the last one was `[DONE]` and nothing was cut."""

    def __init__(self, installed: Installed, *, tokens: int, model: str = "smollm2") -> None:
        super().__init__(daemon=True)
        self.installed = installed
        self.body = {
            "model": model,
            "messages": [{"role": "user", "content": "Tell me a long story."}],
            "max_tokens": tokens,
            "stream": True,
        }
        self.events: list[str] = []
        self.status = 0
        self.error = ""
        self.replica = ""
        self.began = threading.Event()
        self.longest_gap_s = 0.0
        self.start()

    @property
    def ended_well(self) -> bool:
        return not self.error and bool(self.events) and self.events[-1] == "[DONE]"

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.installed.gateway_port, timeout=60)
        try:
            self._read(connection)
        except (OSError, http.client.HTTPException) as exc:
            self.error = repr(exc)
        finally:
            connection.close()
            self.began.set()

    def _read(self, connection: http.client.HTTPConnection) -> None:
        headers = {"Authorization": f"Bearer {self.installed.key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body=json.dumps(self.body), headers=headers)
        answer = connection.getresponse()
        self.status, self.replica = answer.status, answer.headers.get("x-sluice-replica", "")
        last = time.monotonic()
        while line := answer.readline():
            if line.startswith(b"data: "):
                self.events.append(line[6:].decode().strip())
                self.began.set()
                self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last)
                last = time.monotonic()

    def wait_begun(self) -> None:
        assert self.began.wait(30), "the stream did not begin"
        assert self.status == 200, (self.status, self.events, self.error)

    def finish(self) -> None:
        self.join(90)
        assert not self.is_alive(), "the stream hangs"
