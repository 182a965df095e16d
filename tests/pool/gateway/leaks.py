"""What must be zero again when nobody asks any more (FC-24)."""

import contextlib

from tests.pool.gateway.rig import Rig

REST_S = 10.0


async def wait_for_rest(rig: Rig) -> None:
    """Ends all client connections, and fails if what they held does not come back."""
    assert await find_leftovers(rig) == []


async def find_leftovers(rig: Rig) -> list[str]:
    """Ends all client connections; what they held and did not give back in time."""
    for connection in rig.connections:
        connection.abort()
    with contextlib.suppress(TimeoutError):
        await rig.until(lambda: not list_leftovers(rig), within_s=REST_S)
    return list_leftovers(rig)


def list_leftovers(rig: Rig) -> list[str]:
    plane = rig.gateway.plane
    found = {
        "clients": len(plane.clients),
        "exchanges": len(plane.exchanges),
        "shadows": len(plane.shadows),
        "waiting": sum(
            gate.waiting for model in plane.routes.models.values() for gate in model.gates.values()
        ),
    }
    idle = 0
    for replica in plane.routes._replicas.values():
        idle += replica.pool.idle_count
        found |= {
            f"{replica.id} in flight": replica.in_flight,
            f"{replica.id} tokens in flight": replica.in_flight_tokens,
            f"{replica.id} tokens in prefill": replica.prefill_tokens,
            f"{replica.id} long in flight": replica.long_in_flight,
            f"{replica.id} in flight by lane": sum(map(abs, replica.lane_in_flight.values())),
        }
    for name, engine in rig.engines.items():
        found[f"engine {name} runs"] = engine.running
        found[f"engine {name} has waiting"] = engine.waiting
    # Connections to engines that are neither idle in a pool nor in use.
    found["connections"] = max(0, sum(len(engine.connections) for engine in rig.engines.values()) - idle)
    gauges = [
        line for line in plane.metrics.render().decode().splitlines() if line.startswith("sluice_in_flight{")
    ]
    return [f"{name}: {count}" for name, count in found.items() if count] + [
        line for line in gauges if not line.endswith(" 0")
    ]
