"""The walls of the house: who may import whom, what starts without what, sizes, names, and what no file may hold."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "console", "pool", "workers", "bench", "docs")
LONGEST_MODULE, LONGEST_TEST, LONGEST_SCRIPT, LONGEST_TEMPLATE, LONGEST_FUNCTION = 400, 500, 200, 150, 60
BANNED_NAMES = {
    f"{name}{ending}"
    for name in ("util", "helper", "common", "manager", "handler", "processor", "data", "info", "misc")
    for ending in ("", "s")
}
# In the domain: what looks at a clock, at chance or at the machine.
IMPURE_MODULES = {
    "asyncio", "io", "os", "pathlib", "random", "secrets", "shutil", "socket", "subprocess", "tempfile", "threading",
    "time", "urllib", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"now", "utcnow", "today"}
ORM_WRITES = {
    "abulk_create", "acreate", "adelete", "asave", "aupdate", "bulk_create", "bulk_update", "create", "delete",
    "get_or_create", "save", "update", "update_or_create",
}  # fmt: skip
HEAVY = ("torch", "vllm", "pynvml", "transformers")
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r} or name in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocker())
"""
ONLY_STANDARD = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {ours!r}:
            raise ImportError(f"{{name}} is not of the standard library")
sys.meta_path.insert(0, Blocker())
"""


# Imports ------------------------------------------------------------------------------------------------------


def test_import_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"

    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert outcome.returncode == 0, outcome.stdout[-3000:] + outcome.stderr[-1000:]


def test_the_gateway_serves_with_django_and_the_database_blocked(tmp_path: Path) -> None:
    blocked = {
        "django", "rest_framework", "celery", "channels", "psycopg", "console", "workers", "pool.models",
        "pool.queries", "pool.services", "pool.reconcilers", "pool.telemetry", *HEAVY,
    }  # fmt: skip
    code = (
        BLOCKER.format(blocked=blocked)
        + "import runpy; runpy.run_module('pool.gateway', run_name='__main__')"
    )
    port = _free_port()
    variables = {
        "SLUICE_SECRET_KEY": "a-secret-of-this-test-only",
        "SLUICE_DATA_DIR": str(tmp_path),
        "SLUICE_GATEWAY_PORT": str(port),
    }
    process = _start(code, variables)
    try:
        answer = _wait_for(lambda: _get(f"http://127.0.0.1:{port}/healthz"), process)
    finally:
        process.send_signal(signal.SIGTERM)
        code_at_end = process.wait(20)

    assert answer == b'{"alive":true}'
    assert code_at_end == 0


def test_the_node_host_runs_on_the_standard_library_alone(tmp_path: Path) -> None:
    socket_path = tmp_path / "nodehost.sock"
    arguments = ["nodehost", "--dir", str(tmp_path / "engines"), "--socket", str(socket_path)]
    code = (
        ONLY_STANDARD.format(ours={"workers"})
        + f"sys.argv = {arguments!r}\nimport runpy; runpy.run_module('workers.nodehost', run_name='__main__')"
    )
    process = _start(code, {})
    try:
        is_up = _wait_for(socket_path.exists, process)
    finally:
        process.kill()
        process.wait(10)

    assert is_up


def test_the_launcher_imports_the_standard_library_alone() -> None:
    # The conversion and the compiler run in environments of their own.
    left_out = {"launcher.__main__", "launcher.convert_smollm2", "launcher.compile_modules"}
    modules = [name for name in _module_names("launcher") if name not in left_out]

    outcome = _import_all(ONLY_STANDARD.format(ours={"launcher", "pool"}), modules)

    assert outcome.returncode == 0, outcome.stderr[-2000:]


def test_no_process_of_the_control_plane_imports_an_engines_libraries() -> None:  # FC-69
    modules = [
        name
        for package in ("console", "pool", "workers")
        for name in _module_names(package)
        if not name.startswith("workers.plugin") and not name.endswith(".__main__")
    ]

    outcome = _import_all(BLOCKER.format(blocked=set(HEAVY)) + "import console.boot", modules)

    assert outcome.returncode == 0, outcome.stderr[-2000:]


def test_the_domain_imports_only_pure_modules_and_reads_no_clock() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {what}"
        for path in sorted((ROOT / "pool/domain").rglob("*.py"))
        for node, what in _impurities(ast.parse(path.read_text()))
    ]

    assert not found, "\n".join(found)


def test_the_orm_is_written_in_services_and_telemetry_only() -> None:
    allowed = ("pool/services/", "pool/telemetry/", "pool/migrations/")
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ("console", "pool", "workers")
        for path in _python_files(package)
        if not str(path.relative_to(ROOT)).startswith(allowed)
        for line in _orm_writes(ast.parse(path.read_text()))
    ]

    assert not found, "\n".join(found)


# Sizes and names ----------------------------------------------------------------------------------------------


def test_modules_stay_small() -> None:
    limits = [(path, LONGEST_MODULE) for package in PACKAGES for path in _python_files(package)]
    limits += [(path, LONGEST_TEST) for path in _python_files("tests")]
    limits += [(path, LONGEST_SCRIPT) for path in (ROOT / "static/js").rglob("*.js")]
    limits += [(path, LONGEST_TEMPLATE) for path in (ROOT / "templates").rglob("*.html")]

    found = [
        f"{path.relative_to(ROOT)}: {lines} > {limit}"
        for path, limit in limits
        if "migrations" not in path.parts and (lines := len(path.read_text().splitlines())) > limit
    ]

    assert not found, "\n".join(found)


def test_functions_stay_small() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length}"
        for package in (*PACKAGES, "tests")
        for path in _python_files(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    ]

    assert not found, "\n".join(found)


def test_no_module_bears_a_name_that_says_nothing() -> None:
    paths = [path for package in (*PACKAGES, "tests") for path in _python_files(package)]
    paths += [*(ROOT / "static/js").rglob("*.js"), *(ROOT / "static/css").rglob("*.css")]
    names = {part for path in paths for part in (*path.relative_to(ROOT).parent.parts, path.stem)}

    assert names & BANNED_NAMES == set()


def test_every_migration_has_a_name_and_its_number() -> None:
    names = sorted(path.stem for path in (ROOT / "pool/migrations").glob("[0-9]*.py"))

    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]
    assert [
        name for name in names if not re.fullmatch(r"\d{4}_(?!auto_|initial$)[a-z][a-z0-9_]+", name)
    ] == []


def test_no_file_holds_a_note_to_come_back_to() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if marks.search(line)
    ]

    assert not found, "\n".join(found)


# Templates and static files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("an inline script", r"<script(?![^>]*\bsrc=)"),
        ("an inline style", r"<style|\sstyle\s*="),
        ("an event attribute", r"<[^>]*\son[a-z]+\s*="),
        ("a script address", r"""["']\s*javascript:"""),
    ],
)
def test_no_template_needs_more_than_the_strict_policy(what: str, pattern: str) -> None:
    found = [_named(path) for path in _templates() if re.search(pattern, path.read_text(), re.IGNORECASE)]

    assert found == [], f"{what} breaks the content security policy"


def test_nothing_is_loaded_from_another_host() -> None:
    address = re.compile(
        r"""(?:https?:|url\(\s*["']?|(?:src|href|from|action)\s*=?\s*["'])//[a-z0-9]""", re.IGNORECASE
    )
    files = [
        *_templates(),
        *(path for path in (ROOT / "static").rglob("*") if path.suffix in (".css", ".js", ".svg")),
    ]
    found = [
        _named(path)
        for path in files
        if "vendor" not in path.parts
        and address.search(path.read_text().replace("http://www.w3.org/2000/svg", ""))
    ]

    assert not found, "\n".join(found)


def test_every_template_with_words_can_be_translated() -> None:
    found = [
        _named(path)
        for path in _templates()
        if _has_words(path.read_text()) and not re.search(r"{%\s*load [^%]*\bi18n\b", path.read_text())
    ]

    assert not found, "\n".join(found)


def test_every_form_that_posts_bears_the_token() -> None:
    forms = re.compile(r"<form\b[^>]*>.*?</form>", re.DOTALL | re.IGNORECASE)
    found = [
        _named(path)
        for path in _templates()
        for form in forms.findall(path.read_text())
        if re.search(r"""method\s*=\s*["']?post""", form, re.IGNORECASE) and "{% csrf_token %}" not in form
    ]

    assert not found, "\n".join(found)


def test_vendored_files_are_those_that_are_listed() -> None:
    folder = ROOT / "static/vendor"
    listed = dict(
        re.findall(
            r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (folder / "VERSIONS.md").read_text(), re.MULTILINE
        )
    )
    there = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "VERSIONS.md" and not path.name.startswith("LICENSE")
    }

    assert there == listed


# How the checks look --------------------------------------------------------------------------------------------


def _python_files(package: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / package).rglob("*.py")) if "__pycache__" not in path.parts)


def _module_names(package: str) -> list[str]:
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in _python_files(package))
    return [name.removesuffix(".__init__") for name in names]


def _templates() -> list[Path]:
    return sorted((ROOT / "templates").rglob("*.html"))


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _text_files() -> Iterator[Path]:
    endings = {".py", ".md", ".html", ".js", ".css", ".toml", ".txt", ".json", ""}
    for folder in (*PACKAGES, "tests", "templates", "static", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in endings and not {"vendor", "__pycache__"} & set(path.parts):
                yield path
    yield from (path for path in ROOT.glob("*") if path.is_file() and path.suffix in endings - {".json"})


def _impurities(tree: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            )
            for name in names:
                top = name.partition(".")[0]
                if top in IMPURE_MODULES or (
                    top not in sys.stdlib_module_names and not name.startswith("pool.domain")
                ):
                    yield node, f"imports {name}"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in IMPURE_CALLS:
                yield node, f"calls {called.attr}()"
            elif isinstance(called, ast.Name) and called.id in ("open", "input", "print"):
                yield node, f"calls {called.id}()"


def _orm_writes(tree: ast.AST) -> Iterator[int]:
    """`Model.objects….update(…)` and the like. What is saved through a variable is not seen."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ORM_WRITES
        ):
            names = {part.attr for part in ast.walk(node.func.value) if isinstance(part, ast.Attribute)}
            if names & {"objects", "_default_manager"}:
                yield node.lineno


def _has_words(template: str) -> bool:
    text = re.sub(r"{#.*?#}|{% comment.*?endcomment %}", "", template, flags=re.DOTALL)
    if re.search(r"{%\s*(?:block)?trans(?:late)?\b", text):
        return True
    text = re.sub(r"{%.*?%}|{{.*?}}|<[^>]*>|Sluice|API", " ", text, flags=re.DOTALL)  # names stay as they are
    return bool(re.search(r"[A-Za-z]{3,}", text))


def _import_all(before: str, modules: list[str]) -> subprocess.CompletedProcess[str]:
    code = f"{before}\nimport importlib\nfor name in {modules!r}: importlib.import_module(name)"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=_environment({}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _start(code: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=_environment(variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    return kept | {"DJANGO_SETTINGS_MODULE": "console.settings"} | variables


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return b""


def _wait_for(look: Callable[[], T], process: subprocess.Popen[bytes]) -> T:
    deadline = time.monotonic() + 30
    while not (seen := look()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return seen
