"""A screen's nested values as flat cells, and the difference between two states of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Cell = str | int | float | bool | None | list[str]
Cells = dict[str, Cell]


@dataclass
class Changes:
    """What to set and what to remove to get from one state to the next."""

    put: Cells = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.put or self.gone)

    def add(self, later: Changes) -> None:
        """Coalesces: only the newest value of a cell remains, so this never outgrows the screen."""
        for key in later.gone:
            self.put.pop(key, None)
            self.gone.add(key)
        for key, value in later.put.items():
            self.gone.discard(key)
            self.put[key] = value


def flatten(tree: Mapping[str, object], prefix: str = "") -> Cells:
    """`{"rows": [{"id": "a", "n": 1}]}` → `{"rows#": ["a"], "rows/a/id": "a", "rows/a/n": 1}`."""
    return dict(_walk(tree, prefix))


def _walk(tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, Cell]]:
    for name, value in tree.items():
        path = prefix + name
        if isinstance(value, Mapping):
            yield from _walk(value, f"{path}/")
        elif isinstance(value, list | tuple):
            yield from _walk_rows(value, path)
        elif value is None or isinstance(value, str | int | float | bool):
            yield path, value
        else:
            raise TypeError(f"{path} is no cell: {type(value).__name__}")


def _walk_rows(rows: Iterable[Mapping[str, object]], path: str) -> Iterator[tuple[str, Cell]]:
    listed = list(rows)
    yield f"{path}#", [str(row["id"]) for row in listed]
    for row in listed:
        yield from _walk(row, f"{path}/{row['id']}/")


def compare(before: Cells, after: Cells) -> Changes:
    missing = object()
    return Changes(
        put={key: value for key, value in after.items() if before.get(key, missing) != value},
        gone=before.keys() - after.keys(),
    )
