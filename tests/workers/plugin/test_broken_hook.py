"""A plug-in that an engine's version breaks: the engine serves, the ring says why there are no steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.plugin.real_engine import SETTINGS, complete, make_overlay, open_fleet, open_ring

pytestmark = pytest.mark.engine

BROKEN_STEP = """

def _broken(self, output, begun_ns):
    raise AttributeError("'SchedulerOutput' object has no attribute 'total_num_scheduled_tokens'")


StepLog.note_updated = _broken
"""
BROKEN_START = """

def _broken(cls, scheduler, path, *, engine):
    raise AttributeError("'Scheduler' object has no attribute 'kv_cache_manager'")


StepLog.open = classmethod(_broken)
"""


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (BROKEN_STEP, "removed after 5 failures: AttributeError"),
        (BROKEN_START, "cannot be followed: AttributeError"),
    ],
    ids=["each_step", "at_the_start"],
)
def test_an_engine_whose_version_breaks_the_hook_serves_and_says_so(
    tmp_path: Path, lines: str, reason: str
) -> None:
    with open_fleet(make_overlay(tmp_path, steps=lines)) as fleet:
        engine = fleet.start(**SETTINGS)

        answer = complete(engine, "Hello", tokens=16)

        assert answer["usage"]["completion_tokens"] == 16
        reader = open_ring(engine)
        assert reason in reader.missing
        assert reader.read_steps() == []
        assert reader.in_step_s() is None
        reader.close()
