"""Where an installation keeps its things: the data folder, the run folder for sockets, the cache folder."""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.errors import LauncherError
from launcher.exec_child import NOBODY
from launcher.variables import read_path, resolve_path

ROOT = Path(__file__).resolve().parent.parent
# A Unix socket's path ends at 107 bytes; the longest name in the run folder is a replica's socket.
SOCKET_PATH_BYTES = 100
LONGEST_SOCKET_NAME_BYTES = 32


class UnsafeFolder(LauncherError):
    """A folder for sockets or secrets belongs to somebody else, or others can enter it."""

    code: ClassVar[str] = "unsafe_folder"


@dataclass(frozen=True)
class Layout:
    """The folders of one installation; nothing is created by looking at them."""

    data: Path

    @property
    def lock(self) -> Path:
        return self.data / "lock"

    @property
    def secrets(self) -> Path:
        return self.data / "secrets"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def engines(self) -> Path:
        return self.data / "engines"

    @property
    def record(self) -> Path:
        return self.data / "run" / "supervisor.json"

    @property
    def sockets(self) -> Path:
        """`<data>/run`, or a short folder of this user where the path would be too long for a socket."""
        here = self.data / "run"
        if len(os.fsencode(here)) + LONGEST_SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
            return here
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(f"/tmp/sluice-{os.getuid()}-{digest}")

    def create(self) -> None:
        """Makes the folders, private to this user; repeating it changes nothing."""
        refuse_shared_folder(self.data)
        try:
            for folder in (
                self.data,
                self.secrets,
                self.logs,
                self.engines,
                self.data / "run",
                self.data / "models",
            ):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LauncherError(
                f"The data folder {self.data} cannot be used: {error.strerror}. Name another one with"
                f" --data.",
                path=str(self.data),
            ) from error
        for folder in (self.secrets, self.engines, self.sockets):
            make_private_folder(folder)


def refuse_shared_folder(folder: Path) -> None:
    """A data folder in which others may write could hold secrets and sockets that they have put there."""
    try:
        found = folder.stat()
    except OSError:
        return  # It is made, or what is wrong with it is told, by whoever makes it.
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
        raise UnsafeFolder(
            f"Other users may write in {folder}. Take that right from them (chmod go-w), or name another data"
            " folder.",
            path=str(folder),
        )


def make_private_folder(folder: Path) -> None:
    """Creates the folder with mode 700, or refuses one that another user made or can enter."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    # Where root may make no user namespace, PostgreSQL's own folders are nobody's.
    owners = {os.getuid()} | ({NOBODY} if os.getuid() == 0 else set())
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise UnsafeFolder(f"{folder} is not a folder of this user. Remove it, or name another data folder.")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def find_layout(data: str | None = None) -> Layout:
    """The layout that `--data`, else `SLUICE_DATA_DIR`, else `var/` in the checkout stands for."""
    if data:
        return Layout(resolve_path(data))
    return Layout(read_path("SLUICE_DATA_DIR", ROOT / "var"))


def find_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return read_path("SLUICE_CACHE_DIR", Path(base) / "sluice")
