"""A real web process with collected files, a pool that looks alive, and headless Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from django.conf import global_settings, settings
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from tests import factories
from tests.browser.seed import seed_pool
from tests.browser.seed_gateways import clear_gateways, seed_gateways
from tests.browser.seed_telemetry import seed_telemetry

T = TypeVar("T")
Scheme = Literal["light", "dark"]
START_LIMIT_S = 60.0
PASSWORD = "correct-horse"
CHROMIUM = os.environ.get("SLUICE_TEST_CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without Chromium these are skipped aloud, and fail where CI promises one."""
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        item.add_marker(pytest.mark.browser)
        if not Path(CHROMIUM).exists() and os.environ.get("CI") != "true":
            item.add_marker(pytest.mark.skip(reason=f"no Chromium at {CHROMIUM}"))


@dataclass
class Web:
    """`./sluice web` on a free port, as a process of its own."""

    port: int
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "console.serve"], env=self.env, cwd=settings.BASE_DIR
        )
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "web ended"
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=2):
                return
            time.sleep(0.1)
        raise AssertionError("web did not come up")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def static_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Collected once for all tests here."""
    folder = tmp_path_factory.mktemp("web")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pool(transactional_db: None) -> Iterator[None]:
    seed_pool(fresh_for=timedelta(minutes=10))
    seed_gateways(now=timezone.now(), fresh_for=timedelta(minutes=10))
    seed_telemetry(now=timezone.now())
    # The web process under test has its own settings, with sound hashes.
    with override_settings(PASSWORD_HASHERS=global_settings.PASSWORD_HASHERS):
        for name, group in (("ada", "admin"), ("otto", "operator"), ("vera", "viewer")):
            factories.make_user(name, group=group, password=PASSWORD)
    yield
    clear_gateways()


@pytest.fixture
def gateway_url() -> Iterator[str]:
    """The fake engine in the gateway's place; it answers every key."""
    port = free_port()
    command = [sys.executable, "-m", "tests.fakes.fake_engine", "--port", str(port), "--switch", "gap_s=0.02"]
    process = subprocess.Popen(command, cwd=settings.BASE_DIR, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def web(pool: None, static_folder: Path, gateway_url: str) -> Iterator[Web]:
    name = connection.settings_dict["NAME"]
    port = free_port()
    env = os.environ | {
        "SLUICE_WEB_PORT": str(port),
        "SLUICE_DATA_DIR": str(static_folder),
        "SLUICE_DATABASE_URL": os.environ["SLUICE_DATABASE_URL"].replace("/sluice?", f"/{name}?"),
        "SLUICE_GATEWAY_URL": gateway_url,
        "SLUICE_DATABASE_POOL": "6",
        "SLUICE_LOG_LEVEL": "WARNING",
    }
    env.pop("COVERAGE_PROCESS_START", None)
    web = Web(port, env)
    web.start()
    yield web
    web.stop()


@dataclass
class Tab:
    """A browser tab and all that went wrong in it."""

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> int:
        answer = self.page.goto(self.url + path)
        return int(answer.status)

    def sign_in(self, name: str) -> None:
        self.open("/sign-in/")
        self.page.fill("#id_username", name)
        self.page.fill("#id_password", PASSWORD)
        self.page.click("button.primary")
        self.page.wait_for_url(f"{self.url}/")

    def overflow_px(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def in_database(work: Callable[[], T]) -> T:
    """In a thread of its own: Playwright keeps an event loop in this one, beside which the ORM refuses to work."""

    def run() -> T:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


OpenTab = Callable[..., Tab]


@pytest.fixture
def open_tab(web: Web) -> Iterator[OpenTab]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def make(*, width: int = 1280, scheme: Scheme = "light") -> Tab:
            height = 844 if width < 600 else 900
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab = Tab(context.new_page(), web.url)
            tab.page.on("console", lambda message: _note(tab, message))
            tab.page.on("pageerror", lambda error: tab.problems.append(f"error: {error}"))
            tab.page.on("dialog", lambda dialog: tab.problems.append(f"dialog: {dialog.message}"))
            return tab

        yield make
        chromium.close()


def _note(tab: Tab, message: Any) -> None:
    """A broken socket is reported by Chromium itself; the page's own words about it are tested."""
    if message.type == "error" and "WebSocket connection" not in message.text:
        tab.problems.append(f"console: {message.text}")
