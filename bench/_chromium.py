"""Headless Chromium through its DevTools protocol: the console's environment has no browser driver."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BINARY = os.environ.get("SLUICE_TEST_CHROMIUM", "/usr/bin/chromium")
START_LIMIT_S = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--window-size=1280,900", "--enable-precise-memory-info",
)  # fmt: skip


class Tab:
    """One tab of a browser of its own. Raises RuntimeError for what the page throws."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [BINARY, *FLAGS, f"--user-data-dir={folder}", "about:blank"], stderr=subprocess.DEVNULL
        )
        self._ids = itertools.count(1)
        self._link: ClientConnection = connect(self._find_target(folder), max_size=64 << 20)

    def call(self, method: str, *, timeout_s: float = 60.0, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._link.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._link.recv(timeout=timeout_s))
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def run(self, script: str, *, timeout_s: float = 60.0) -> Any:
        """The script's value; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            timeout_s=timeout_s,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str, *, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the page does not reach: {condition}")
            time.sleep(0.1)

    def close(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()

    def _find_target(self, folder: Path) -> str:
        deadline, stated = time.monotonic() + START_LIMIT_S, folder / "DevToolsActivePort"
        while time.monotonic() < deadline:
            try:
                port = stated.read_text().split()[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                    pages = [one for one in json.load(answer) if one["type"] == "page"]
                return str(pages[0]["webSocketDebuggerUrl"])
            except (OSError, ValueError, IndexError):
                time.sleep(0.1)
        self._process.kill()
        raise RuntimeError(f"{BINARY} did not start")
