"""What the form that starts a rollout says of room and of differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.template.loader import render_to_string

from console.pages.rollout_preview import Preview
from console.pages.rollout_room import change_rows, room_of
from pool.domain.fit_report import DeviceFit, FitOutcome, FitReport, Outage, StageBytes
from pool.domain.release_diff import ReleaseDiff, Warn
from pool.services.rollout_room import Reports

GIB = 1024**3
OUTAGE = Outage(95.4, True, ("short",), None, None, 95.4, "Nobody serves for about 95 s.")
DEVICE = DeviceFit(
    "node-a", "GPU-1", 0, "cuda", 80 * GIB, 1.0, 0, 1, 20 * GIB, ("r1",),
    (StageBytes("before", 40 * GIB, 40 * GIB),
     StageBytes("loading", 60 * GIB, 20 * GIB), StageBytes("after", None, None)),
)  # fmt: skip


def make_reports(outcome: FitOutcome, **values: Any) -> Reports:
    fit = FitReport(outcome, f"It is {outcome}.", (), (), (), (), (), (), None, (DEVICE,), 0)
    diff = ReleaseDiff(1, 2, (), (), (), (Warn("many", "Two things change at once."),))
    return Reports(diff, replace(fit, **values), (), diff.warnings, "")


def render(reports: Reports, *, is_accepted: bool = False) -> str:
    preview = Preview(room=room_of(reports, is_accepted=is_accepted), changes=change_rows(reports.diff))
    return render_to_string("rollouts/preview.html", {"preview": preview})


def test_an_outage_is_accepted_by_a_box_that_names_its_seconds() -> None:
    page = render(make_reports(FitOutcome.SWAP_ONLY, outage=OUTAGE))

    assert 'name="accept_outage"' in page
    assert "checked" not in page
    assert "I accept that nobody serves short for about 95 s." in page
    assert "checked" in render(make_reports(FitOutcome.SWAP_ONLY, outage=OUTAGE), is_accepted=True)


def test_an_outage_of_unknown_length_says_so() -> None:
    outage = replace(OUTAGE, seconds=None, is_full=False, lanes=())

    page = render(make_reports(FitOutcome.SWAP_ONLY, outage=outage))

    assert "fewer replicas serve any lane for a time that was never measured" in page


@pytest.mark.parametrize("outcome", [one for one in FitOutcome if one is not FitOutcome.SWAP_ONLY])
def test_without_an_outage_there_is_nothing_to_accept(outcome: FitOutcome) -> None:
    page = render(make_reports(outcome, missing=("10 GiB on node-a",)))

    assert "accept_outage" not in page
    assert f"It is {outcome}." in page
    assert "10 GiB on node-a" in page


def test_devices_tell_what_is_held_before_at_most_and_after() -> None:
    (row,) = room_of(make_reports(FitOutcome.FITS_BESIDE), is_accepted=False).devices

    assert (row.name, row.before, row.most, row.after, row.stops) == ("node-a · 0", "40.0", "60.0", "—", "r1")
