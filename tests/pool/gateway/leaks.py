"""What must be zero again when nobody asks any more (FC-24)."""

from tests.pool.gateway.rig import Rig


async def wait_for_rest(rig: Rig) -> None:
    """Ends all client connections, and fails if what they held does not come back."""
    plane = rig.gateway.plane
    replicas = plane.routes.replicas
    for connection in rig.connections:
        connection.abort()
    await rig.until(lambda: not plane.clients and not plane.exchanges and not len(plane.shadows))
    await rig.until(lambda: not any(engine.running or engine.waiting for engine in rig.engines.values()))
    idle = sum(replica.pool.idle_count for replica in replicas)
    await rig.until(lambda: sum(len(engine.connections) for engine in rig.engines.values()) <= idle)
    for replica in replicas:
        assert not replica.in_flight
        assert not replica.in_flight_tokens
        assert not replica.prefill_tokens
        assert not replica.long_in_flight
        assert not any(replica.lane_in_flight.values())
    for model in plane.routes.models.values():
        assert not any(gate.waiting for gate in model.gates.values())
    assert not {line for line in read_gauges(rig, "sluice_in_flight{") if not line.endswith(" 0")}


def read_gauges(rig: Rig, start: str) -> list[str]:
    page = rig.gateway.plane.metrics.render().decode()
    return [line for line in page.splitlines() if line.startswith(start)]
