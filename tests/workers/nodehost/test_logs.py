from __future__ import annotations

from pathlib import Path

from workers.nodehost.logs import rotate_log


def test_a_full_log_is_copied_aside_and_the_writer_keeps_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"old" * 10)

        assert rotate_log(path, max_bytes=10)
        writer.write(b"new")

    assert path.read_bytes() == b"new"
    assert (tmp_path / "engine.log.1").read_bytes() == b"old" * 10


def test_only_three_old_logs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    for number in range(6):
        path.write_bytes(b"%d" % number * 20)
        rotate_log(path, max_bytes=10, kept=3)

    kept = sorted(one.name for one in tmp_path.iterdir())

    assert kept == ["engine.log", "engine.log.1", "engine.log.2", "engine.log.3"]
    assert (tmp_path / "engine.log.3").read_bytes() == b"3" * 20


def test_a_small_or_missing_log_stays(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"

    assert not rotate_log(path)
    path.write_bytes(b"x")
    assert not rotate_log(path)
