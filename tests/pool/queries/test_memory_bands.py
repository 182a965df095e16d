from __future__ import annotations

from datetime import timedelta

import pytest

from pool.models import Device, DeviceMemory, Replica
from pool.queries.ages import FigureState
from pool.queries.memory_bands import Band, BandOwner, build_bands
from tests.factories import GIB, T0


def memory(*, ours: int = 0, foreign: int = 0, total: int = 80) -> DeviceMemory:
    return DeviceMemory(
        device=Device(uuid="gpu-0"),
        total_bytes=total * GIB,
        free_bytes=(total - ours - foreign) * GIB,
        ours_bytes=ours * GIB,
        foreign_bytes=foreign * GIB,
        measured_at=T0,
    )


def replica(
    name: str, *, weights: float | None = None, kv: float | None = None, phase: str = "ready"
) -> Replica:
    figures = {"model_memory_bytes": weights, "kv_cache_bytes": kv}
    return Replica(
        id=name,
        phase=phase,
        figures={key: value * GIB for key, value in figures.items() if value is not None},
    )


def sizes(bands: tuple[Band, ...]) -> dict[tuple[BandOwner, str | None], float]:
    return {(band.owner, band.replica): band.size_bytes / GIB for band in bands}


def test_the_bands_add_up_to_the_total() -> None:
    view = build_bands(memory(ours=30, foreign=6), [replica("r1", weights=10, kv=16)], now=T0)

    assert sizes(view.bands) == {
        (BandOwner.WEIGHTS, "r1"): 10,
        (BandOwner.KV_CACHE, "r1"): 16,
        (BandOwner.ENGINE_OTHER, None): 4,
        (BandOwner.FOREIGN, None): 6,
        (BandOwner.FREE, None): 44,
    }
    assert sum(band.ratio for band in view.bands) == pytest.approx(1.0)


def test_printed_figures_never_exceed_what_was_measured() -> None:
    view = build_bands(memory(ours=12), [replica("r1", weights=10, kv=16), replica("r2", weights=10)], now=T0)

    assert sum(band.size_bytes for band in view.bands if band.replica) == 12 * GIB
    assert sum(band.size_bytes for band in view.bands) == 80 * GIB


def test_a_starting_replica_reserves_of_what_is_free() -> None:
    starting = replica("r1", phase="starting")
    starting.reserved_bytes = 20 * GIB

    view = build_bands(memory(ours=0, foreign=70), [starting], now=T0)

    assert sizes(view.bands)[BandOwner.RESERVED, None] == 10
    assert view.reserved_bytes == 20 * GIB
    assert (BandOwner.FREE, None) not in sizes(view.bands)


def test_figures_that_nobody_printed_are_no_bands() -> None:
    view = build_bands(memory(ours=5), [replica("r1")], now=T0)

    assert sizes(view.bands) == {(BandOwner.ENGINE_OTHER, None): 5, (BandOwner.FREE, None): 75}


def test_without_a_measurement_nothing_is_zero() -> None:
    view = build_bands(None, [replica("r1", weights=1)], now=T0)

    assert (view.total_bytes, view.free_bytes, view.bands) == (None, None, ())
    assert view.measured.state is FigureState.ABSENT


def test_an_old_measurement_says_its_age() -> None:
    view = build_bands(memory(), [], now=T0 + timedelta(seconds=30))

    assert (view.measured.age_s, view.measured.state) == (30.0, FigureState.STALE)
