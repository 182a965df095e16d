"""Which release serves a request: the sticky choice among a plan's weights, and where it may spill."""

import math
from collections.abc import Callable, Mapping
from zlib import crc32

_HASH_SPAN = 2.0**32
_MASK = 2**32 - 1
# Odd constants whose bits are spread: the golden ratio, and a mixer for 32 bits with little bias.
_SPREAD, _MIXER = 0x9E3779B1, 0x45D9F3B


def choose_release(weights: Mapping[int, int], sticky_key: bytes) -> int | None:
    """The release for this sticky key, or None if no weight is above 0.

    Weighted rendezvous hashing (Thaler and Ravishankar 1998, scores -w / ln(h)): the same key gets the same
    release, and when weights change only as many keys move as the change asks for.
    """
    best: int | None = None
    best_score = -1.0
    hashed_key = crc32(sticky_key)
    for release, weight in weights.items():
        if weight <= 0:
            continue
        if weight >= 100:
            return release
        score = -weight / math.log(_uniform(hashed_key, release))
        if score > best_score:
            best, best_score = release, score
    return best


def choose_spill(weights: Mapping[int, int], has_capacity: Callable[[int], bool]) -> int | None:
    """The heaviest release with capacity (the lower number on a tie). Weight 0 never receives spill."""
    heavy_first = sorted(weights, key=lambda release: (-weights[release], release))
    return next((release for release in heavy_first if weights[release] > 0 and has_capacity(release)), None)


def _uniform(hashed_key: int, release: int) -> float:
    """Between 0 and 1, both excluded. Mixed twice, since a checksum is linear: two releases would depend on each
    other. Products stay under 2^62, which compiled code does in a register."""
    mixed = (hashed_key ^ (release * _SPREAD)) & _MASK
    mixed = ((mixed ^ (mixed >> 16)) * _MIXER) & _MASK
    mixed = ((mixed ^ (mixed >> 15)) * _MIXER) & _MASK
    return ((mixed ^ (mixed >> 16)) + 0.5) / _HASH_SPAN
