from pathlib import Path

import pytest

from launcher.credentials import ensure_credentials, find_credentials
from pool.env import ConfigError

NAMES = ("SECRET_KEY", "ADMIN_PASSWORD", "API_TOKEN", "GATEWAY_KEY")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(f"SLUICE_{name}", raising=False)
        monkeypatch.delenv(f"SLUICE_{name}_FILE", raising=False)


def test_secrets_are_made_once_and_kept_private(tmp_path: Path) -> None:
    first = ensure_credentials(tmp_path / "secrets")
    key = first.read("gateway_key")

    again = ensure_credentials(tmp_path / "secrets")

    assert again.read("gateway_key") == key
    assert key.startswith("sk-sluice-")
    assert len(key) == len("sk-sluice-") + 32
    assert first.read("api_token").startswith("slt_")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "secrets").iterdir())


def test_a_set_variable_is_used_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_credentials(tmp_path)
    monkeypatch.setenv("SLUICE_API_TOKEN", "slt_mine")

    assert ensure_credentials(tmp_path).read("api_token") == "slt_mine"

    monkeypatch.delenv("SLUICE_API_TOKEN")
    assert ensure_credentials(tmp_path).read("api_token") == "slt_mine"


def test_a_secret_comes_from_a_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given").write_text("hush\n")
    monkeypatch.setenv("SLUICE_SECRET_KEY_FILE", str(tmp_path / "given"))

    assert ensure_credentials(tmp_path / "secrets").read("secret_key") == "hush"


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ADMIN_PASSWORD_FILE", str(tmp_path / "absent"))

    with pytest.raises(ConfigError, match="SLUICE_ADMIN_PASSWORD_FILE"):
        ensure_credentials(tmp_path / "secrets")


def test_a_folder_without_a_first_start_has_no_credentials(tmp_path: Path) -> None:
    assert find_credentials(tmp_path) is None


def test_processes_get_paths_and_no_values(tmp_path: Path) -> None:
    credentials = ensure_credentials(tmp_path)

    variables = credentials.child_variables()

    assert set(variables) == {f"SLUICE_{name}_FILE" for name in NAMES}
    assert credentials.read("secret_key") not in variables.values()
