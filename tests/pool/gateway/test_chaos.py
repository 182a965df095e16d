"""FC-24: whatever clients, engines and tables do, in the end every gauge is zero. `bench.chaos` is the longer run."""

import asyncio

from tests.pool.gateway.chaos import Chaos, count_descriptors
from tests.pool.gateway.leaks import wait_for_rest
from tests.pool.gateway.rig import Rig


async def test_fc24_nothing_is_left_of_5000_mixed_requests(rig: Rig) -> None:
    chaos = Chaos(rig, seed=24)
    await chaos.start()
    await chaos.run(500)
    await wait_for_rest(rig)
    tasks, descriptors = len(asyncio.all_tasks()), count_descriptors()

    await chaos.run(4500)
    await chaos.heal()

    await wait_for_rest(rig)
    assert len(asyncio.all_tasks()) <= tasks
    # The pools may hold some connections more.
    assert count_descriptors() <= descriptors + 30
    happened = chaos.outcomes
    assert min(happened["answered"], happened["streamed"], happened["given up"], happened["429"]) > 100
    assert min(happened["read slowly"], happened["rubbish"], happened["503"], happened["engine died"]) > 5
