"""kill -9 of an engine in a whole installation: nothing of it stays, the next generation comes, the reason is kept."""

from __future__ import annotations

import signal

from tests.journeys.installation import Installed, send, wait_until
from tests.journeys.streams import Stream


def test_a_killed_engine_comes_back_and_its_end_is_told_fc03(sluice: Installed) -> None:
    (engine,) = sluice.engines()
    (before,) = sluice.replicas(phase="ready")
    starts = sluice.count_starts()
    stream = Stream(sluice, tokens=450)
    stream.wait_begun()

    send(engine.pid, signal.SIGKILL)
    stream.finish()
    back_s = wait_until(
        lambda: [r["generation"] for r in sluice.replicas(phase="ready")] == [before["generation"] + 1],
        limit_s=45,
    )

    print(f"the next generation is ready after {back_s:.1f} s")  # noqa: T201
    # A cut stream never looks finished.
    assert "[DONE]" not in stream.events
    assert "stream_interrupted" in stream.events[-1]
    replica = sluice.get(f"replicas/{before['id']}/")
    ended = [
        one
        for one in replica["history"]
        if (one["generation"], one["phase"]) == (before["generation"], "failed")
    ]
    # An engine whose keeper was killed before is nobody's child: how it ended is then not told.
    assert [one["reason"] for one in ended] in (["killed"], ["unknown"])
    (after,) = sluice.engines()
    assert after != engine
    assert replica["replica"]["pid"] == after.pid
    assert sluice.count_starts() == starts + 1
    assert not sluice.zombies()
    assert sluice.chat().status == 200
