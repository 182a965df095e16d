import subprocess
import sys
import textwrap
from pathlib import Path

from launcher.layout import ROOT
from launcher.locks import FileLock, hold_lock, is_locked

HOLDER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from launcher.locks import FileLock
    assert FileLock(Path(sys.argv[1])).try_acquire()
    print("held", flush=True)
    time.sleep(60)
""")


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")

    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()

    second.release()


def test_releasing_leaves_no_file(tmp_path: Path) -> None:
    with hold_lock(tmp_path / "deep" / "lock"):
        assert is_locked(tmp_path / "deep" / "lock")

    assert not (tmp_path / "deep" / "lock").exists()
    assert not is_locked(tmp_path / "deep" / "lock")


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, cwd=ROOT)
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        assert not FileLock(lock).try_acquire()
        holder.kill()

    assert not is_locked(lock)
    taken = FileLock(lock)
    assert taken.try_acquire()
    taken.release()
