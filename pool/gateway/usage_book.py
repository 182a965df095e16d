"""Where a process keeps its totals, and how they reach telemetry: files under the state folder, a hash in Redis.

A file is one run's: held with a lock while the run goes on, and read by whichever process of the host finds it free
afterwards. It goes when telemetry has booked it: then telemetry takes the run's fields out of the hash.
"""

import fcntl
import logging
import mmap
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import redis.asyncio

from pool.gateway.totals import FILE_BYTES, Entry, Totals, field_of, read_run

logger = logging.getLogger(__name__)

NAMES = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
ENDED = "ended"
_BATCH = 500
_LOOK_S = 10.0
"""Between two looks for runs that are over."""
_AGAIN_S = 300.0
"""Everything is told again so often: a hash can lose a field without anybody noticing."""
_KEPT_S = 35 * 86_400.0
"""A run that nobody has booked for so long is given up."""


class UsageBook:
    """`open` before the first request; `tell` about once a second with a client of Redis."""

    def __init__(self, folder: Path, gateway_id: str) -> None:
        self._folder = folder / "usage"
        self._gateway_id = gateway_id
        self._file: int | None = None
        self._path: Path | None = None
        self._ended: dict[Path, int] = {}
        """Files of runs that are over, with the lock that this process holds on each."""
        self._told: dict[Path, str] = {}
        """Those whose numbers are in the hash of this session, with the run."""
        self._marked: set[Path] = set()
        """Those that are marked as ended there too."""
        self._client: object = None
        self._next_look_s = 0.0
        self._tell_all_s = 0.0
        self._overflowed = 0
        self.is_on_disk = False
        """False: a kill loses what was not told yet."""
        self.totals = Totals(bytearray(FILE_BYTES), self._name_run())
        self._day = 0

    @property
    def overflowed(self) -> int:
        """Requests that were counted under no key."""
        return self._overflowed + self.totals.overflowed

    def open(self) -> None:
        """A new run; the one before is over. Without a disk the totals stay in memory."""
        self._overflowed += self.totals.overflowed
        self._let_go()
        run = self._name_run()
        self._day = _day_of(time.time())
        try:
            self.totals = Totals(self._map_file(run), run)
            self.is_on_disk = True
        except OSError as exc:
            logger.error("usage is not kept on disk", extra={"error": exc.strerror})
            self.totals = Totals(bytearray(FILE_BYTES), run)
            self.is_on_disk = False

    def close(self) -> None:
        """What is left is told by the next process of this host."""
        self._let_go()
        for file in self._ended.values():
            os.close(file)
        self._ended.clear()

    async def tell(self, client: "redis.asyncio.Redis", prefix: str, now_s: float) -> None:
        """Raises RedisError, OSError or TimeoutError; nothing is lost then, it is told again."""
        name = f"{prefix}:usage"
        if client is not self._client or now_s >= self._tell_all_s:
            self._client = client
            self._tell_all_s = now_s + _AGAIN_S
            self._told.clear()
            self._marked.clear()
            self.totals.mark_all()
        await self._tell_changed(client, name)
        if _day_of(time.time()) != self._day:
            self.open()
            self._next_look_s = 0.0
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._find_ended()
            for path, file in list(self._ended.items()):
                await self._tell_ended(client, name, path, file)

    async def _tell_changed(self, client: "redis.asyncio.Redis", name: str) -> None:
        totals = self.totals
        while slots := totals.take_changed(_BATCH):
            fields = {field_of(totals.run, entry): _dump(entry) for entry in (slot.entry() for slot in slots)}
            try:
                await _put(client, name, fields)
            except BaseException:
                totals.mark(slots)
                raise

    async def _tell_ended(self, client: "redis.asyncio.Redis", name: str, path: Path, file: int) -> None:
        """One step at each look: its numbers, then the mark of its end, so that who reads the mark has read them."""
        told = self._told.get(path)
        if told is not None:
            if path not in self._marked:
                await _put(client, name, {told: ENDED})
                self._marked.add(path)
            elif not await _has(client, name, told):
                # Nobody but telemetry takes it out, when it has booked all.
                self._forget(path)
            return
        try:
            run, entries = read_run(os.pread(file, FILE_BYTES, 0))
        except (OSError, ValueError):
            # One that was killed while it was made holds nothing yet.
            self._forget(path)
            return
        for start in range(0, len(entries), _BATCH):
            fields = {field_of(run, entry): _dump(entry) for entry in entries[start : start + _BATCH]}
            await _put(client, name, fields)
        if not entries:
            self._forget(path)
            return
        self._told[path] = run

    def _find_ended(self) -> None:
        for path in list(_list_runs(self._folder)):
            if path == self._path or path in self._ended:
                continue
            try:
                file = _lock(path, os.O_RDWR)
            except OSError:
                continue  # Its process lives, or another one was first.
            self._ended[path] = file
            if os.fstat(file).st_mtime < time.time() - _KEPT_S:
                logger.warning("usage was never booked and is given up", extra={"file": path.name})
                self._forget(path)

    def _forget(self, path: Path) -> None:
        self._told.pop(path, None)
        self._marked.discard(path)
        file = self._ended.pop(path, None)
        path.unlink(missing_ok=True)
        if file is not None:
            os.close(file)

    def _map_file(self, run: str) -> mmap.mmap:
        """Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{run.rpartition('@')[2]}.bin"
        file = _lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            # Without room on the disk the first write into the map would kill the process.
            os.posix_fallocate(file, 0, FILE_BYTES)
            memory = mmap.mmap(file, FILE_BYTES)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._file, self._path = file, path
        return memory

    def _let_go(self) -> None:
        """The lock falls with the last descriptor; the map keeps its own, so it is given up by name."""
        file, self._file, self._path = self._file, None, None
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _name_run(self) -> str:
        return f"{self._gateway_id}@{int(time.time() * 1000)}-{secrets.token_hex(2)}"


async def _put(client: Any, name: str, fields: Mapping[str, bytes | str]) -> None:
    await client.hset(name, mapping=fields)


async def _has(client: Any, name: str, field: str) -> bool:
    return bool(await client.hexists(name, field))


def _list_runs(folder: Path) -> Iterator[Path]:
    return folder.glob("*.bin") if folder.is_dir() else iter(())


def _lock(path: Path, flags: int) -> int:
    """Raises OSError: BlockingIOError while another one holds it."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _day_of(wall_s: float) -> int:
    return datetime.fromtimestamp(wall_s, UTC).toordinal()


def _dump(entry: Entry) -> bytes:
    return orjson.dumps(dict(zip(NAMES, entry[3], strict=True)))
