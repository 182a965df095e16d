"""FC-41: what engines say of their prefix cache reaches the index, which stops believing where it is wrong."""

from typing import Any

from tests.pool.gateway.rig import Rig, chat_body, make_release, make_table

LONG = "a long text that many questions share " * 60


async def serve_two(rig: Rig, **switches: Any) -> None:
    replicas = [await rig.start_engine(name, **switches) for name in ("r1", "r2")]
    await rig.serve(make_table(make_release(1, *replicas)))


def describe(rig: Rig) -> dict[str, Any]:
    return rig.gateway.plane.routes.models["m"].indexes[1].describe()


async def ask_in_turn(rig: Rig, count: int, prompt: str = LONG) -> set[str]:
    """Names of the replicas that answered."""
    names = set()
    for number in range(count):
        answer = await rig.ask(chat_body(f"{prompt}{number}", max_tokens=1))
        assert answer.status == 200
        names.add(answer.headers["x-sluice-replica"])
    return names


async def test_a_prompt_that_comes_again_is_found_in_the_cache_where_it_was_expected(rig: Rig) -> None:
    await serve_two(rig)

    names = await ask_in_turn(rig, 20)

    index = describe(rig)
    assert len(names) == 1
    assert index["results"] == 20
    assert index["engine_hit_ratio"] > 0.8
    assert index["agreement_ratio"] > 0.9
    assert not index["alarm"]


async def test_an_engine_that_finds_nothing_raises_the_alarm(rig: Rig) -> None:
    await serve_two(rig, cached="zero")

    await ask_in_turn(rig, 60)

    assert describe(rig)["agreement_ratio"] == 0.0
    assert describe(rig)["alarm"]


async def test_an_engine_that_tells_nothing_is_no_divergence(rig: Rig) -> None:
    await serve_two(rig, cached="untold")

    names = await ask_in_turn(rig, 60)

    assert len(names) == 1
    assert describe(rig)["results"] == 0
    assert not describe(rig)["alarm"]
