"""A byte tokenizer with a chat template as files by hash, and readers that know them."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pool.domain.chat_template_file import bundle_templates
from pool.domain.gateway_settings import ModelSettings
from pool.domain.routing_table import ModelRoute, ReleaseRoute
from pool.gateway.config import Config
from pool.gateway.reading.jobs import Pair
from pool.gateway.reading.readers import Readers
from tests.fakes.tiny_model import make_tiny_model

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Files:
    """`pair`: of a tokenizer that makes each byte a token."""

    tokenizer: bytes
    template: bytes

    @property
    def pair(self) -> Pair:
        return digest(self.tokenizer), digest(self.template)

    def write_to(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for content in (self.tokenizer, self.template):
            (folder / digest(content)).write_bytes(content)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_release(pair: Pair | None, *, number: int = 1, engine: Any = "vllm") -> ReleaseRoute:
    tokenizer, template = pair or (None, None)
    return ReleaseRoute(number, "v1", "balanced", engine, (), tokenizer, template)


def make_model(*releases: ReleaseRoute, name: str = "m", **settings: Any) -> ModelRoute:
    return ModelRoute(name, (), None, releases, 0, ModelSettings(**settings))


def chat_body(*texts: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    template = bundle_templates({"tokenizer_config.json": (folder / "tokenizer_config.json").read_bytes()})
    assert template is not None
    return Files((folder / "tokenizer.json").read_bytes(), template)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(secret="a-secret-of-the-installation", data_dir=tmp_path)


@pytest.fixture
async def readers(config: Config) -> AsyncIterator[Readers]:
    readers = Readers(config)
    yield readers
    readers.close()
    await asyncio.sleep(0)


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is awaited has no event of its own
            await asyncio.sleep(0.01)


async def wait_until_ready(readers: Readers, name: str = "m/1") -> None:
    await wait_until(lambda: readers.describe()["tokenizers"][name]["state"] == "ready")


async def read(readers: Readers, body: bytes | bytearray, path: bytes = b"/v1/chat/completions") -> Any:
    done = asyncio.get_running_loop().create_future()
    readers.read(path, body, on_done=done.set_result)
    async with asyncio.timeout(DEADLINE_S):
        return await done


async def count(readers: Readers, pair: Pair, body: bytes, **options: Any) -> Any:
    done = asyncio.get_running_loop().create_future()
    job = readers.count(
        pair,
        options.pop("path", b"/v1/chat/completions"),
        body,
        on_done=done.set_result,
        timeout_s=options.pop("timeout_s", DEADLINE_S),
    )
    assert job is not None
    return await done


async def cut(readers: Readers, body: bytes | bytearray, *, excess_tokens: int, how: str = "message") -> Any:
    """Tokens and the body."""
    done = asyncio.get_running_loop().create_future()
    job = readers.truncate(
        b"/v1/chat/completions",
        body,
        model="m",
        how=how,
        excess_tokens=excess_tokens,
        on_done=lambda tokens, left: done.set_result((tokens, left)),
    )
    assert job is not None
    async with asyncio.timeout(DEADLINE_S):
        return await done
