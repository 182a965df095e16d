from datetime import UTC, datetime, timedelta

import pytest

from pool.domain.gauges import GaugeCell, Subject
from pool.queries.rule_readings import list_device_signals, load_rules
from pool.telemetry.store import add_gauges
from tests import factories

NOW = datetime(2026, 11, 29, 20, 0, tzinfo=UTC)
GIB = 1024.0**3

pytestmark = pytest.mark.django_db


def store_device(name: str, *, foreign: float) -> None:
    cells = {}
    for number in range(6):
        cell = GaugeCell()
        cell.note("memory_foreign_bytes", foreign * GIB)
        cell.note("memory_total_bytes", 80 * GIB)
        cells[Subject("device", name, node="n1"), NOW - timedelta(seconds=10 * number + 5)] = cell
    add_gauges(cells)


@pytest.mark.parametrize(("kind", "told"), [("cuda", [0.25]), ("cpu", [])])
def test_only_a_gpu_has_no_room_for_others(kind: str, told: list[float]) -> None:
    node = factories.make_node()
    factories.make_runtime(node)
    uuid = factories.make_device(node, kind=kind).uuid
    factories.make_replica(
        factories.make_release(factories.make_model("chatty")), node=node, device_uuids=[uuid], phase="ready"
    )
    store_device(uuid, foreign=20)

    signals = list_device_signals(load_rules(), (), NOW)

    assert [signal.reading.value for signal in signals if signal.rule == "foreign_memory"] == told
