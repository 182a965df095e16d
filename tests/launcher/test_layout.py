from pathlib import Path

import pytest

from launcher.layout import Layout, UnsafeFolder, find_layout, make_private_folder


def test_sockets_stay_in_the_data_folder_while_their_paths_are_short() -> None:
    layout = Layout(Path("/srv/sluice"))

    assert layout.sockets == Path("/srv/sluice/run")


def test_a_deep_data_folder_gets_short_socket_paths_of_its_own() -> None:
    one, other = Layout(Path("/srv/" + "deep/" * 20)), Layout(Path("/srv/" + "deep/" * 21))

    assert len(str(one.sockets / "r3k9d2m1qz.12345.sock")) < 100
    assert one.sockets != other.sockets


def test_folders_are_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "var")

    layout.create()
    layout.create()

    assert layout.secrets.stat().st_mode & 0o777 == 0o700
    assert layout.sockets.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_data_folder_in_which_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var").chmod(mode)

    with pytest.raises(UnsafeFolder, match="chmod go-w"):
        Layout(tmp_path / "var").create()

    assert not list((tmp_path / "var").iterdir())


def test_secrets_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir(mode=0o755)
    (tmp_path / "var" / "secrets").symlink_to(tmp_path)

    with pytest.raises(UnsafeFolder):
        Layout(tmp_path / "var").create()


def test_an_open_folder_is_closed_and_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "open")

    make_private_folder(tmp_path / "open")

    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    with pytest.raises(UnsafeFolder):
        make_private_folder(tmp_path / "link")


def test_a_relative_data_folder_counts_from_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CALLER_DIR", str(tmp_path))

    assert find_layout("mine").data == tmp_path / "mine"
