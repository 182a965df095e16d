"""`.venv/bin/python -m docs.generate` writes those parts of the documentation that repeat the code.

A part stands between `<!-- begin generated: NAME -->` and `<!-- end generated -->`; a test fails while one is stale.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pool.domain.gateway_settings import LaneSettings, ModelSettings
    from pool.domain.metric_names import Metric
    from pool.gateway.openai import GatewayError

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


def rollout_states() -> str:
    from pool.domain import rollout

    return _states(rollout, rollout.Phase, rollout.MOVES, first=rollout.Phase.PLANNED)


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
    from pool.gateway.openai import StreamInterrupted, StreamLate
    from pool.gateway.refusals import Refusal

    rows = {
        (
            "in the stream" if kind in (StreamInterrupted, StreamLate) else str(kind.status),
            f"`{kind.code}`",
            f"`{kind.kind}`",
            "by the cause"
            if issubclass(kind, Refusal)
            else f"{kind.retry_after_s} s"
            if kind.retry_after_s
            else "",
        )
        for kind in _list_gateway_errors()
    }
    return _table(("status", "`error.code`", "`error.type`", "`Retry-After`"), sorted(rows))


def _list_gateway_errors() -> Iterator[type[GatewayError]]:
    """Those that a client can get: each has a code of its own."""
    from pool.gateway.openai import GatewayError

    kinds = list(GatewayError.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
    yield from (kind for kind in kinds if "code" in vars(kind))


def gateway_metrics() -> str:
    from pool.gateway.metrics import COUNTERS, GAUGES

    texts = {name: ("counter", text) for name, text in COUNTERS.items()}
    texts |= {name: ("gauge", text) for name, (text, _) in GAUGES.items()}
    return _table(("name", "kind", "what it is"), ((f"`{name}`", *texts[name]) for name in sorted(texts)))


def engine_metrics() -> str:
    from pool.domain.metric_names import DEVICES, ENGINES

    return _metrics({**ENGINES, **DEVICES})


def process_metrics() -> str:
    from pool.domain.metric_names import LOOPS, PROCESS, QUEUES, TELEMETRY, WORKER

    return _metrics({**WORKER, **LOOPS, **QUEUES, **TELEMETRY, **PROCESS})


def _metrics(metrics: Mapping[str, Metric]) -> str:
    rows = ((f"`{name}`", one.kind, ", ".join(one.labels), one.text) for name, one in metrics.items())
    return _table(("name", "kind", "labels", "what it is"), rows)


def lane_settings() -> str:
    from pool.domain.gateway_settings import LaneSettings

    return _gateway_settings(LaneSettings)


def model_settings() -> str:
    from pool.domain.gateway_settings import ModelSettings

    return _gateway_settings(ModelSettings)


def _gateway_settings(kind: type[LaneSettings] | type[ModelSettings]) -> str:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    import django

    django.setup()
    from console.gateway_fields import words_of

    rows = []
    for one in dataclasses.fields(kind):
        words = words_of(kind, one.name)
        # Ratios are typed in percent on pages only.
        unit = "" if one.name.endswith("_ratio") else words.unit
        default = "none" if one.default is None else f"`{_plain(one.default)}` {unit}".strip()
        effect = f"{words.label}. {words.hint}".strip()
        rows.append((f"`{one.name}`", _values_of(one), default, effect))
    return _table(("setting", "values", "default", "what it does"), rows)


def _values_of(one: dataclasses.Field[Any]) -> str:
    from pool.domain.gateway_settings import SWITCHES, number_bounds

    if one.name in SWITCHES:
        return ", ".join(f"`{word}`" for word in SWITCHES[one.name])
    if one.type == "bool":
        return _KINDS["flag"]
    low, high = number_bounds(one.name)
    text = f"from {low:,g}" if high >= _ENDLESS else f"{low:,g} to {high:,g}"
    return f"{text}, or `null`" if str(one.type).endswith("None") else text


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


# A bound that only keeps a number storable says nothing to a reader.
_ENDLESS = 2**31 - 1
_KINDS = {"flag": "`true`, `false`", "word": "a word"}


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "replica-states": replica_states,
    "node-states": node_states,
    "rollout-states": rollout_states,
    "start-codes": start_codes,
    "console-errors": console_errors,
    "gateway-errors": gateway_errors,
    "gateway-metrics": gateway_metrics,
    "engine-metrics": engine_metrics,
    "process-metrics": process_metrics,
    "lane-settings": lane_settings,
    "model-settings": model_settings,
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
