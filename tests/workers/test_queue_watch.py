from datetime import UTC, datetime, timedelta

import pytest

from workers.queue_watch import is_stalled

T0 = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("sent_at", "seen_at", "since", "stalled"),
    [
        (None, None, T0, False),
        (after(10), None, T0, False),
        (after(40), None, T0, True),
        (after(40), after(30), T0, False),
        (after(90), after(30), T0, True),
        # A worker that has just come cannot have taken what was sent before it.
        (after(90), after(30), after(85), False),
        (after(90), None, None, False),
    ],
)
def test_a_queue_that_takes_no_probe_for_long_is_stalled_fc46(
    sent_at: datetime | None, seen_at: datetime | None, since: datetime | None, stalled: bool
) -> None:
    assert is_stalled(sent_at, seen_at, since=since) is stalled
