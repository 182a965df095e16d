"""A version's tokenizer and chat templates, from its folder on this node. No Django, no writes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pool.domain.chat_template_file import LARGEST_FILE_BYTES, SOURCES, bundle_templates
from pool.domain.manifest import FileEntry, FilesBroken, Manifest

TOKENIZER_FILE = "tokenizer.json"


class TokenizerChanged(FilesBroken):
    """A file is not that of the manifest any more; the check of all files will say which."""

    code: ClassVar[str] = "tokenizer_changed"


@dataclass(frozen=True, slots=True)
class TokenizerReading:
    tokenizer: bytes | None
    chat_template: bytes | None
    problem: str
    """Why there is no tokenizer, as a code; "" if there is one."""


def read_tokenizer(folder: Path, manifest: Manifest) -> TokenizerReading:
    """Raises TokenizerChanged, OSError."""
    entry = manifest.entry(TOKENIZER_FILE)
    if entry is None:
        # SentencePiece and tiktoken files need libraries of their own.
        return TokenizerReading(None, None, "no_tokenizer_json")
    if entry.size_bytes > LARGEST_FILE_BYTES:
        return TokenizerReading(None, None, "tokenizer_too_large")
    parts = [one for name in SOURCES if (one := manifest.entry(name)) is not None]
    small = {part.name: _read(folder, part) for part in parts if part.size_bytes <= LARGEST_FILE_BYTES // 8}
    return TokenizerReading(_read(folder, entry), bundle_templates(small), "")


def _read(folder: Path, entry: FileEntry) -> bytes:
    content = (folder / entry.name).read_bytes()
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise TokenizerChanged(f"{entry.name} is not the file of the manifest.", file=entry.name)
    return content
