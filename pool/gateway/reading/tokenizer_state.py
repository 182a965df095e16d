"""Which tokenizers the routing table names, how far each is, and for which releases a guess must do."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from pool.domain.routing_table import ModelRoute, ReleaseRoute
from pool.gateway.config import Config
from pool.gateway.reading.files import TokenizerFiles
from pool.gateway.reading.jobs import Pair
from pool.gateway.reading.prompt import Measures, measures_of

logger = logging.getLogger(__name__)

_RETRY_S = (1.0, 2.0, 5.0, 15.0, 60.0)
# The same file that ended so many readers ends the next one too.
_MOST_FAILURES = 3
NO_TOKENIZER = "no_tokenizer"
"""The version's files hold no tokenizer.json, or nobody has read them yet."""


class TokenizerStates:
    def __init__(self, config: Config, *, on_ready: Callable[[], None]) -> None:
        self.folder = config.state_dir / "tokenizers"
        self.loadable: tuple[Pair, ...] = ()
        """Wanted, here, and not found to be broken."""
        self.measures: dict[str, Measures] = {}
        """By model."""
        self._files = TokenizerFiles(self.folder, web_url=config.web_url, secret=config.secret)
        self._on_ready = on_ready
        self._users: dict[Pair, list[str]] = {}
        self._releases: dict[str, tuple[Pair | None, bool]] = {}
        """`model/release` → what it counts with, and whether its engine is simulated."""
        self._problems: dict[Pair, str] = {}
        self._failures: dict[Pair, int] = {}
        self._loaded: dict[Pair, Measures] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, models: Iterable[ModelRoute]) -> None:
        users: dict[Pair, list[str]] = {}
        releases: dict[str, tuple[Pair | None, bool]] = {}
        for model in models:
            for release in model.releases:
                pair = pair_of(release)
                releases[f"{model.name}/{release.number}"] = (pair, release.engine == "sim")
                if pair is not None:
                    users.setdefault(pair, []).append(model.name)
        self._releases = releases
        if users == self._users:
            return
        self._users = users
        self._loaded = {pair: one for pair, one in self._loaded.items() if pair in users}
        self._show_measures()
        self._choose()
        self._changed.set()
        if self._task is None and users:
            self._task = asyncio.get_running_loop().create_task(self._gather())

    def note_loaded(self, pair: Pair, measures: list[Any]) -> bool:
        """Whether this is news."""
        if pair in self._loaded:
            return False
        self._failures.pop(pair, None)
        self._loaded[pair] = measures_of(measures)
        self._show_measures()
        return True

    def note_failure(self, pair: Pair, reason: str) -> None:
        """Nothing counts with it any more until another table names another file."""
        self._failures[pair] = self._failures.get(pair, 0) + 1
        if reason != "tokenizer_broken" and self._failures[pair] < _MOST_FAILURES:
            return
        logger.warning("tokenizer of no use", extra={"digest": pair[0], "reason": reason})
        self._problems[pair] = reason
        for digest in pair:
            # It is fetched again when it is wanted again.
            if digest is not None:
                self._files.discard(digest)
        self._choose()

    def describe(self) -> dict[str, Any]:
        states = {name: self._state_of(*own) for name, own in self._releases.items()}
        degraded = {name: reason for name, (state, reason) in states.items() if state == "degraded"}
        tokenizers = {name: {"state": state, "reason": reason} for name, (state, reason) in states.items()}
        return {"tokenizers": tokenizers, "degraded": degraded}

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _state_of(self, pair: Pair | None, simulated: bool) -> tuple[str, str | None]:
        if pair is None:
            return ("estimated", "simulated") if simulated else ("degraded", NO_TOKENIZER)
        if pair in self._problems:
            return "degraded", self._problems[pair]
        if pair in self._loaded:
            return "ready", None
        problem = next((self._files.problems[one] for one in pair if one in self._files.problems), None)
        return ("loading", None) if problem is None else ("degraded", problem)

    def _show_measures(self) -> None:
        self.measures = {name: one for pair, one in self._loaded.items() for name in self._users[pair]}

    def _choose(self) -> None:
        self.loadable = tuple(
            pair
            for pair in self._users
            if pair not in self._problems and all(one is None or self._files.has(one) for one in pair)
        )

    async def _gather(self) -> None:
        """Fetches what is missing, for ever, more and more seldom."""
        tries = 0
        while True:
            self._changed.clear()
            wanted = {one for pair in self._users if pair not in self._problems for one in pair if one}
            found = [await self._files.ensure(digest) for digest in wanted]
            before = self.loadable
            self._choose()
            if self.loadable != before or tries == 0:
                self._on_ready()
            tries = 0 if all(found) else min(tries + 1, len(_RETRY_S))
            try:
                async with asyncio.timeout(_RETRY_S[tries - 1] if tries else None):
                    await self._changed.wait()
                    tries = 0
            except TimeoutError:
                continue


def pair_of(release: ReleaseRoute) -> Pair | None:
    return None if release.tokenizer is None else (release.tokenizer, release.chat_template)
