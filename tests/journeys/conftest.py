from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.journeys.installation import Installed, make_installed, phases_in, remove, wait_until


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
