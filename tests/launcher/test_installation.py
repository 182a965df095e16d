import json
from pathlib import Path

import pytest

from launcher.credentials import ensure_credentials
from launcher.installation import describe_runtimes, make_environment, read_engine_version, read_installation
from launcher.layout import Layout
from pool.env import ConfigError

PYTHON = Path("/env/bin/python")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SLUICE_BIND",
        "SLUICE_WEB_PORT",
        "SLUICE_GATEWAY_PORT",
        "SLUICE_WEB_URL",
        "SLUICE_SECRET_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


def test_a_wrong_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_WEB_PORT", "eighty")

    with pytest.raises(ConfigError, match="SLUICE_WEB_PORT"):
        read_installation(Layout(tmp_path), engine="sim", has_demo=False)


def test_a_port_of_the_ephemeral_range_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_GATEWAY_PORT", "40000")

    with pytest.raises(ConfigError, match="SLUICE_GATEWAY_PORT must be at most 32767"):
        read_installation(Layout(tmp_path), engine="sim", has_demo=False)


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("10.0.0.5", "http://10.0.0.5:8000"),
    ],
)
def test_the_printed_address_can_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bind: str, url: str
) -> None:
    monkeypatch.setenv("SLUICE_BIND", bind)

    assert read_installation(Layout(tmp_path), engine="sim", has_demo=False).local_web_url == url


def test_processes_inherit_no_secret_and_no_foreign_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_KEY", "hush")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/somewhere")
    installation = read_installation(Layout(tmp_path), engine="sim", has_demo=False)
    credentials = ensure_credentials(tmp_path / "secrets")

    env = make_environment(installation, credentials, extra={"SLUICE_REDIS_URL": "unix:///x"})

    assert "hush" not in env.values()
    assert not {"PYTHONPATH", "PROMETHEUS_MULTIPROC_DIR"} & set(env)
    assert Path(env["SLUICE_SECRET_KEY_FILE"]).read_text().strip() == "hush"
    assert env["SLUICE_REDIS_URL"] == "unix:///x"
    assert "SLUICE_INSTALLATION" not in env


def test_processes_learn_the_installation_once_it_has_an_id(tmp_path: Path) -> None:
    (tmp_path / "installation").write_text("abc\n")
    installation = read_installation(Layout(tmp_path), engine="sim", has_demo=False)

    assert make_environment(installation, None)["SLUICE_INSTALLATION"] == "abc"


def test_runtimes_name_the_engine_and_its_build() -> None:
    runtimes = describe_runtimes(PYTHON, Path("/engine/bin/python"), build="cpu", plugin=Path("/plugin"))

    assert [runtime["name"] for runtime in runtimes] == ["vllm-0.32-cpu", "sim-1"]
    assert runtimes[0]["pythonpath"] == ["/plugin"]
    assert json.dumps(runtimes)
    assert read_engine_version("cuda") == read_engine_version("cpu")


def test_without_an_engine_only_the_simulation_is_offered() -> None:
    runtimes = describe_runtimes(PYTHON, None, build="cpu", plugin=None)

    assert [runtime["kind"] for runtime in runtimes] == ["sim"]
