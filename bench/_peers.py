"""Gateways that are compared: how each is started in front of the same two engines. Only what is installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench._figures import say

_START_LIMIT_S = 120.0
MASTER_KEY = "sk-bench-master"


@dataclass
class Contender:
    """A gateway that runs."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    key: str

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def find_free_port() -> int:
    """Below the ephemeral range, so that no client of this run takes it first."""
    for port in range(23_000, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _TAKEN:
                _TAKEN.add(port)
                return port
    raise OSError("no free port between 23000 and 32000")


_TAKEN: set[int] = set()


def start_peers(folder: Path, engines: Sequence[int], *, path: str) -> list[Contender]:
    """`engines`: ports. `path`: where commands are looked for."""
    found = []
    for name, command, start in _STARTERS:
        binary = shutil.which(command, path=path)
        if binary is None:
            say(f"{name}: not installed, left out")
            continue
        port = find_free_port()
        home = folder / name
        home.mkdir()
        argv = start(binary, home, port, engines)
        log = (home / "log").open("wb")
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=home, start_new_session=True)
        contender = Contender(name, process, port, MASTER_KEY)
        if wait_listening(process, port):
            found.append(contender)
        else:
            say(f"{name}: did not start, left out (see {home / 'log'})")
            contender.stop()
    return found


def wait_listening(process: subprocess.Popen[bytes], port: int) -> bool:
    """It answers a request; an open port alone proves little."""
    deadline_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
                if probe.recv(16).startswith(b"HTTP/1."):
                    return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def start_engines(count: int, *, chunks: int = 64, gap_s: float = 0.0) -> list[Contender]:
    engines = []
    for _ in range(count):
        port = find_free_port()
        argv = [sys.executable, "-m", "bench._upstream", str(port), str(chunks), str(gap_s)]
        process = subprocess.Popen(argv, start_new_session=True)
        wait_listening(process, port)
        engines.append(Contender("engine", process, port, ""))
    return engines


def _start_vllm_router(policy: str) -> Starter:
    def start(binary: str, home: Path, port: int, engines: Sequence[int]) -> list[str]:
        urls = [f"http://127.0.0.1:{engine}" for engine in engines]
        return [
            binary, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, "--policy", policy,
            "--prometheus-port", str(find_free_port()), "--log-level", "error",
        ]  # fmt: skip

    return start


_NGINX_KEPT_ALIVE = 'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'


def _start_nginx(pool: str, proxying: str) -> Starter:
    """One worker, as one gateway process. `pool`: of the upstream block. `proxying`: of the location."""

    def start(binary: str, home: Path, port: int, engines: Sequence[int]) -> list[str]:
        servers = "".join(f"server 127.0.0.1:{engine};" for engine in engines)
        text = f"""
worker_processes 1; daemon off; pid {home}/pid; error_log {home}/error.log; user {os.environ.get("USER", "root")};
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; keepalive_requests 1000000000;
  fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
  upstream engines {{ {servers} {pool} }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://engines; {proxying} }} }}
}}
"""
        (home / "nginx.conf").write_text(text)
        return [binary, "-c", str(home / "nginx.conf"), "-p", str(home)]

    return start


def _start_haproxy(binary: str, home: Path, port: int, engines: Sequence[int]) -> list[str]:
    servers = "\n".join(f"  server e{engine} 127.0.0.1:{engine}" for engine in engines)
    text = f"""
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout client 600s
  timeout server 600s
  timeout connect 5s
  http-reuse always
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
{servers}
"""
    (home / "haproxy.cfg").write_text(text)
    return [binary, "-db", "-f", str(home / "haproxy.cfg")]


def _start_litellm(binary: str, home: Path, port: int, engines: Sequence[int]) -> list[str]:
    models = [
        {
            "model_name": "m",
            "litellm_params": {
                "model": "openai/m", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "x",
            },
        }
        for engine in engines
    ]  # fmt: skip
    settings = {"model_list": models, "general_settings": {"master_key": MASTER_KEY}}
    # JSON is YAML.
    (home / "config.yaml").write_bytes(orjson.dumps(settings))
    return [binary, "--config", str(home / "config.yaml"), "--port", str(port), "--host", "127.0.0.1"]


Starter = Callable[[str, Path, int, Sequence[int]], list[str]]
_STARTERS: tuple[tuple[str, str, Starter], ...] = (
    ("vllm-router", "vllm-router", _start_vllm_router("round_robin")),
    ("vllm-router-cache_aware", "vllm-router", _start_vllm_router("cache_aware")),
    # As its documentation has it, connections to engines are kept alive; without a word of it they are not.
    ("nginx", "nginx", _start_nginx("keepalive 512; keepalive_requests 1000000000;", _NGINX_KEPT_ALIVE)),
    ("nginx-default", "nginx", _start_nginx("", "")),
    ("haproxy", "haproxy", _start_haproxy),
    ("litellm", "litellm", _start_litellm),
)
