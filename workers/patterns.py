"""Regular expressions that people wrote, tried on texts that engines wrote: in a process of its own, for a second.

Python's matcher may take for ever on a bad pattern, cannot be interrupted, and holds the interpreter meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

LIMIT_S: Final = 5.0
"""Its interpreter starts within 0.1 s, also on a busy host; matching a text of some KiB takes no time."""
_PROGRAM: Final = (
    "import json, re, sys; pattern, text = json.load(sys.stdin); "
    "sys.exit(0 if re.search(pattern, text) else 3)"
)
_NOT_FOUND: Final = 3


def search(pattern: str, text: str, *, limit_s: float = LIMIT_S) -> bool | None:
    """Whether it is found anywhere; None where that took too long or the pattern cannot be tried."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=json.dumps([pattern, text]).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return {0: True, _NOT_FOUND: False}.get(done.returncode)
