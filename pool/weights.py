"""The files of a version on this node: where they lie, whether they are whole, what they are. No Django,
no writes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pool.domain.config_fields import BadModelConfig
from pool.domain.errors import PoolError
from pool.domain.manifest import (
    INDEX_SUFFIX,
    Difference,
    Fault,
    FileEntry,
    Manifest,
    Stamp,
    compare_sizes,
    files_to_hash,
    require_whole,
    shards_of,
    weight_files,
)
from pool.domain.sources import HubSource, PackageSource, PathSource, Source
from pool.domain.version_facts import ModelFacts, TensorTotals, read_facts
from pool.safetensors_files import read_totals

CHUNK_BYTES = 8 * 2**20
MAX_FILES = 20_000
"""A folder with more is no model's; the largest known have 1,000 shards."""
CONFIG_FILES = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, a few times a second at most."""


class PathOutsideRoots(PoolError):
    code: ClassVar[str] = "path_outside_root"


class SourceNotFound(PoolError):
    code: ClassVar[str] = "source_not_found"


class VersionBusy(PoolError):
    code: ClassVar[str] = "version_busy"


@dataclass(frozen=True, slots=True)
class VersionReading:
    manifest: Manifest
    stamps: dict[str, Stamp]
    facts: ModelFacts


def locate(source: Source, *, roots: Sequence[Path], packages: Mapping[str, Path] | None = None) -> Path:
    """The real folder of a source that is already on this node.

    `packages`: package name → folder with its converted weights. Raises PathOutsideRoots, SourceNotFound.
    """
    match source:
        case PathSource(folder=folder):
            return _inside_roots(folder, roots)
        case PackageSource(package=package):
            found = (packages or {}).get(package)
            if found is None or not found.is_dir():
                raise SourceNotFound(
                    f"The weights of package {package} are not on this node.", package=package
                )
            return found.resolve()
        case _:
            return _inside_roots(hub_folder_name(source), roots)


def hub_folder_name(source: HubSource) -> str:
    """Name under a model root of what was fetched: one folder per repository and commit."""
    return f"hub--{source.name.replace('/', '--')}@{source.revision}"


def scan_folder(folder: Path, *, roots: Sequence[Path] = ()) -> dict[str, Stamp]:
    """Stamps of all regular files that are not hidden, by name with forward slashes.

    A link must end inside the folder or a root: the cache of a hub links to its blobs, nothing else may.
    """
    allowed = [folder.resolve(), *(root.resolve() for root in roots)]
    stamps: dict[str, Stamp] = {}
    for name, path in _visible_files(folder):
        if not _is_inside(path.resolve(), allowed):
            raise PathOutsideRoots(f"{name} is a link to a place outside of the model roots.", file=name)
        found = _stat_or_none(path)
        if found is None:
            raise SourceNotFound(f"{name} is a link to nothing.", file=name)
        if stat.S_ISREG(found.st_mode):
            stamps[name] = Stamp(found.st_size, found.st_mtime_ns, found.st_ino)
        if len(stamps) > MAX_FILES:
            raise SourceNotFound(f"The folder holds more than {MAX_FILES} files and is no model's.")
    return stamps


def read_version(
    folder: Path, *, roots: Sequence[Path] = (), progress: Progress | None = None
) -> VersionReading:
    """Facts first, since they are cheap and may refuse; then the hash of every file.

    Raises FilesBroken, BadModelConfig, SourceNotFound, PathOutsideRoots.
    """
    stamps = scan_folder(folder, roots=roots)
    facts = inspect_files(folder, stamps)
    hashes = _hash_files(folder, sorted(stamps), stamps, progress)
    entries = tuple(FileEntry(name, stamps[name].size_bytes, hashes[name]) for name in sorted(stamps))
    return VersionReading(Manifest(entries), stamps, facts)


def inspect_files(folder: Path, stamps: Mapping[str, Stamp]) -> ModelFacts:
    """Whether the files can be whole, and what they say, without hashing: seconds even for a large model."""
    if "config.json" not in stamps:
        raise SourceNotFound("The folder has no config.json; it is no model folder.", file="config.json")
    needed = weight_files(stamps, shards=_indexed_shards(folder, stamps))
    require_whole(Difference(name, Fault.MISSING) for name in needed if name not in stamps)
    if not needed:
        raise SourceNotFound("The folder holds no weights: neither safetensors nor .bin files.")
    configs = {name: (folder / name).read_bytes() for name in CONFIG_FILES if name in stamps}
    return read_facts(configs, file_names=frozenset(stamps), tensors=_tensor_totals(folder, needed, stamps))


def verify_files(
    folder: Path,
    manifest: Manifest,
    *,
    known: Mapping[str, Stamp],
    roots: Sequence[Path] = (),
    full: bool = False,
    progress: Progress | None = None,
) -> dict[str, Stamp]:
    """The stamps to keep, once the files are those of the manifest; raises FilesBroken, which names the
    others.

    Files with a known stamp are not read again, unless `full`.
    """
    found = scan_folder(folder, roots=roots)
    require_whole(compare_sizes(manifest, found))
    names = files_to_hash(manifest, found, known, full=full)
    hashes = _hash_files(folder, names, found, progress)
    expected = {entry.name: entry.sha256 for entry in manifest.files}
    require_whole(Difference(name, Fault.CHANGED) for name in names if hashes[name] != expected[name])
    return {name: found[name] for name in expected}


@contextmanager
def version_lock(folder: Path, name: str) -> Iterator[None]:
    """One reader or writer of a version's files per host; raises VersionBusy at once. `name`: a plain
    word."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VersionBusy(
                f"The files of {name} are being fetched or checked already.", name=name
            ) from None
        yield
    finally:
        os.close(descriptor)


def hash_file(path: Path, on_chunk: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            on_chunk(count)
    return digest.hexdigest()


def _inside_roots(folder: str, roots: Sequence[Path]) -> Path:
    real_roots = [root.resolve() for root in roots]
    outside = False
    for root in real_roots:
        try:
            real = (root / folder).resolve()
            is_folder = real.is_dir()
        except (OSError, ValueError, RuntimeError):  # NUL, too long, a loop of links
            continue
        if not _is_inside(real, real_roots):
            outside = True
        elif is_folder:
            return real
    if outside or not real_roots:
        raise PathOutsideRoots("The folder is not inside a registered model root of this node.")
    raise SourceNotFound("No registered model root of this node has that folder.")


def _is_inside(real: Path, real_roots: Iterable[Path]) -> bool:
    return any(real.is_relative_to(root) for root in real_roots)


def _visible_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                path = Path(parent, name)
                yield path.relative_to(folder).as_posix(), path


def _stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _indexed_shards(folder: Path, stamps: Mapping[str, Stamp]) -> frozenset[str]:
    indexes = [name for name in stamps if name.endswith(INDEX_SUFFIX) and "/" not in name]
    if len(indexes) > 1:
        raise BadModelConfig("The folder has several safetensors indexes; keep the one that belongs to it.")
    return shards_of(indexes[0], (folder / indexes[0]).read_bytes()) if indexes else frozenset()


def _tensor_totals(folder: Path, names: Sequence[str], stamps: Mapping[str, Stamp]) -> TensorTotals:
    """Older formats have no header to look at: their size is all that is known without running them."""
    if all(name.endswith(".safetensors") for name in names):
        return read_totals(folder, names)
    return TensorTotals(elements={}, total_bytes=sum(stamps[name].size_bytes for name in names))


def _hash_files(
    folder: Path, names: Sequence[str], stamps: Mapping[str, Stamp], progress: Progress | None
) -> dict[str, str]:
    """A file that changes while it is read counts as changed."""
    total = sum(stamps[name].size_bytes for name in names)
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    hashes: dict[str, str] = {}
    for name in names:
        path = folder / name
        hashes[name] = hash_file(path, add)
        after = path.stat()
        if Stamp(after.st_size, after.st_mtime_ns, after.st_ino) != stamps[name]:
            require_whole([Difference(name, Fault.CHANGED)])
    return hashes
