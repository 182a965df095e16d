"""Headers of safetensors files: whether a file is whole, and what it holds, without reading the weights."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pool.domain.config_fields import BadModelConfig, parse_object
from pool.domain.manifest import Difference, Fault, require_whole
from pool.domain.version_facts import TensorTotals

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (safetensors 0.4)."""


@dataclass(frozen=True, slots=True)
class Header:
    tensors: Mapping[str, Any]
    expected_bytes: int
    """Size that the whole file must have."""


def read_totals(folder: Path, names: Iterable[str]) -> TensorTotals:
    """Raises FilesBroken, which names each file that is too short or too long for its own header."""
    elements: Counter[str] = Counter()
    total_bytes = 0
    differences = []
    for name in names:
        path = folder / name
        size = path.stat().st_size
        header = read_header(path)
        if header is None or header.expected_bytes > size:
            differences.append(Difference(name, Fault.TRUNCATED))
        elif header.expected_bytes < size:
            differences.append(Difference(name, Fault.CHANGED))
        else:
            elements.update(_count_elements(name, header))
            total_bytes += size
    require_whole(differences)
    return TensorTotals(elements=dict(elements), total_bytes=total_bytes)


def read_header(path: Path) -> Header | None:
    """None when the file ends inside of its header. Raises BadModelConfig when the header is none."""
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            return None
        (length,) = struct.unpack("<Q", prefix)
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise BadModelConfig(f"{path.name} is no safetensors file.", file=path.name)
        content = file.read(length)
    if len(content) < length:
        return None
    tensors = {
        name: value for name, value in parse_object(path.name, content).items() if name != "__metadata__"
    }
    ends = [_end_of(path.name, tensor) for tensor in tensors.values()]
    return Header(tensors, 8 + length + max(ends, default=0))


def _end_of(file: str, tensor: object) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(end, int) for end in offsets):
        raise BadModelConfig(f"{file}: a tensor has no data_offsets.", file=file)
    return int(offsets[1])


def _count_elements(file: str, header: Header) -> Counter[str]:
    counts: Counter[str] = Counter()
    for tensor in header.tensors.values():
        shape, dtype = tensor.get("shape"), tensor.get("dtype")
        if not isinstance(shape, list) or not all(
            isinstance(length, int) and length >= 0 for length in shape
        ):
            raise BadModelConfig(f"{file}: a tensor has no shape.", file=file)
        counts[str(dtype)[:16]] += math.prod(shape)
    return counts
