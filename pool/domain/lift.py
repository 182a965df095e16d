"""What is unusual about some requests: values that are more frequent among them than among the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pool.domain.significance import ALPHA, compare_shares, find_significant

FEWEST_REQUESTS: Final = 5
"""A value that fewer of the chosen requests have says nothing."""
SMALLEST_SHARE: Final = 0.05
"""A value that fewer of the chosen requests have explains too little of them."""


@dataclass(frozen=True, slots=True)
class Trait:
    """How many requests have a value: `chosen` of the chosen ones, `rest` of the others."""

    attribute: str
    value: str
    chosen: int
    rest: int


@dataclass(frozen=True, slots=True)
class Lift:
    """`lift`: share among the chosen ÷ share among the rest, over 1; None where no other request has the value.
    `support`: chosen requests that have it."""

    attribute: str
    value: str
    lift: float | None
    support: int
    chosen_share: float
    rest_share: float
    p_value: float


def rank_lifts(
    traits: Iterable[Trait], *, chosen: int, rest: int, alpha: float = ALPHA, limit: int = 8
) -> list[Lift]:
    """The values that are more frequent among `chosen` requests than among `rest` others by more than chance, corrected
    for how many were looked at; the highest lift first, by support where that is the same."""
    if chosen == 0 or rest == 0:
        return []
    listed = list(traits)
    p_values = [compare_shares(trait.chosen, chosen, trait.rest, rest) for trait in listed]
    significant = find_significant(p_values, alpha=alpha)
    lifts = [
        _lift(trait, p_value, chosen, rest)
        for trait, p_value, is_found in zip(listed, p_values, significant, strict=True)
        if is_found and _has_support(trait, chosen) and trait.chosen * rest > trait.rest * chosen
    ]
    return sorted(lifts, key=_rank)[:limit]


def _has_support(trait: Trait, chosen: int) -> bool:
    return trait.chosen >= max(FEWEST_REQUESTS, SMALLEST_SHARE * chosen)


def _lift(trait: Trait, p_value: float, chosen: int, rest: int) -> Lift:
    chosen_share, rest_share = trait.chosen / chosen, trait.rest / rest
    return Lift(
        attribute=trait.attribute,
        value=trait.value,
        lift=chosen_share / rest_share if trait.rest else None,
        support=trait.chosen,
        chosen_share=chosen_share,
        rest_share=rest_share,
        p_value=p_value,
    )


def _rank(found: Lift) -> tuple[float, int, str, str]:
    strength = float("inf") if found.lift is None else found.lift
    return (-strength, -found.support, found.attribute, found.value)
