"""The key gate of an engine on a network address, and what hides the key. The plug-in is loaded from its source."""

from __future__ import annotations

import importlib
import io
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PLUGIN = Path(__file__).parents[3] / "workers" / "plugin"
KEY = "canary-engine-key"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Fresh modules `secret` and `auth`, with the key in the environment."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.setenv("SLUICE_ENGINE_KEY", KEY)
    for name in [name for name in sys.modules if name.startswith("sluice_engine")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("sluice_engine.secret"), importlib.import_module("sluice_engine.auth")


async def call(
    gate: Any, *, headers: list[tuple[bytes, bytes]], path: str = "/health", kind: str = "http"
) -> int:
    """The status that the gate answers, 200 when it lets through."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {}

    await gate({"type": kind, "method": "GET", "path": path, "headers": headers}, receive, send)
    return int(sent[0].get("status", sent[0].get("code", 0))) if sent else 200


async def passed(scope: Any, receive: Any, send: Any) -> None:
    """The application behind the gate: sends nothing."""


@pytest.mark.parametrize(
    "path", ["/health", "/metrics", "/tokenize", "/invocations", "/v1/models", "//x", "/"]
)
async def test_fc_19_every_path_demands_the_key(plugin: Any, path: str) -> None:
    gate = plugin[1].KeyGate(passed)

    assert await call(gate, headers=[], path=path) == 401
    assert await call(gate, headers=[(b"authorization", b"Bearer wrong")], path=path) == 401
    assert await call(gate, headers=[(b"Authorization", f"Bearer {KEY}".encode())], path=path) == 200


async def test_two_authorization_headers_are_refused(plugin: Any) -> None:
    gate = plugin[1].KeyGate(passed)
    right = (b"authorization", f"Bearer {KEY}".encode())

    assert await call(gate, headers=[right, (b"authorization", b"Bearer x")]) == 401


async def test_a_socket_without_the_key_is_closed_and_lifespan_passes(plugin: Any) -> None:
    gate = plugin[1].KeyGate(passed)

    assert await call(gate, headers=[], kind="websocket") == 4401
    await gate({"type": "lifespan"}, None, None)


def test_without_a_key_the_engine_does_not_start(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_ENGINE_KEY")

    with pytest.raises(RuntimeError, match="needs its key"):
        plugin[1].KeyGate(passed)


def test_fc_20_the_key_leaves_the_environment_when_it_is_read(plugin: Any) -> None:
    secret = plugin[0]

    assert secret.take_key() == KEY
    assert "SLUICE_ENGINE_KEY" not in os.environ
    assert secret.take_key() == KEY


def test_fc_20_what_the_engine_prints_is_masked(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    plugin[0].mask_output()
    plugin[0].mask_output()
    sys.stdout.write(f"key={KEY} twice {KEY}\n")
    sys.stderr.write("nothing to hide\n")

    assert out.getvalue() == "key=*** twice ***\n"
    assert err.getvalue() == "nothing to hide\n"
