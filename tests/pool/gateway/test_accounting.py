"""What is counted of an answer: under the release that gave it, and only what could be seen."""

from __future__ import annotations

from pool.gateway.metrics import Series
from tests.pool.gateway.rig import Rig, make_release, make_table


async def _serve(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(gap_s=0.005))))


def _served(rig: Rig) -> Series:
    """The one request's, by the labels of who served it."""
    (found,) = [
        series
        for (model, release, _, tier), series in rig.gateway.plane.metrics._series.items()
        if (model, release, tier) == ("m", "1", "standard")
    ]
    return found


async def test_gaps_and_the_first_token_of_a_stream_count_for_its_release(rig: Rig) -> None:
    await _serve(rig)

    await rig.ask(stream=True)

    served = _served(rig)
    assert sum(served.ttft.counts) == sum(served.e2e.counts) == 1
    assert sum(served.itl.counts) > 1
    assert served.ttft.sum_s < served.e2e.sum_s


async def test_a_plain_answer_has_no_first_token_of_its_own(rig: Rig) -> None:
    await _serve(rig)

    await rig.ask()

    served = _served(rig)
    assert (sum(served.ttft.counts), sum(served.e2e.counts)) == (0, 1)
    (record,) = rig.gateway.plane.facts.take(10)
    assert (record["ttft_s"], record["e2e_s"] > 0) == (None, True)
