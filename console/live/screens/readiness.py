"""Readiness to go back, as the cells that every page of a model shows."""

from __future__ import annotations

from typing import Any

from console.live.screens import tones
from console.live.screens.rows import Tree
from console.readiness_words import readiness_words
from pool.domain.readiness import State
from pool.queries.readiness import Readiness

_TONES = {
    State.WARM: tones.OK,
    State.STARTING: tones.BUSY,
    State.COLD: tones.WARN,
    State.IMPOSSIBLE: tones.BAD,
    State.NOWHERE: tones.IDLE,
}


def readiness_cells(told: Readiness | None) -> Tree:
    """None: it was not asked for; nothing is shown."""
    if told is None:
        return {"readiness": "", "readiness_tone": tones.IDLE}
    tone = _TONES[told.state]
    is_short = told.capacity_ratio is not None and told.capacity_ratio < 1
    if tone == tones.OK and (is_short or told.gateways_silent):
        tone = tones.WARN
    return {"readiness": readiness_words(told), "readiness_tone": tone}


def mark_way_back(tree: dict[str, Any], told: Readiness | None) -> None:
    """On the rows of a model's releases and versions: whether one click on rollback needs them."""
    release, version = str(told.release) if told is not None else "", ""
    for row in tree["releases"]:
        is_back = row["id"] == release
        version = row["version"] if is_back else version
        for count in row["counts"]:
            count["back"] = "yes" if is_back else "no"
    for row in tree["versions"]:
        row["back"] = "yes" if row["id"] == version else "no"
