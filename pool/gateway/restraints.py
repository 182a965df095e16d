"""What a lane is held back by for a while: restrictions of the routing table, as the gate reads them."""

from collections.abc import Sequence
from typing import Any

_NEVER = float("-inf")

Held = tuple[str, str, float, float]
"""Kind and lane as in `RestrictionRoute`, value, until when on the gate's clock in seconds."""


class Restraint:
    """Of one lane. The fields without an underscore are true as of the last `refresh`."""

    __slots__ = (
        "_batch_until_s", "_closed_until_s", "_long_until_s", "_ratio", "_ratio_until_s", "bars_long", "is_active",
        "is_closed", "ratio", "sheds_batch",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_active = False
        self.sheds_batch = False
        """No `batch`, neither new nor waiting."""
        self.is_closed = False
        """Nothing new but `vip`."""
        self.bars_long = False
        self.ratio = 1.0
        """Of its limits that it may use."""
        self._batch_until_s = _NEVER
        self._closed_until_s = _NEVER
        self._long_until_s = _NEVER
        self._ratio_until_s = _NEVER
        self._ratio = 1.0

    def hold(self, restrictions: Sequence[Held], lane: str) -> None:
        """Replaces all that held before. Kinds that this version does not know hold nobody."""
        self._clear()
        for kind, where, value, until_s in restrictions:
            if where and where != lane:
                continue
            if kind == "shed_batch":
                self._batch_until_s = max(self._batch_until_s, until_s)
            elif kind == "close_lane":
                self._closed_until_s = max(self._closed_until_s, until_s)
            elif kind == "no_long":
                self._long_until_s = max(self._long_until_s, until_s)
            elif kind == "admission_ratio" and 0.0 < value < 1.0:
                self._ratio = min(self._ratio, value)
                self._ratio_until_s = max(self._ratio_until_s, until_s)

    def refresh(self, now_s: float) -> bool:
        """Whether anything holds."""
        self.sheds_batch = now_s < self._batch_until_s
        self.is_closed = now_s < self._closed_until_s
        self.bars_long = now_s < self._long_until_s
        self.ratio = self._ratio if now_s < self._ratio_until_s else 1.0
        self.is_active = self.sheds_batch or self.is_closed or self.bars_long or self.ratio < 1.0
        return self.is_active

    def describe(self, now_s: float) -> dict[str, Any]:
        """For pages: seconds left by kind."""
        left = {
            "shed_batch": self._batch_until_s - now_s,
            "close_lane": self._closed_until_s - now_s,
            "no_long": self._long_until_s - now_s,
            "admission_ratio": self._ratio_until_s - now_s,
        }
        return {kind: round(seconds, 1) for kind, seconds in left.items() if seconds > 0.0}

    def _clear(self) -> None:
        self._batch_until_s = _NEVER
        self._closed_until_s = _NEVER
        self._long_until_s = _NEVER
        self._ratio_until_s = _NEVER
        self._ratio = 1.0
