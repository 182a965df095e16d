"""Brings the files of a version onto this node: from another folder, or from a hub. Whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Protocol

from pool.domain.errors import PoolError
from pool.domain.manifest import Difference, Fault, Manifest, require_whole
from pool.domain.sources import HubSource
from workers.weights import CHUNK_BYTES, Progress, hub_folder_name

SPARE_BYTES = 256 * 2**20
"""Left free on the disk beside the copy: logs and the database write there too."""
HUB_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")


class DiskFull(PoolError):
    code: ClassVar[str] = "disk_full"


class HubUnavailable(PoolError):
    code: ClassVar[str] = "hub_unavailable"


class HubClient(Protocol):
    """What is asked of a hub. Any failure is raised as HubUnavailable."""

    def find_commit(self, name: str, revision: str) -> str:
        """The commit that a branch or tag stands for now; an empty revision is the default branch."""
        ...

    def download(self, name: str, commit: str, *, folder: Path, patterns: Sequence[str]) -> None: ...


def copy_version(source: Path, target: Path, manifest: Manifest, *, progress: Progress | None = None) -> None:
    """Copies and hashes in one pass. The target appears whole, by rename, or not at all; it must not
    exist yet."""
    require_room(target.parent, manifest.total_bytes)
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, manifest.total_bytes)

    with _appearing(target) as partial:
        for entry in manifest.files:
            copied = _copy_file(source / entry.name, partial / entry.name, add)
            require_whole([] if copied == entry.sha256 else [Difference(entry.name, Fault.CHANGED)])


def fetch_from_hub(source: HubSource, root: Path, *, client: HubClient) -> tuple[Path, HubSource]:
    """The folder, and the source pinned to its commit. A commit that is already there is not fetched
    again."""
    pinned = HubSource(source.name, client.find_commit(source.name, source.revision))
    target = root / hub_folder_name(pinned)
    if not target.is_dir():
        with _appearing(target) as partial:
            client.download(pinned.name, pinned.revision, folder=partial, patterns=HUB_PATTERNS)
            # The client's own bookkeeping, which names places of this host.
            shutil.rmtree(partial / ".cache", ignore_errors=True)
    return target, pinned


def require_room(folder: Path, needed_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise _disk_full(needed_bytes=needed_bytes, free_bytes=free)


class HuggingFaceHub:
    """The public hub, by its own client, which is loaded on use: most nodes never fetch."""

    def find_commit(self, name: str, revision: str) -> str:
        from huggingface_hub import HfApi

        with _hub_errors(name):
            return str(HfApi().model_info(name, revision=revision or None, timeout=10).sha)

    def download(self, name: str, commit: str, *, folder: Path, patterns: Sequence[str]) -> None:
        from huggingface_hub import snapshot_download

        with _hub_errors(name):
            snapshot_download(name, revision=commit, local_dir=folder, allow_patterns=list(patterns))


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Every failure of the client is an OSError, or comes from a bad name or answer as a ValueError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full() from error
        raise _hub_unavailable(name, error) from error
    except (ValueError, RuntimeError) as error:
        raise _hub_unavailable(name, error) from error


def _hub_unavailable(name: str, error: Exception) -> HubUnavailable:
    return HubUnavailable(
        f"{name} could not be fetched from the hub ({type(error).__name__}). Check the name, the revision and this "
        "node's network, or put the files under a model root and use path:.",
        name=name,
    )


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its name at the end; gone when anything fails."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        os.rename(partial, target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full() from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_file(source: Path, target: Path, on_chunk: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
            on_chunk(len(chunk))
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _disk_full(**details: int) -> DiskFull:
    return DiskFull(
        "The disk has no room for the version's files. Free space there, or use another root.", **details
    )
