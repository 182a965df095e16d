"""Typed reads of variables."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pool.env import (
    ConfigError,
    env_bool,
    env_float,
    env_int,
    env_json,
    env_path,
    env_port_range,
    env_secret,
    env_str,
)

NAME = "SLUICE_TEST_VARIABLE"


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.delenv(f"{NAME}_FILE", raising=False)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (env_str, "a b", "a b"),
        (env_int, "-3", -3),
        (env_float, "0.5", 0.5),
        (env_bool, "Yes", True),
        (env_bool, "0", False),
        (env_json, '[{"a": 1}]', [{"a": 1}]),
        (env_path, "/a/../b", Path("/b")),
        (env_secret, "s", "s"),
        (env_port_range, "1024-65535", (1024, 65535)),
    ],
)
def test_a_variable_is_read_as_its_type(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object], text: str, expected: object
) -> None:
    monkeypatch.setenv(NAME, text)

    assert read(NAME) == expected


@pytest.mark.parametrize("read", [env_str, env_int, env_float, env_bool, env_json, env_path, env_secret])
def test_an_unset_or_empty_variable_needs_a_default(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., object]
) -> None:
    monkeypatch.setenv(NAME, "")

    assert read(NAME, None) is None
    with pytest.raises(ConfigError, match=NAME):
        read(NAME)


@pytest.mark.parametrize(
    ("read", "text"),
    [(env_int, "1.5"), (env_float, "x"), (env_bool, "maybe"), (env_json, "{"), (env_int, "")],
)
def test_a_bad_value_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object], text: str
) -> None:
    monkeypatch.setenv(NAME, text)

    with pytest.raises(ConfigError) as caught:
        read(NAME)

    assert NAME in caught.value.message
    assert caught.value.details == {"variable": NAME}


def test_a_value_outside_its_range_names_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "70000")
    with pytest.raises(ConfigError, match="at most 65535"):
        env_int(NAME, 1, minimum=1, maximum=65_535)

    monkeypatch.setenv(NAME, "nan")
    with pytest.raises(ConfigError, match="at least 0"):
        env_float(NAME, 1.0, minimum=0)


def test_a_value_outside_the_choices_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "other")

    with pytest.raises(ConfigError, match="one of vllm, sim"):
        env_str(NAME, "vllm", choices=("vllm", "sim"))


def test_a_relative_path_counts_from_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")

    monkeypatch.setenv(NAME, "var")
    assert env_path(NAME) == tmp_path / "var"
    monkeypatch.setenv(NAME, "~/var")
    assert env_path(NAME) == Path("/home/me/var")


def test_a_secret_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))

    assert env_secret(NAME) == "from-file"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"])
def test_a_secret_file_must_hold_a_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))

    with pytest.raises(ConfigError, match=f"{NAME}_FILE"):
        env_secret(NAME, "default")


def test_a_secret_given_twice_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NAME, "the-secret")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))

    with pytest.raises(ConfigError) as caught:
        env_secret(NAME)

    assert "the-secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["21000", "80-90", "21001-21000", "21000-70000", "a-b", "1-2-3"])
def test_a_range_of_ports_names_its_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(NAME, text)

    with pytest.raises(ConfigError, match=f"{NAME} must be the first and the last port"):
        env_port_range(NAME)
