"""The files of a version with sizes and hashes, and what differs from them. Reading files is the worker's
part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pool.domain.config_fields import BadModelConfig, parse_object
from pool.domain.errors import PoolError

INDEX_SUFFIX = ".safetensors.index.json"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


class FilesBroken(PoolError):
    """The files are not those of the manifest, or cannot be whole. `details["files"]`: each with its
    fault."""

    code: ClassVar[str] = "files_broken"


class Fault(StrEnum):
    MISSING = "missing"
    """Named by the manifest or an index, and not there."""
    TRUNCATED = "truncated"
    """Shorter than it must be: a download that broke off."""
    CHANGED = "changed"
    """Another size or another hash."""
    UNEXPECTED = "unexpected"
    """Code that the manifest does not name; other additional files are no fault."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    name: str
    """Relative to the version's folder, with forward slashes."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells cheaply that a file was not touched since it was hashed."""

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Difference:
    file: str
    fault: Fault


@dataclass(frozen=True, slots=True)
class Manifest:
    files: tuple[FileEntry, ...]

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    @property
    def digest(self) -> str:
        """One hash for all: equal for equal files, whatever their order and time."""
        lines = sorted(f"{entry.sha256} {entry.size_bytes} {entry.name}" for entry in self.files)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def entry(self, name: str) -> FileEntry | None:
        return next((entry for entry in self.files if entry.name == name), None)


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    files = [asdict(entry) for entry in manifest.files]
    return {"digest": manifest.digest, "total_bytes": manifest.total_bytes, "files": files}


def manifest_from_json(stored: Mapping[str, Any]) -> Manifest:
    return Manifest(tuple(FileEntry(**entry) for entry in stored["files"]))


def stamps_to_json(stamps: Mapping[str, Stamp]) -> dict[str, list[int]]:
    return {name: [stamp.size_bytes, stamp.mtime_ns, stamp.inode] for name, stamp in sorted(stamps.items())}


def stamps_from_json(stored: Mapping[str, Iterable[int]]) -> dict[str, Stamp]:
    return {name: Stamp(*values) for name, values in stored.items()}


def compare_sizes(manifest: Manifest, found: Mapping[str, Stamp]) -> tuple[Difference, ...]:
    """Faults that show without hashing. Additional files that are no code are left alone."""
    differences = []
    for entry in manifest.files:
        stamp = found.get(entry.name)
        if stamp is None:
            differences.append(Difference(entry.name, Fault.MISSING))
        elif stamp.size_bytes != entry.size_bytes:
            is_short = stamp.size_bytes < entry.size_bytes
            differences.append(Difference(entry.name, Fault.TRUNCATED if is_short else Fault.CHANGED))
    known = {entry.name for entry in manifest.files}
    differences += [
        Difference(name, Fault.UNEXPECTED)
        for name in sorted(found)
        if name not in known and name.endswith(".py")
    ]
    return tuple(differences)


def files_to_hash(
    manifest: Manifest, found: Mapping[str, Stamp], known: Mapping[str, Stamp], *, full: bool = False
) -> tuple[str, ...]:
    """Files whose hash must be taken again: all on demand, else those whose stamp is not the known one."""
    names = [entry.name for entry in manifest.files if entry.name in found]
    return tuple(name for name in names if full or known.get(name) != found[name])


def shards_of(index_file: str, content: bytes) -> frozenset[str]:
    """Names of the shards that an index file needs; raises BadModelConfig."""
    weight_map = parse_object(index_file, content).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModelConfig(f"{index_file} lacks weight_map.", file=index_file, field="weight_map")
    names = set(weight_map.values())
    if not all(isinstance(name, str) and is_plain_name(name) for name in names):
        raise BadModelConfig(f"{index_file}: weight_map names files that are not beside it.", file=index_file)
    return frozenset(names)


def is_plain_name(name: str) -> bool:
    """A file of the folder itself: no path, no hidden file, nothing that a path could be made of."""
    return (
        0 < len(name) <= 255
        and "/" not in name
        and "\\" not in name
        and name.isprintable()
        and name[0] != "."
    )


def weight_files(names: Iterable[str], *, shards: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The files that the engine loads: those of the index, else all safetensors, else the older formats.

    Mistral ships the same weights twice; `consolidated…` is the copy that the engine leaves out.
    """
    if shards:
        return tuple(sorted(shards))
    beside = sorted(name for name in names if name.endswith(WEIGHT_SUFFIXES) and "/" not in name)
    safetensors = [name for name in beside if name.endswith(".safetensors")]
    plain = [name for name in safetensors if not name.startswith("consolidated")]
    return tuple(plain or safetensors or beside)


def require_whole(differences: Iterable[Difference]) -> None:
    """Raises FilesBroken, which names every file with its fault."""
    listed = list(differences)
    if not listed:
        return
    told = ", ".join(f"{item.file} is {item.fault}" for item in listed[:5])
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    raise FilesBroken(
        f"The version's files are not whole: {told}{more}. Fetch these files again.",
        files=[{"file": item.file, "fault": item.fault.value} for item in listed],
    )
