from pathlib import Path

from launcher.rotation import rotate_logs


def test_a_log_over_the_limit_is_cut_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    with open(log, "ab", buffering=0) as writer:
        for number in range(5):
            writer.write(f"round {number} ".encode() * 10)
            rotate_logs(tmp_path, limit_bytes=20, kept=3)
        writer.write(b"after")

    assert log.read_bytes() == b"after"
    assert (tmp_path / "web.log.1").read_text().startswith("round 4")
    assert (tmp_path / "web.log.3").read_text().startswith("round 2")
    assert not (tmp_path / "web.log.4").exists()


def test_a_small_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "web.log").write_text("short")

    rotate_logs(tmp_path, limit_bytes=20)

    assert [path.name for path in tmp_path.iterdir()] == ["web.log"]
