"""Tokenizers and chat templates on this host's disk, by hash; what is not there is fetched from web."""

import asyncio
import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path

from pool.domain.signing import derive_internal_token
from pool.gateway.fetch import FetchFailed, fetch

logger = logging.getLogger(__name__)

# Files of versions that are served no more; the newest stay.
_MOST_FILES = 64


class TokenizerFiles:
    """Shared by the gateway processes of a host: a file appears whole or not at all."""

    def __init__(self, folder: Path, *, web_url: str | None, secret: str) -> None:
        self.folder = folder
        self.problems: dict[str, str] = {}
        """Digest → why it is not here, as a code."""
        self._web_url = web_url
        self._secret = secret

    def has(self, digest: str) -> bool:
        return (self.folder / digest).is_file()

    def discard(self, digest: str) -> None:
        """It is not what its name says."""
        with contextlib.suppress(OSError):
            (self.folder / digest).unlink()

    async def ensure(self, digest: str) -> bool:
        """Whether the file is here now. Says once in the log why not."""
        problem = None if self.has(digest) else await self._fetch(digest)
        if problem is None:
            self.problems.pop(digest, None)
            return True
        if self.problems.get(digest) != problem:
            logger.warning("tokenizer file not to be had", extra={"digest": digest, "reason": problem})
        self.problems[digest] = problem
        return False

    async def _fetch(self, digest: str) -> str | None:
        """The problem, None if there is none."""
        if self._web_url is None:
            return "no_web"
        headers = {"authorization": f"Bearer {derive_internal_token(self._secret)}"}
        try:
            status, content = await fetch(self._web_url, f"/internal/tokenizer/{digest}", headers=headers)
        except FetchFailed:
            return "web_unreachable"
        if status != 200:
            return "not_stored" if status == 404 else f"web_answered_{status}"
        # Hashing and writing 32 MiB takes longer than the loop may be held.
        return await asyncio.to_thread(self._store, digest, content)

    def _store(self, digest: str, content: bytes) -> str | None:
        if hashlib.sha256(content).hexdigest() != digest:
            return "wrong_hash"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room()
            # mkstemp's file is 0600.
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, self.folder / digest)
        except OSError as exc:
            return f"disk_{(exc.strerror or 'error').lower().replace(' ', '_')}"
        return None

    def _make_room(self) -> None:
        files = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_MOST_FILES:]:
            path.unlink(missing_ok=True)
