"""Who is answered from where; the keys and the way to Redis are tested beside it."""

import random
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.answer_cache import AnswerCache, Turn
from pool.gateway.answer_keys import digest_ask, make_key, release_of
from pool.gateway.answer_store import Answer

CHAT, EMBEDDINGS = b"/v1/chat/completions", b"/v1/embeddings"
CACHED = ModelSettings(cache_s=60)
COALESCED = ModelSettings(coalesce=True)
BOTH = ModelSettings(cache_s=60, coalesce=True)
ANSWER = Answer(1, b"application/json", b'{"id":"a"}')


class Asker:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Answer | Turn] = []

    def on_answer(self, answer: Answer) -> None:
        self.told.append(answer)

    def on_turn(self) -> None:
        self.told.append(Turn.GO)


class Desk:
    """A cache with one key, one model and a clock."""

    def __init__(self, settings: ModelSettings, **more: Any) -> None:
        self.cache = AnswerCache(secret="secret", **more)
        self.settings = settings
        self.now_s = 100.0
        self.key = self.key_of("hello")

    def key_of(self, text: str, *, release: int = 1) -> bytes:
        key = self.cache.key_of(CHAT, ask(text), settings=self.settings, scope="key", release=release)
        assert key is not None
        return key

    def ask(self, asker: Asker, key: bytes | None = None) -> Answer | Turn:
        return self.cache.ask(key or self.key, asker, model="m", settings=self.settings, now_s=self.now_s)

    def settle(self, asker: Asker, answer: Answer | None, key: bytes | None = None, **more: Any) -> None:
        self.cache.settle(key or self.key, asker, answer, settings=self.settings, now_s=self.now_s, **more)

    def tally(self) -> dict[str, Any]:
        tally: dict[str, Any] = self.cache.describe()["models"]["m"]
        return tally


def ask(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


# Keys.
def test_equal_requests_have_one_digest() -> None:
    first = digest_ask(CHAT, ask(user="a", stream=False, metadata={"x": 1}, seed=1))
    second = digest_ask(CHAT, dict(reversed(ask(seed=1, temperature=0).items())))

    assert first is not None
    assert first == second


@pytest.mark.parametrize(
    "other", [ask("x"), ask(seed=2), ask(max_tokens=5), ask(model="b"), ask(logprobs=True)]
)
def test_what_changes_an_answer_changes_the_digest(other: dict[str, Any]) -> None:
    assert digest_ask(CHAT, other) not in (None, digest_ask(CHAT, ask()))
    assert digest_ask(b"/v1/completions", ask()) != digest_ask(CHAT, ask())


@pytest.mark.parametrize(
    "fields",
    [
        ask(temperature=None),
        ask(temperature=0.1),
        ask(temperature=False),
        ask(temperature="0"),
        ask(stream=True),
        ask(n=2),
        ask(best_of=3),
        ask(tools=[{"type": "function"}]),
        ask(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
        ),
        ask(input=[{"type": "input_file", "file_id": "f"}]),
    ],
)
def test_what_may_be_answered_otherwise_has_no_digest(fields: dict[str, Any]) -> None:
    assert digest_ask(CHAT, fields) is None


def test_embeddings_need_no_temperature() -> None:
    assert digest_ask(EMBEDDINGS, {"model": "m", "input": "x"}) is not None


def test_keys_differ_by_secret_caller_and_release() -> None:
    digest = b"d" * 16
    keys = {
        make_key(digest, secret=secret, scope=scope, release=release)
        for secret in (b"a", b"b")
        for scope in ("one", "two")
        for release in (1, 2)
    }

    assert len(keys) == 8
    assert {release_of(key) for key in keys} == {1, 2}


def test_there_is_no_key_while_the_model_has_it_off() -> None:
    cache = AnswerCache(secret="secret")

    assert cache.key_of(CHAT, ask(), settings=ModelSettings(), scope="k", release=1) is None
    assert cache.key_of(CHAT, ask(temperature=1), settings=BOTH, scope="k", release=1) is None


# Memory.
def test_an_answer_is_found_until_it_is_too_old() -> None:
    desk = Desk(CACHED)

    assert desk.ask(first := Asker()) is Turn.GO
    desk.settle(first, ANSWER)
    desk.now_s += 59.9
    assert desk.ask(Asker()) == ANSWER
    desk.now_s += 0.1
    assert desk.ask(Asker()) is Turn.GO
    assert desk.tally() == {"hits": 1, "shared_hits": 0, "coalesced": 0, "misses": 2, "hit_ratio": 1 / 3}
    assert desk.cache.describe()["bytes"] == 0


def test_an_answer_of_another_release_or_too_large_is_not_kept() -> None:
    desk = Desk(CACHED)

    desk.settle(Asker(), Answer(2, b"", b"spilled"))
    desk.settle(Asker(), Answer(1, b"", b"x" * 300_000))
    desk.settle(Asker(), None)

    assert desk.ask(Asker()) is Turn.GO


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    desk = Desk(CACHED, capacity_bytes=3 * 1500)
    keys = [desk.key_of(str(number)) for number in range(4)]
    large = Answer(1, b"", b"x" * 1000)

    for key in keys[:3]:
        desk.settle(Asker(), large, key)
    desk.settle(Asker(), large, keys[1])
    assert desk.ask(Asker(), keys[0]) == large
    desk.settle(Asker(), large, keys[3])

    assert [desk.ask(Asker(), key) for key in keys] == [large, large, Turn.GO, large]
    assert desk.cache.describe()["bytes"] == 4500
    assert desk.cache.describe()["entries"] == 3


# Coalescing.
def test_equal_requests_in_flight_share_one_answer() -> None:
    desk = Desk(COALESCED)
    leader, followers = Asker(), [Asker(), Asker()]

    assert desk.ask(leader) is Turn.GO
    assert [desk.ask(one) for one in followers] == [Turn.WAIT] * 2
    assert desk.ask(Asker(), desk.key_of("other")) is Turn.GO
    desk.settle(leader, ANSWER)
    for one in followers:
        desk.settle(one, None)

    assert leader.told == []
    assert [one.told for one in followers] == [[ANSWER]] * 2
    assert desk.tally()["coalesced"] == 2
    assert desk.ask(Asker()) is Turn.GO


def test_followers_go_on_their_own_when_the_leader_fails() -> None:
    desk = Desk(COALESCED)
    leader, followers = Asker(), [Asker(), Asker()]
    for one in (leader, *followers):
        desk.ask(one)

    desk.settle(leader, None)

    assert [one.told for one in followers] == [[Turn.GO]] * 2
    desk.settle(followers[0], ANSWER)
    assert followers[1].told == [Turn.GO]
    assert desk.tally()["misses"] == 3


def test_the_next_one_leads_when_the_leaders_client_has_gone() -> None:
    desk = Desk(COALESCED)
    leader, second, third = Asker(), Asker(), Asker()
    for one in (leader, second, third):
        desk.ask(one)

    desk.settle(leader, None, is_gone=True)
    assert (second.told, third.told) == ([Turn.GO], [])
    desk.settle(second, ANSWER)

    assert third.told == [ANSWER]


def test_a_follower_that_has_gone_is_told_nothing() -> None:
    desk = Desk(COALESCED)
    leader, gone = Asker(), Asker()
    desk.ask(leader)
    desk.ask(gone)

    desk.settle(gone, None, is_gone=True)
    desk.settle(leader, ANSWER)

    assert gone.told == []


def test_a_leader_without_followers_leaves_nothing() -> None:
    desk = Desk(COALESCED)
    leader = Asker()
    desk.ask(leader)

    desk.settle(leader, None, is_gone=True)

    assert desk.ask(Asker()) is Turn.GO


def test_no_more_follow_than_can_be_told_at_once() -> None:
    desk = Desk(COALESCED)
    desk.ask(Asker())

    turns = [desk.ask(Asker()) for _ in range(300)]

    assert turns.count(Turn.WAIT) == 256
    assert turns.count(Turn.GO) == 44


def test_who_is_told_may_ask_again_at_once() -> None:
    desk = Desk(COALESCED)

    class Eager(Asker):
        def on_answer(self, answer: Answer) -> None:
            self.told.append(desk.ask(Asker()))

    leader, eager = Asker(), Eager()
    desk.ask(leader)
    desk.ask(eager)
    desk.settle(leader, ANSWER)

    assert eager.told == [Turn.GO]


class Crowd:
    """Asks and ends at random, and does what each is told."""

    def __init__(self, desk: Desk, chance: random.Random) -> None:
        self.desk, self.chance = desk, chance
        self.keys = [desk.key_of(str(number)) for number in range(20)]
        self.waiting: dict[Asker, bytes] = {}
        self.running: dict[Asker, bytes] = {}

    def begin(self) -> None:
        asker, key = Asker(), self.chance.choice(self.keys)
        turn = self.desk.ask(asker, key)
        if isinstance(turn, Answer):
            self.desk.settle(asker, None, key)
        else:
            (self.waiting if turn is Turn.WAIT else self.running)[asker] = key

    def end(self, book: dict[Asker, bytes]) -> None:
        asker = self.chance.choice(list(book))
        is_ok = book is self.running and self.chance.random() < 0.6
        answer = ANSWER if is_ok else None
        self.desk.settle(asker, answer, book.pop(asker), is_gone=self.chance.random() < 0.5)

    def hear(self) -> None:
        for asker in [one for one in self.waiting if one.told]:
            key = self.waiting.pop(asker)
            assert len(asker.told) == 1
            if asker.told == [Turn.GO]:
                self.running[asker] = key
            else:
                self.desk.settle(asker, None, key)


@pytest.mark.parametrize("wish", [COALESCED, BOTH])
def test_random_asks_and_ends_leave_nobody_waiting(wish: ModelSettings) -> None:
    desk, chance = Desk(wish), random.Random(7)
    crowd = Crowd(desk, chance)

    for _ in range(5000):
        book = crowd.running if chance.random() < 0.7 else crowd.waiting
        if book and chance.random() < 0.5:
            crowd.end(book)
        else:
            crowd.begin()
        crowd.hear()
        desk.now_s += 1
    while crowd.running:
        crowd.end(crowd.running)
        crowd.hear()

    assert not crowd.waiting
    assert not desk.cache._places
    assert not desk.cache._flights
