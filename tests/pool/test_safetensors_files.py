from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pool.domain.config_fields import BadModelConfig
from pool.domain.manifest import FilesBroken
from pool.safetensors_files import MAX_HEADER_BYTES, read_header, read_totals
from tests.fakes.tiny_model import truncate_weights, write_safetensors


def write_raw(path: Path, header: object, *, body: bytes = b"") -> Path:
    content = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + body)
    return path


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12], **changes}


def test_elements_and_bytes_are_summed_over_the_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": (2, 3), "y": (4,)}, dtype="bfloat16")
    write_safetensors(tmp_path / "b.safetensors", {"z": (5,)}, dtype="float32")

    totals = read_totals(tmp_path, ["a.safetensors", "b.safetensors"])

    assert totals.elements == {"BF16": 10, "F32": 5}
    assert totals.total_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("keep", [0.9, 0.0])
def test_fc76_a_truncated_shard_is_named(tmp_path: Path, keep: float) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"x": (64, 64)}, dtype="float32")
    truncate_weights(tmp_path, keep_ratio=keep)

    with pytest.raises(FilesBroken, match=r"model\.safetensors is truncated"):
        read_totals(tmp_path, ["model.safetensors"])


def test_fc76_a_file_that_ends_inside_its_header_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(struct.pack("<Q", 500) + b'{"x"')

    assert read_header(tmp_path / "m") is None


def test_bytes_behind_the_last_tensor_are_a_fault(tmp_path: Path) -> None:
    write_raw(tmp_path / "m", {"x": tensor()}, body=b"0" * 13)

    with pytest.raises(FilesBroken, match="m is changed"):
        read_totals(tmp_path, ["m"])


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"x": 1},
        {"x": tensor(data_offsets=None)},
        {"x": tensor(data_offsets=[0])},
        {"x": tensor(data_offsets=["0", "12"])},
        {"x": tensor(shape="2,3")},
        {"x": tensor(shape=[-1])},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, header: object) -> None:
    write_raw(tmp_path / "m", header, body=b"0" * 12)

    with pytest.raises(BadModelConfig, match="m"):
        read_totals(tmp_path, ["m"])


@pytest.mark.parametrize("length", [0, MAX_HEADER_BYTES + 1, 2**63])
def test_what_is_no_safetensors_file_is_not_read_into_memory(tmp_path: Path, length: int) -> None:
    (tmp_path / "m").write_bytes(struct.pack("<Q", length) + b"x")

    with pytest.raises(BadModelConfig, match="no safetensors file"):
        read_header(tmp_path / "m")


def test_a_file_without_tensors_holds_nothing(tmp_path: Path) -> None:
    write_raw(tmp_path / "m", {"__metadata__": {"format": "pt"}})

    assert read_totals(tmp_path, ["m"]).elements == {}
