"""Choice of a replica."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import pytest

from pool.domain.affinity import PrefixIndex, ReplicaCache
from pool.domain.routing import choose_by_score


@dataclass(eq=False)
class Replica:
    in_flight: int = 0
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    others_in_flight: int | None = None
    others_tokens: int | None = None
    kv_tokens: int | None = None
    kv_used_ratio: float | None = None
    waiting: int | None = None
    gauges_at_s: float | None = None
    error_score: float = 0.0
    cached: ReplicaCache | None = None


@dataclass
class Ticket:
    prompt_tokens: int = 1000
    kv_need_tokens: int = 1200
    blocks: Sequence[int] = ()
    uncached_tokens: int = -1
    output_tokens: int = 0


def choose(
    replicas: Sequence[Replica],
    ticket: Ticket | None = None,
    index: PrefixIndex | None = None,
    draw: Callable[[], float] = lambda: 0.0,
) -> Replica | None:
    return choose_by_score(replicas, ticket or Ticket(), now_s=100.0, draw=draw, index=index)


@dataclass
class Pool:
    """Replicas with an index, of which the first holds the blocks 1 to 7 of a prompt of 1,000 tokens."""

    count: int = 3
    index: PrefixIndex = field(default_factory=PrefixIndex)

    def __post_init__(self) -> None:
        self.replicas = [Replica(kv_tokens=100_000) for _ in range(self.count)]
        for number, replica in enumerate(self.replicas):
            replica.cached = self.index.add(f"r{number}", 1, 100_000)
        first = self.replicas[0].cached
        assert first is not None
        self.index.note_sent(first, Ticket(blocks=range(1, 8), uncached_tokens=0), 100.0)


def test_no_candidate_is_no_choice() -> None:
    assert choose([]) is None


def test_the_only_candidate_is_chosen_whatever_it_does() -> None:
    only, ticket = Replica(in_flight=99, error_score=1.0), Ticket()

    assert choose([only], ticket) is only
    assert ticket.uncached_tokens == 1000


def test_the_only_candidate_tells_what_it_holds() -> None:
    pool, ticket = Pool(count=1), Ticket(blocks=range(1, 8))

    assert choose(pool.replicas, ticket, pool.index) is pool.replicas[0]
    assert ticket.uncached_tokens == 67


@pytest.mark.parametrize(
    "busy",
    [
        Replica(prefill_tokens=500),
        Replica(in_flight_tokens=5000),
        Replica(others_tokens=5000),
        Replica(error_score=0.2),
        Replica(in_flight=20),
        Replica(others_in_flight=20),
        Replica(kv_tokens=1000),
        Replica(waiting=3, gauges_at_s=99.0),
        Replica(kv_tokens=10_000, kv_used_ratio=0.85, gauges_at_s=99.0),
    ],
)
def test_load_and_trouble_repel(busy: Replica) -> None:
    free = Replica(kv_tokens=10_000, waiting=0, kv_used_ratio=0.1, gauges_at_s=99.0)

    assert choose([busy, free]) is free
    assert choose([free, busy]) is free


def test_a_tie_is_broken_by_the_draw() -> None:
    replicas = [Replica() for _ in range(4)]

    picked = [choose(replicas, draw=repeat(number).__next__) for number in (0.0, 0.3, 0.999)]

    assert picked == [replicas[0], replicas[1], replicas[3]]


def test_a_known_beginning_attracts() -> None:
    pool, ticket = Pool(), Ticket(blocks=range(1, 8))
    pool.replicas[0].prefill_tokens = 10_000

    assert choose(pool.replicas, ticket, pool.index, draw=lambda: 0.5) is pool.replicas[0]
    assert ticket.uncached_tokens == 67


def test_a_beginning_is_left_when_its_queue_is_far_longer_than_what_it_saves() -> None:
    pool, ticket = Pool(), Ticket(blocks=range(1, 8))
    pool.replicas[0].prefill_tokens = 13_000

    assert choose(pool.replicas, ticket, pool.index) is not pool.replicas[0]
    assert ticket.uncached_tokens == 1000


def test_a_beginning_is_left_at_the_load_bound() -> None:
    pool, ticket = Pool(), Ticket(blocks=range(1, 8))
    pool.replicas[0].in_flight = 8

    assert choose(pool.replicas, ticket, pool.index) is not pool.replicas[0]


def test_over_the_bound_everywhere_the_beginning_counts_again() -> None:
    pool, ticket = Pool(), Ticket(blocks=range(1, 8))
    for replica in pool.replicas:
        replica.in_flight = 8

    assert choose(pool.replicas, ticket, pool.index) is pool.replicas[0]


def test_without_an_index_beginnings_count_nothing() -> None:
    pool, ticket = Pool(), Ticket(blocks=range(1, 8))
    pool.replicas[0].prefill_tokens = 1

    assert choose(pool.replicas, ticket) is pool.replicas[1]
    assert ticket.uncached_tokens == 1000


def test_an_alarm_makes_beginnings_count_little() -> None:
    pool, ticket = Pool(), Ticket(blocks=range(1, 8))
    pool.replicas[0].prefill_tokens = 1000
    for _ in range(100):
        pool.index.note_result(prompt_tokens=1000, expected_tokens=900, engine_tokens=0)

    assert choose(pool.replicas, ticket, pool.index) is not pool.replicas[0]


def test_a_replica_that_is_new_to_the_index_is_a_candidate_too() -> None:
    pool = Pool()
    new = Replica()

    picked = choose([*pool.replicas, new], Ticket(blocks=(77,)), pool.index, draw=lambda: 0.9)

    assert picked is new


def test_new_prompts_go_where_less_was_sent_lately() -> None:
    pool = Pool()
    assert pool.replicas[1].cached is not None
    pool.index.note_sent(pool.replicas[1].cached, Ticket(uncached_tokens=5000), 100.0)

    picked = choose(pool.replicas, Ticket(), pool.index, draw=lambda: 0.34)

    assert picked is pool.replicas[2]


def test_work_spreads_evenly() -> None:
    pool, draw = Pool(count=4), random.Random(1)
    sent: Counter[int] = Counter()

    for number in range(400):
        ticket = Ticket(blocks=(1000 + number,), prompt_tokens=draw.randint(100, 4000))
        replica = choose(pool.replicas, ticket, pool.index, draw=draw.random)
        assert replica is not None
        assert replica.cached is not None
        pool.index.note_sent(replica.cached, ticket, 100.0)
        sent[pool.replicas.index(replica)] += ticket.uncached_tokens

    assert max(sent.values()) / min(sent.values()) < 1.05


@pytest.mark.parametrize(
    "silent",
    [
        {"waiting": None, "kv_used_ratio": None, "gauges_at_s": None},
        {"waiting": 0, "kv_used_ratio": 0.0, "gauges_at_s": 90.0},
        {"waiting": None, "kv_used_ratio": None, "gauges_at_s": 99.5},
        {"waiting": float("nan"), "kv_used_ratio": float("nan"), "gauges_at_s": 99.5},
    ],
)
def test_unknown_gauges_neither_attract_nor_repel(silent: dict[str, float | None]) -> None:
    replicas = [Replica(kv_tokens=50_000, waiting=4, kv_used_ratio=0.8, gauges_at_s=99.5) for _ in range(3)]
    for name, value in silent.items():
        setattr(replicas[0], name, value)
    draw, picks = random.Random(1), Counter[int]()
    running: list[Replica] = []

    for _ in range(900):
        replica = choose(replicas, draw=draw.random)
        assert replica is not None
        picks[replicas.index(replica)] += 1
        replica.prefill_tokens += 1000
        running.append(replica)
        if len(running) > 12:
            running.pop(draw.randrange(12)).prefill_tokens -= 1000

    assert all(240 <= picks[number] <= 360 for number in range(3)), picks


def test_old_gauges_of_all_are_no_gauges() -> None:
    replicas = [Replica(waiting=9, gauges_at_s=50.0), Replica(waiting=0, gauges_at_s=50.0)]

    assert choose(replicas) is replicas[0]


def test_trouble_counts_without_a_known_cache() -> None:
    failing, fine = Replica(error_score=0.5), Replica(prefill_tokens=1000)

    assert choose([failing, fine]) is fine


def test_among_many_the_holder_of_the_beginning_is_found() -> None:
    pool, ticket = Pool(count=200), Ticket(blocks=range(1, 8))
    pool.replicas.append(pool.replicas.pop(0))

    for draw in (0.0, 0.5, 0.999):
        assert choose(pool.replicas, ticket, pool.index, draw=repeat(draw).__next__) is pool.replicas[-1]


def test_among_many_the_load_of_a_few_is_compared() -> None:
    draw = random.Random(1)
    replicas = [Replica(prefill_tokens=1000 * number) for number in range(100)]

    picked = [choose(replicas, draw=draw.random) for _ in range(50)]

    assert all(replica is not None and replica.prefill_tokens < 13_000 for replica in picked)
