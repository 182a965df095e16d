"""Tokenizer files: fetched from web by hash, kept on disk, and what shows when they are not to be had."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pool.domain.signing import derive_internal_token
from pool.gateway.config import Config
from pool.gateway.reading.files import TokenizerFiles
from pool.gateway.reading.readers import Readers
from tests.pool.gateway.reading.conftest import (
    Files,
    chat_body,
    count,
    digest,
    make_model,
    make_release,
    wait_until,
    wait_until_ready,
)


class Web:
    """Answers `GET /internal/tokenizer/DIGEST` to who shows the internal token."""

    def __init__(self, secret: str) -> None:
        self.contents: dict[str, bytes] = {}
        self.status = 200
        self.asked: list[str] = []
        self._token = f"authorization: Bearer {derive_internal_token(secret)}".encode()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        name = head.split(b" ", 2)[1].decode().removeprefix("/internal/tokenizer/")
        self.asked.append(name)
        content = self.contents.get(name, b"")
        status = self.status if content and self._token in head else 404
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


@pytest.fixture
async def web(config: Config, files: Files) -> AsyncIterator[Web]:
    web = Web(config.secret)
    web.contents = {digest(content): content for content in (files.tokenizer, files.template)}
    yield web
    await web.stop()


@pytest.fixture
async def store(config: Config, web: Web) -> TokenizerFiles:
    return TokenizerFiles(config.state_dir / "tokenizers", web_url=await web.start(), secret=config.secret)


async def test_a_file_is_fetched_checked_and_kept(store: TokenizerFiles, files: Files, web: Web) -> None:
    assert await store.ensure(files.pair[0])
    assert await store.ensure(files.pair[0])

    path = store.folder / files.pair[0]
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (files.tokenizer, 0o600)
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert web.asked == [files.pair[0]]


async def test_other_bytes_than_the_hash_says_are_not_kept(store: TokenizerFiles, web: Web) -> None:
    web.contents["0" * 64] = b"something else"

    assert not await store.ensure("0" * 64)
    assert store.problems == {"0" * 64: "wrong_hash"}
    assert not store.has("0" * 64)


async def test_what_is_missing_is_logged_once(
    store: TokenizerFiles, files: Files, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not await store.ensure("1" * 64)
        web.status = 500
        assert not await store.ensure(files.pair[0])

    assert store.problems == {"1" * 64: "not_stored", files.pair[0]: "web_answered_500"}
    assert len(caplog.records) == 2


async def test_without_web_the_reason_is_known(config: Config) -> None:
    alone = TokenizerFiles(config.state_dir, web_url=None, secret="s")
    lost = TokenizerFiles(config.state_dir, web_url="http://127.0.0.1:1", secret="s")

    assert not await alone.ensure("1" * 64)
    assert not await lost.ensure("1" * 64)
    assert (alone.problems["1" * 64], lost.problems["1" * 64]) == ("no_web", "web_unreachable")


async def test_a_full_disk_is_a_reason_and_no_failure(store: TokenizerFiles, files: Files) -> None:
    store.folder.parent.mkdir(parents=True)
    store.folder.write_text("no folder")

    assert not await store.ensure(files.pair[0])
    assert store.problems[files.pair[0]] == "disk_file_exists"


async def test_files_of_the_past_make_room(
    store: TokenizerFiles, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.reading.files._MOST_FILES", 2)
    store.folder.mkdir(parents=True)
    for number in range(5):
        (store.folder / str(number)).touch()

    assert await store.ensure(files.pair[0])

    assert len(list(store.folder.iterdir())) == 3


# The way into the readers.
@pytest.fixture
async def fetching(config: Config, web: Web) -> AsyncIterator[Readers]:
    readers = Readers(replace(config, web_url=await web.start()))
    yield readers
    readers.close()
    await asyncio.sleep(0)


async def test_a_tokenizer_goes_from_web_into_the_count(fetching: Readers, files: Files) -> None:
    fetching.follow([make_model(make_release(files.pair))])
    assert fetching.describe()["tokenizers"]["m/1"]["state"] == "loading"

    await wait_until_ready(fetching)

    assert await count(fetching, files.pair, chat_body("abc")) == 22
    assert fetching.describe()["degraded"] == {}


async def test_fc41_a_file_that_is_not_to_be_had_shows_and_comes_later(
    fetching: Readers, files: Files, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.reading.tokenizer_state._RETRY_S", (0.02,))
    kept, web.contents = web.contents, {}
    fetching.follow([make_model(make_release(files.pair))])

    await wait_until(lambda: fetching.describe()["degraded"] == {"m/1": "not_stored"})
    await wait_until(lambda: len(web.asked) > 5)
    web.contents = kept

    await wait_until_ready(fetching)


async def test_fc41_a_broken_tokenizer_shows_as_degraded_and_is_logged_once(
    fetching: Readers, files: Files, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    broken = b'{"no":"tokenizer"}'
    web.contents[digest(broken)] = broken
    pair = (digest(broken), None)

    with caplog.at_level(logging.WARNING):
        fetching.follow([make_model(make_release(pair), make_release(files.pair, number=2))])
        await wait_until_ready(fetching, "m/2")
        await wait_until(lambda: fetching.describe()["degraded"] == {"m/1": "tokenizer_broken"})
        fetching.follow([make_model(make_release(pair), make_release(files.pair, number=2))])

    assert [record.message for record in caplog.records] == ["tokenizer of no use"]
    assert fetching.count(pair, b"/v1/completions", b"{}", on_done=lambda tokens: None) is None


async def test_a_file_that_ends_its_readers_is_left_alone(
    fetching: Readers, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.reading.readers._LOAD_TIMEOUT_S", 0.0)
    monkeypatch.setattr("pool.gateway.reading.readers._BACK_OFF_S", (0.0, 0.01))
    fetching.follow([make_model(make_release(files.pair))])

    await wait_until(lambda: fetching.describe()["degraded"] == {"m/1": "timeout"})


async def test_releases_without_a_tokenizer_say_why(readers: Readers) -> None:
    readers.follow([make_model(make_release(None), make_release(None, number=2, engine="sim"))])

    told = readers.describe()
    assert told["degraded"] == {"m/1": "no_tokenizer"}
    assert told["tokenizers"]["m/2"] == {"state": "estimated", "reason": "simulated"}


async def test_what_the_table_names_no_more_is_forgotten(fetching: Readers, files: Files) -> None:
    fetching.follow([make_model(make_release(files.pair))])
    await wait_until_ready(fetching)

    fetching.follow([make_model(make_release((files.pair[0], None)))])
    await wait_until_ready(fetching)

    assert fetching.count(files.pair, b"/v1/completions", b"{}", on_done=lambda tokens: None) is None


async def test_a_changed_file_on_disk_is_fetched_again(
    fetching: Readers, config: Config, files: Files, web: Web
) -> None:
    folder: Path = config.state_dir / "tokenizers"
    files.write_to(folder)
    (folder / files.pair[0]).write_bytes(b"changed")
    fetching.follow([make_model(make_release(files.pair))])
    await wait_until(lambda: fetching.describe()["degraded"] == {"m/1": "tokenizer_broken"})

    assert not (folder / files.pair[0]).exists()
