"""The forms of the lanes editor: a form per lane, read into wishes from short to long."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from django import forms
from django.forms.formsets import BaseFormSet, formset_factory
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.pages.setting_fields import setting_fields
from pool.domain.gateway_settings import LaneSettings
from pool.domain.lanes import default_lanes
from pool.queries.lanes import LaneRow, LaneUse
from pool.services.lanes import COLUMNS, LARGEST_WHOLE, MOST_LANES, LaneWish

MOST_REPLICAS = 512
GROUPS = (
    (
        gettext_lazy("Queue and limits"),
        ("queue_limit", "queue_timeout_s", "requests_per_min", "tokens_per_min"),
    ),
    (
        gettext_lazy("Time limits"),
        ("connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "total_timeout_s"),
    ),
    (gettext_lazy("Streams"), ("late_gap_ms", "late_gap_policy", "pacing_ms", "group_events")),
)
"""Settings that stand folded below the main ones."""


if TYPE_CHECKING:
    _FormSet = BaseFormSet["LaneForm"]
else:
    _FormSet = BaseFormSet


class LaneForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=63,
        widget=forms.TextInput(attrs={"data-lane-name": "", "autocomplete": "off"}),
    )
    max_prompt_tokens = forms.IntegerField(
        label=gettext_lazy("Prompts below"),
        required=False,
        min_value=1,
        max_value=LARGEST_WHOLE,
        help_text=gettext_lazy("Empty for the last lane: up to the context."),
        widget=forms.NumberInput(attrs={"data-lane-edge": "", "inputmode": "numeric", "placeholder": "∞"}),
    )

    def __init__(self, *args: Any, uses: Sequence[LaneUse] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.uses = uses
        self.fields |= setting_fields(LaneSettings)
        self.fields["max_prompt_tokens"].unit = "tokens"  # type: ignore[attr-defined]
        self.fields["weight"].widget.attrs["data-lane-weight"] = ""
        for use in uses:
            if use.own:
                self.fields[f"replicas_{use.release}"] = forms.IntegerField(
                    label=_("Replicas of release %(number)d") % {"number": use.release},
                    min_value=0,
                    max_value=MOST_REPLICAS,
                    initial=use.wanted,
                    help_text=_("%(ready)d ready, %(weight)d %% of the lane's traffic.")
                    % {"ready": use.ready, "weight": use.weight_percent},
                )

    def replica_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name.startswith("replicas_")]

    def shared(self) -> list[LaneUse]:
        return [use for use in self.uses if not use.own]

    def groups(self) -> list[dict[str, Any]]:
        """With how many settings of each are not what they are by default."""
        usual = asdict(LaneSettings())
        return [
            {
                "title": title,
                "fields": [self[name] for name in names],
                "changed": sum(
                    self.get_initial_for_field(self.fields[name], name) != usual[name] for name in names
                ),
                "open": any(self[name].errors for name in names),
            }
            for title, names in GROUPS
        ]

    def wish(self) -> LaneWish:
        """Of a valid form."""
        given = self.cleaned_data
        settings = {one.name: given[one.name] for one in fields(LaneSettings) if one.name not in COLUMNS}
        return LaneWish(
            name=given["name"],
            max_prompt_tokens=given["max_prompt_tokens"],
            concurrency=given["concurrency"],
            ttft_target_ms=given["ttft_target_ms"],
            settings=settings,
        )

    def scales(self) -> dict[tuple[int, str], int]:
        """(release, lane) → replicas, where the wish changed."""
        return {
            (use.release, use.lane): self.cleaned_data[f"replicas_{use.release}"]
            for use in self.uses
            if use.own and self.cleaned_data[f"replicas_{use.release}"] != use.wanted
        }


class LaneFormsBase(_FormSet):
    def __init__(self, *args: Any, lanes: Sequence[LaneRow], uses: Sequence[LaneUse], **kwargs: Any) -> None:
        self.lanes, self.uses = lanes, uses
        kwargs |= {"initial": [asdict(lane) for lane in lanes], "prefix": "lane"}
        super().__init__(*args, **kwargs)

    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:
        known = index is not None and index < len(self.lanes)
        uses = [use for use in self.uses if known and use.lane == self.lanes[index or 0].name]
        return super().get_form_kwargs(index) | {"uses": uses}

    def add_fields(self, form: LaneForm, index: int | None) -> None:
        super().add_fields(form, index)
        form.empty_permitted = False
        form.use_required_attribute = index is not None
        form.fields["DELETE"].widget = forms.HiddenInput()
        if index is None:
            middle = default_lanes(None)[1]
            form.fields["concurrency"].initial = middle.concurrency
            form.fields["ttft_target_ms"].initial = middle.ttft_target_ms

    def kept(self) -> list[LaneForm]:
        """Those that stay, from short to long; an empty edge is last."""
        forms_left = [form for form in self.forms if not form.cleaned_data.get("DELETE")]
        return sorted(
            forms_left, key=lambda form: form.cleaned_data["max_prompt_tokens"] or LARGEST_WHOLE + 1
        )

    def wishes(self) -> list[LaneWish]:
        return [form.wish() for form in self.kept()]


_Factory = formset_factory(
    LaneForm, formset=LaneFormsBase, extra=0, can_delete=True, max_num=MOST_LANES, absolute_max=MOST_LANES + 1
)


def make_lane_forms(
    given: QueryDict | None, *, lanes: Sequence[LaneRow], uses: Sequence[LaneUse]
) -> LaneFormsBase:
    """Bound to what was sent, or showing the lanes in force."""
    make: Any = _Factory
    made: LaneFormsBase = make(given, lanes=lanes, uses=uses)
    return made


def digest_lanes(lanes: Sequence[LaneRow]) -> str:
    """What the editor was opened on: somebody else's change in between is not overwritten."""
    return hashlib.sha256(repr(lanes).encode()).hexdigest()[:16]
