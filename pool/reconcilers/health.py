"""How a process' loops are doing, for its `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pool.domain.prometheus import Page
from pool.reconcilers.loop import Loop


def fill_loops(page: Page, loops: Iterable[Loop]) -> None:
    """A leased loop that another process runs has made no pass here: its times are absent, its counts 0."""
    now = time.monotonic()
    for loop in loops:
        page.set("sluice_loop_passes_total", loop.passes, loop=loop.name)
        page.set("sluice_loop_failures_total", loop.failures, loop=loop.name)
        page.set("sluice_loop_pass_seconds", loop.pass_s, loop=loop.name)
        page.set(
            "sluice_loop_age_seconds", None if loop.ended_at is None else now - loop.ended_at, loop=loop.name
        )
