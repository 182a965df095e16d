"""`.venv/bin/python -m docs.generate` writes those parts of the documentation that repeat the code.

A part stands between `<!-- begin generated: NAME -->` and `<!-- end generated -->`; a test fails while one is stale.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TypeVar

P = TypeVar("P", bound=StrEnum)
DOCS = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- begin generated: ([a-z-]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def render(path: Path) -> str:
    """The file's text with each generated part as it has to be now."""
    return _BLOCK.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[3]}", path.read_text())


def list_files() -> list[Path]:
    return [path for path in sorted(DOCS.glob("*.md")) if _BLOCK.search(path.read_text())]


def replica_states() -> str:
    from pool.domain import replica

    return _states(replica, replica.Phase, replica.MOVES, first=replica.Phase.PENDING)


def node_states() -> str:
    from pool.domain import node

    return _states(node, node.NodePhase, node.MOVES, first=node.NodePhase.READY)


def start_codes() -> str:
    from pool.domain import start_errors

    says = member_docs(start_errors.StartCode)
    rows = (
        (
            f"`{code.value}`",
            says[code.name],
            "no" if code in start_errors.PERMANENT else "yes",
            start_errors.ADVICE[code],
        )
        for code in start_errors.StartCode
    )
    return _table(("code", "what it means", "tried again", "what to do"), rows)


def console_errors() -> str:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    from console.errors import TABLE

    ordered = sorted(TABLE.items(), key=lambda row: (row[1].status, row[0]))
    return _table(
        ("status", "`error.code`", "what to do"),
        ((str(shown.status), f"`{code}`", shown.next_action) for code, shown in ordered),
    )


def gateway_errors() -> str:
    from pool.gateway.openai import GatewayError

    kinds = sorted(GatewayError.__subclasses__(), key=lambda kind: (kind.status, kind.code))
    return _table(
        ("status", "`error.code`", "`error.type`", "`Retry-After`"),
        (
            (
                "in the stream" if kind.__name__ == "StreamInterrupted" else str(kind.status),
                f"`{kind.code}`",
                f"`{kind.kind}`",
                f"{kind.retry_after_s} s" if kind.retry_after_s else "",
            )
            for kind in kinds
        ),
    )


def profile_settings() -> str:
    from pool.domain.profiles import SCHEMA

    rows = []
    for setting in SCHEMA:
        bounds = "" if setting.low is None else f"{setting.low:,} to {setting.high:,}"
        values = ", ".join(f"`{choice}`" for choice in setting.choices) or bounds or _KINDS[setting.kind]
        default = "the engine's" if setting.default is None else f"`{_plain(setting.default)}`"
        rows.append((f"`{setting.name}`", values, setting.unit, default, setting.effect))
    return _table(("setting", "values", "unit", "default", "effect"), rows)


def starter_profiles() -> str:
    from pool.domain.profiles import EngineSettings, changed_fields, settings_to_json
    from pool.domain.starter_profiles import STARTER_PROFILES

    rows = []
    for name, settings in STARTER_PROFILES.items():
        values = settings_to_json(settings)
        changed = [
            f"`{field}` {_plain(values[field])}" for field in changed_fields(EngineSettings(), settings)
        ]
        rows.append((f"`{name}`", ", ".join(changed) or "all defaults"))
    return _table(("profile", "what differs from the defaults"), rows)


def api_paths() -> str:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    import django

    django.setup()
    from console.api.urls import V1, urlpatterns

    rows = []
    for pattern in urlpatterns:
        route, view = str(pattern.pattern), getattr(pattern.callback, "view_class", None)
        if view is None or not route.startswith(V1):
            continue
        shown = re.sub(r"<\w+:(\w+)>", r"{\1}", route.removeprefix(V1))
        rights = ", ".join(f"{method} {right.value}" for method, right in view.rights.items())
        rows.append((f"`{shown}`", rights))
    return _table(("below `/api/v1/`", "method and right"), rows)


def member_docs(kind: type[StrEnum]) -> dict[str, str]:
    """Name of a member → the docstring below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    says = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.Assign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            target = before.targets[0]
            assert isinstance(target, ast.Name)
            says[target.id] = " ".join(str(after.value.value).split())
    return says


def _states(
    module: ModuleType,
    kind: type[P],
    moves: Mapping[P, Iterable[P]],
    *,
    first: P,
) -> str:
    arrows = [f"    {source} --> {target}" for source in kind for target in kind if target in moves[source]]
    diagram = "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *arrows, "```"])
    says = member_docs(kind)
    rows = (
        (
            f"`{phase}`",
            says[phase.name],
            ", ".join(f"`{target}`" for target in kind if target in moves[phase]) or "nothing",
        )
        for phase in kind
    )
    table = _table(("phase", "what is true in it, who moves it on", "may be followed by"), rows)
    return f"From `MOVES` of `{module.__name__}`.\n\n{diagram}\n\n{table}"


_KINDS = {"flag": "`true`, `false`", "word": "a word"}


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "replica-states": replica_states,
    "node-states": node_states,
    "start-codes": start_codes,
    "console-errors": console_errors,
    "gateway-errors": gateway_errors,
    "profile-settings": profile_settings,
    "starter-profiles": starter_profiles,
    "api-paths": api_paths,
}


def main() -> int:
    for path in list_files():
        text = render(path)
        if text != path.read_text():
            path.write_text(text)
            sys.stdout.write(f"{path.name} is new\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
