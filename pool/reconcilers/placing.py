"""One pass' view of the pool, and the places that this pass has given away."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from pool.domain.memory import Device, Unknown, predict_kv, weight_bytes_per_device
from pool.domain.placement import Need, NoPlace, Placement, choose_place
from pool.models import Replica
from pool.queries.needs import NoNeed, find_need
from pool.queries.placement import Inventory, load_inventory
from pool.services.placing import place_replica
from pool.services.replicas import Seen


@dataclass(frozen=True)
class Answer:
    """`placement` None: there is no place now, and `reason` says why."""

    placement: Placement | None
    reason: str
    predicted: dict[str, object] = field(default_factory=dict)


class Placing:
    """Loads the inventory once per pass, when the first replica asks, and again after a place was given."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._answers: dict[str, Answer] = {}

    @cached_property
    def inventory(self) -> Inventory:
        return load_inventory(self.now)

    def find(self, row: Replica) -> Answer:
        if row.pk not in self._answers:
            self._answers[row.pk] = self._find(row)
        return self._answers[row.pk]

    def place(self, row: Replica, at: Seen) -> bool:
        answer = self.find(row)
        if answer.placement is None:
            return False
        placed = place_replica(at, answer.placement, predicted=answer.predicted, now=self.now)
        self.__dict__.pop("inventory", None)
        self._answers.clear()
        return placed

    def _find(self, row: Replica) -> Answer:
        need = find_need(self.inventory, row.release, row.lane)
        if isinstance(need, NoNeed):
            return Answer(None, need.reason)
        found = choose_place(need, self.inventory.view_for(row))
        if isinstance(found, NoPlace):
            return Answer(None, found.reason)
        return Answer(found, found.reason, self._predict(need, found))

    def _predict(self, need: Need, placement: Placement) -> dict[str, object]:
        """What the engine should print at its start; empty where it cannot be computed."""
        size = self.inventory.device_size(placement.node, placement.devices[0])
        if need.simulated or size is None:
            return {}
        device = Device(kind=need.device_kind, total_bytes=size)
        plan = predict_kv(need.facts, need.settings, device=device)
        weights = weight_bytes_per_device(need.facts, need.settings)
        predicted: dict[str, object] = {}
        if not isinstance(weights, Unknown):
            predicted["weight_bytes"] = weights
        if isinstance(plan, Unknown):
            return predicted | {"kv_unknown": plan.reason}
        return predicted | {
            "kv_tokens": plan.printed_tokens,
            "kv_bytes": plan.budget_bytes,
            "kv_blocks": plan.blocks,
            "kv_is_estimate": plan.budget_is_estimate,
        }
