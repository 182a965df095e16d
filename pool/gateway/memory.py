"""How this process asks the system for large blocks of memory."""

import ctypes

_M_MMAP_THRESHOLD = -3
"""mallopt(3)."""
_LARGE_BYTES = 1 << 20


def map_large_blocks() -> None:
    """Each gets a mapping of its own, which grows by moving pages instead of copying.

    glibc raises its threshold up to 32 MiB as mappings are freed; from then on each growth of a body that comes in
    copies all of it, which held the loop for 21 ms at 27 MB. A C library without mallopt needs nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
