from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.tiny_model import make_tiny_model
from tests.journeys.installation import Installed, make_installed, phases_in, remove, wait_until
from tests.journeys.real import SMALL, find_runtime, release, wait_ready


@pytest.fixture(scope="session")
def shared_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """With the simulated engine and the demo model; its tests put back what they change."""
    installed = make_installed(tmp_path_factory.mktemp("journey") / "var")
    try:
        installed.up("--engine", "sim")
        yield installed
    finally:
        remove(installed)


@pytest.fixture
def sluice(shared_installation: Installed) -> Installed:
    """Whole and at one replica, whatever the last test did."""
    wait_until(
        lambda: phases_in(shared_installation.get("status/")) == ["ready"],
        limit_s=60,
        what="one ready replica",
    )
    wait_until(lambda: shared_installation.chat().status == 200, limit_s=30, what="an answer")
    return shared_installation


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A rollout leaves releases behind, so that this has an installation to itself."""
    installed = make_installed(tmp_path_factory.mktemp("rollout") / "var")
    try:
        installed.up("--engine", "sim")
        wait_until(lambda: phases_in(installed.get("status/")) == ["ready"], limit_s=60, what="release 1")
        yield installed
    finally:
        remove(installed)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """With a real vLLM and no model yet."""
    installed = make_installed(tmp_path_factory.mktemp("real") / "var")
    try:
        installed.up("--no-demo")
        wait_until(lambda: find_runtime(installed), limit_s=120, what="the runtime is probed")
        installed.post("profiles/", {"name": "small", "settings": SMALL})
        yield installed
    finally:
        remove(installed)


@pytest.fixture(scope="session")
def tiny(real: Installed) -> Installed:
    """The model `tiny` with all traffic on its one release; ready."""
    make_tiny_model(real.layout.data / "models" / "tiny")
    release(real, "tiny", replicas=1)
    real.post("models/tiny/plans/", {"weights": {"1": 100}})
    wait_ready(real, "tiny")
    return real
