"""What a change of lanes would do, in sentences, before it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.utils.translation import gettext as _

from console.gateway_fields import words_of
from console.templatetags.units import format_count
from pool.domain.gateway_settings import LaneSettings
from pool.queries.lanes import LaneRow, LaneUse
from pool.services.lanes import LaneWish

Consequence = dict[str, str]
TOLD_APART = frozenset({"concurrency", "weight", "late_gap_policy", "queue_limit", "adaptive"})
"""Settings with a sentence of their own."""


def lane_consequences(
    before: Sequence[LaneRow],
    after: Sequence[LaneWish],
    *,
    uses: Sequence[LaneUse] = (),
    scales: Mapping[tuple[int, str], int] | None = None,
) -> list[Consequence]:
    """`after` is from short to long; `scales` are the changed wishes for replicas."""
    old = {lane.name: lane for lane in before}
    new = {lane.name: lane for lane in after}
    found = [_removed(lane, uses) for lane in before if lane.name not in new]
    found += [_added(lane) for lane in after if lane.name not in old]
    found += _moved_prompts(before, after)
    for wish in after:
        if wish.name in old:
            found += _changes(old[wish.name], wish, uses)
    found += _weights(before, after, uses)
    found += [_scale(key, replicas, uses) for key, replicas in (scales or {}).items()]
    return found


def _say(state: str, text: str, **values: object) -> Consequence:
    return {"state": state, "text": text % values}


def _removed(lane: LaneRow, uses: Sequence[LaneUse]) -> Consequence:
    if any(use.own and use.lane == lane.name for use in uses):
        return _say(
            "bad",
            _(
                "%(lane)s cannot go: a release has replicas for it alone. Move off it with a new release first."
            ),
            lane=lane.name,
        )
    return _say(
        "warn", _("%(lane)s goes. Its prompts belong to the next lane; what runs finishes."), lane=lane.name
    )


def _added(lane: LaneWish) -> Consequence:
    return _say(
        "busy",
        _("%(lane)s is new. It shares the replicas that serve all lanes; releases with own profiles per lane have "
          "none for it yet."),
        lane=lane.name,
    )  # fmt: skip


def _moved_prompts(before: Sequence[LaneRow], after: Sequence[LaneWish]) -> Iterator[Consequence]:
    """One sentence per range of prompt lengths that changes its lane."""
    known = [lane.max_prompt_tokens for lane in before] + [lane.max_prompt_tokens for lane in after]
    edges = sorted({edge for edge in known if edge is not None})
    low = 0
    for high in [*edges, None]:
        source, target = _lane_at(before, low), _lane_at(after, low)
        if source != target and source and target:
            text = (
                _("Prompts of %(low)s to %(high)s tokens move from %(source)s to %(target)s.")
                if high
                else _("Prompts from %(low)s tokens on move from %(source)s to %(target)s.")
            )
            words = {"low": format_count(low), "high": format_count(high - 1) if high else ""}
            yield _say("busy", text, **words, source=source, target=target)
        low = high or low


def _lane_at(lanes: Sequence[LaneRow] | Sequence[LaneWish], tokens: int) -> str:
    for lane in lanes:
        if lane.max_prompt_tokens is None or tokens < lane.max_prompt_tokens:
            return lane.name
    return ""


def _changes(old: LaneRow, wish: LaneWish, uses: Sequence[LaneUse]) -> Iterator[Consequence]:
    new = LaneSettings(
        **{**wish.settings, "concurrency": wish.concurrency, "ttft_target_ms": wish.ttft_target_ms}
    )
    yield from _concurrency(old, new, name=wish.name, uses=uses)
    if new.queue_limit != old.queue_limit and new.queue_limit == 0:
        text = _("%(lane)s: nothing waits any more. What finds no free slot gets 429 queue_full at once.")
        yield _say("warn", text, lane=wish.name)
    elif new.queue_limit != old.queue_limit:
        yield _plain(wish.name, "queue_limit", old.queue_limit, new.queue_limit)
    if new.late_gap_policy != old.late_gap_policy and new.late_gap_policy == "end":
        text = _("%(lane)s: a stream with three gaps over %(gap)s ms in a row is cut with stream_late.")
        yield _say("warn", text, lane=wish.name, gap=format_count(new.late_gap_ms))
    elif new.late_gap_policy != old.late_gap_policy:
        yield _say("busy", _("%(lane)s: late streams are marked and go on."), lane=wish.name)
    before, after = asdict(old), asdict(new)
    for name in after:
        if name not in TOLD_APART and before[name] != after[name]:
            yield _plain(wish.name, name, before[name], after[name])


def _concurrency(
    old: LaneRow, new: LaneSettings, *, name: str, uses: Sequence[LaneUse]
) -> Iterator[Consequence]:
    if new.adaptive != old.adaptive:
        yield _say(
            "busy",
            _("%(lane)s finds its concurrency from its TTFT target.")
            if new.adaptive
            else _("%(lane)s keeps %(count)s requests at once per replica, however slow they become."),
            lane=name,
            count=format_count(new.concurrency),
        )
    if new.concurrency == old.concurrency:
        return
    text = (
        _(
            "%(lane)s: %(before)s → %(after)s at once per replica. New requests queue sooner; what runs finishes."
        )
        if new.concurrency < old.concurrency
        else _("%(lane)s: %(before)s → %(after)s at once per replica. More run, each a little slower.")
    )
    yield _say(
        "busy", text, lane=name, before=format_count(old.concurrency), after=format_count(new.concurrency)
    )
    slots = [use.slots for use in uses if use.lane == name and use.slots is not None]
    if slots and new.concurrency > min(slots):
        text = _("%(lane)s: a replica has %(slots)s slots, so more than that never run at once.")
        yield _say("warn", text, lane=name, slots=format_count(min(slots)))


def _weights(
    before: Sequence[LaneRow], after: Sequence[LaneWish], uses: Sequence[LaneUse]
) -> Iterator[Consequence]:
    """Only where lanes share replicas do weights do anything."""
    old = {lane.name: lane.weight for lane in before}
    new = {lane.name: int(lane.settings.get("weight", 1)) for lane in after}
    if old == new or not new:
        return
    total = sum(new.values())
    shares = ", ".join(f"{name} {round(100 * weight / total)} %" for name, weight in new.items())
    yield _say(
        "busy", _("A busy shared replica is divided: %(shares)s. Idle shares go to who waits."), shares=shares
    )
    if uses and all(use.own for use in uses):
        yield _say(
            "busy", _("No release shares replicas between lanes now, so the weights change nothing yet.")
        )


def _scale(key: tuple[int, str], replicas: int, uses: Sequence[LaneUse]) -> Consequence:
    use = next(use for use in uses if (use.release, use.lane) == key)
    words = {"lane": use.lane, "release": use.release, "before": use.wanted, "after": replicas}
    if replicas == 0 and use.weight_percent:
        text = _(
            "%(lane)s: release %(release)d has weight but no replica then: its share spills or gets a 503."
        )
        return _say("bad", text, **words)
    text = (
        _("%(lane)s, release %(release)d: %(before)d → %(after)d replicas. The rest drain, then stop.")
        if replicas < use.wanted
        else _(
            "%(lane)s, release %(release)d: %(before)d → %(after)d replicas, once there is room and they are warm."
        )
    )
    return _say("warn" if replicas < use.wanted else "busy", text, **words)


def _plain(lane: str, name: str, before: Any, after: Any) -> Consequence:
    words = words_of(LaneSettings, name)
    values = {"lane": lane, "label": words.label, "unit": words.unit}
    text = _("%(lane)s: %(label)s %(before)s → %(after)s %(unit)s")
    return _say("busy", text.strip(), **values, before=_shown(before), after=_shown(after))


def _shown(value: Any) -> str:
    if value is None:
        return _("none")
    return f"{value:,g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
