"""What the documentation says is what the code does: variables, tables, commands, paths and links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.urls import resolve

from console.api.urls import no_such_endpoint
from docs import generate
from launcher import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
VARIABLE = re.compile(r"SLUICE_[A-Z0-9_]*[A-Z0-9]")
READERS = {"env_str", "env_int", "env_float", "env_bool", "env_path", "env_json", "env_secret", "read_port"}
# Stands for any variable in the tests of the readers themselves.
STAND_IN = {"SLUICE_TEST_VARIABLE"}


def test_every_variable_that_the_code_knows_is_documented_and_the_other_way_round() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    documented = set(re.findall(r"^\| `(SLUICE_[A-Z0-9_]+)` \|", page, re.MULTILINE))

    assert documented == set(_known_variables()) - STAND_IN


def test_the_documented_defaults_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(SLUICE_\w+)` \| [^|]+ \| `([^`|]+)` \|", _read("docs/configuration.md"), re.MULTILINE
    )
    written = dict(rows)
    found = {
        name: (written[name], default)
        for name, default in _literal_defaults()
        if name in written and default not in ("", "None", written[name])
    }

    assert found == {}


def test_no_page_names_a_variable_that_is_not_there() -> None:
    known = set(_known_variables())
    found = {
        f"{path.name}: {name}"
        for path in PAGES
        for name in VARIABLE.findall(path.read_text())
        if name not in known
    }

    assert found - {f"adr: {name}" for name in known} == set()


@pytest.mark.parametrize("path", generate.list_files(), ids=lambda path: str(path.name))
def test_generated_parts_are_fresh(path: Path) -> None:
    assert generate.render(path) == path.read_text(), "write them anew: .venv/bin/python -m docs.generate"


def test_each_generated_part_stands_on_a_page() -> None:
    pages = "".join(path.read_text() for path in PAGES)

    assert [name for name in generate.PARTS if f"<!-- begin generated: {name} -->" not in pages] == []


def test_every_command_on_a_page_exists() -> None:
    known = {*cli.PARSED, *cli.PASSED_ON}
    named = {
        (path.name, command)
        for path in PAGES
        for command in re.findall(r"\./sluice ([a-z]+)", path.read_text())
    }

    assert {command for command in named if command[1] not in known} == set()


def test_every_path_of_the_api_on_a_page_is_served() -> None:
    paths = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(r"/api/(?:v1|docs)/[A-Za-z0-9_{}./-]*", page.read_text())
    }
    shown = {(page, re.sub(r"\{\w*(?:n|number)\}", "1", path)) for page, path in paths}
    served = {
        (page, path)
        for page, path in shown
        if resolve(re.sub(r"\{(\w+)\}", r"\1", path)).func is not no_such_endpoint
    }

    assert {path for path in shown - served if path[1] not in ("/api/v1/", "/api/docs/")} == set()


def test_links_lead_somewhere() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if not target.startswith(("http://", "https://", "mailto:")) and not _leads_somewhere(page, target)
    ]

    assert found == []


def test_the_readme_starts_with_two_commands_and_a_picture() -> None:
    readme = _read("README.md")

    block = re.search(r"```\w*\n(.*?)```", readme, re.DOTALL)
    picture = re.search(r"!\[[^\]]+\]\((\S+)\)", readme)

    assert block is not None
    assert picture is not None
    assert (
        len([line for line in block[1].splitlines() if line.strip() and not line.startswith((" ", "#"))]) == 2
    )
    assert max(block.start(), picture.start()) < 2500


def _read(name: str) -> str:
    return (ROOT / name).read_text()


def _python_files() -> Iterator[Path]:
    for folder in ("launcher", "console", "pool", "workers", "bench", "tests"):
        yield from (path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def _known_variables() -> Iterator[str]:
    """Every text in the code that is a variable's name, whole; and those of the shell script."""
    for path in _python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and VARIABLE.fullmatch(node.value)
            ):
                yield node.value
    yield from re.findall(r"\$\{?(SLUICE_[A-Z_]+)", _read("sluice"))
    # launcher/credentials.py reads the secrets by their files' names.
    for name in ("SECRET_KEY", "ADMIN_PASSWORD", "API_TOKEN", "GATEWAY_KEY"):
        yield f"SLUICE_{name}"


def _literal_defaults() -> Iterator[tuple[str, str]]:
    """Name and default of each typed read whose default is written out."""
    for path in _python_files():
        if path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS:
                given = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "default")]
                name = node.args[0]
                if isinstance(name, ast.Constant) and given and isinstance(given[0], ast.Constant):
                    yield str(name.value), _as_written(given[0].value)


def _as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _leads_somewhere(page: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    path = (page.parent / file).resolve() if file else page
    if not path.exists():
        return False
    if not anchor:
        return True
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
