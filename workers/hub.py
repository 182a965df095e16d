"""Fetches a version from a model hub, where this machine has the network; whole or not at all."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path
from typing import ClassVar

from huggingface_hub import snapshot_download

from pool.domain.errors import PoolError
from pool.domain.sources import HubSource
from pool.weights import hub_folder_name, version_lock

logger = logging.getLogger(__name__)

PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Weights as safetensors only: other formats run code when they are opened."""


class HubUnreachable(PoolError):
    code: ClassVar[str] = "hub_unreachable"


class DiskFull(PoolError):
    code: ClassVar[str] = "disk_full"


def fetch_from_hub(source: HubSource, *, root: Path) -> Path:
    """The folder under `root` with the fetched files. Raises HubUnreachable, DiskFull, VersionBusy.

    What came before a failure stays in a hidden folder: the next try goes on from there.
    """
    name = hub_folder_name(source)
    folder, partial = root / name, root / f".{name}.partial"
    with version_lock(root / ".locks", name):
        if folder.is_dir():
            return folder
        try:
            snapshot_download(
                source.name, revision=source.revision or None, local_dir=partial, allow_patterns=PATTERNS
            )
        except Exception as exc:
            # The client raises its own, httpx's and the system's errors; all mean that the files did not come.
            if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(
                    f"The disk under this model root is full; '{source.name}' is fetched in part. Free space there.",
                    source=source.name,
                ) from exc
            logger.warning("fetch of %s failed: %s", source.name, type(exc).__name__)
            raise HubUnreachable(
                f"'{source.name}' could not be fetched ({type(exc).__name__}). Check this node's network, or copy the "
                "folder under a model root and register it as path:.",
                source=source.name,
            ) from exc
        shutil.rmtree(partial / ".cache", ignore_errors=True)
        partial.rename(folder)
    return folder
