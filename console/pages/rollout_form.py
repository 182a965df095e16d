"""The form that starts a rollout: steps as lines, a row for each gate, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.pages.numbers import read_whole
from console.pages.setting_fields import PercentField, PlainFloatField
from console.rollout_words import gate_words
from pool.domain.gates import DEFAULTS, GateSetting
from pool.domain.rollout import Step
from pool.queries.models import ModelView
from pool.services import rollouts
from pool.services.rollouts import DEFAULT_STEPS, MOST_STEPS, RolloutWish

USUAL_STEPS = "\n".join(f"{step.weight} {step.soak_s} {step.min_requests}" for step in DEFAULT_STEPS)
STEP_PARTS = 3
MOST_REPLICAS = 512
_RATIOS = {"margin_ratio": (0.0, 10.0), "margin_points": (0.0001, 0.5), "limit_ratio": (0.0001, 0.95)}


@dataclass(frozen=True)
class GateRow:
    """Fields of one gate; None where it has no such setting."""

    name: str
    words: str
    margin_ratio: forms.BoundField
    margin_points: forms.BoundField | None
    limit: forms.BoundField | None
    limit_unit: str
    dry_run: forms.BoundField
    problems: tuple[str, ...]


class RolloutForm(forms.Form):
    candidate = forms.TypedChoiceField(label=gettext_lazy("Candidate"), coerce=int)
    replicas = forms.IntegerField(
        label=gettext_lazy("Replicas of the candidate"),
        required=False,
        min_value=1,
        max_value=MOST_REPLICAS,
        help_text=gettext_lazy(
            "Of each of its lanes, where lanes have engines of their own. Empty: as the stable release has."
        ),
    )
    steps = forms.CharField(
        label=gettext_lazy("Steps"),
        initial=USUAL_STEPS,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 5, "class": "mono", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "One a line: percent, seconds to soak, requests that the candidate must have answered in each lane."
        ),
    )
    lane_by_lane = forms.BooleanField(
        label=gettext_lazy("Lane by lane, the shortest prompts first"), required=False
    )
    hold_min = forms.IntegerField(
        label=gettext_lazy("Hold (minutes)"), initial=30, min_value=0, max_value=rollouts.LONGEST_HOLD_S // 60,
        help_text=gettext_lazy("At full weight with the stable release still warm; one click goes back at once."),
    )  # fmt: skip
    accept_outage = forms.BooleanField(required=False)
    """Shown by the preview alone, where there is no other way."""
    comment = forms.CharField(
        label=gettext_lazy("Comment"),
        required=False,
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=gettext_lazy("Why: it stands in the log of the rollout."),
    )

    def __init__(self, view: ModelView, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        weights = view.model.plan.weights if view.model.plan else {}
        self.lanes = tuple(lane.name for lane in view.model.lanes)
        choices = [
            (
                row.number,
                _("release %(number)d, version %(version)s") % {"number": row.number, "version": row.version},
            )
            for row in reversed(view.releases)
            if not weights.get(str(row.number))
        ]
        field: Any = self.fields["candidate"]
        field.choices = sorted(choices, reverse=True)
        self.fields["lane_by_lane"].help_text = " → ".join(self.lanes)
        for gate, setting in DEFAULTS.items():
            self.fields |= _gate_fields(gate, setting)

    def gate_rows(self) -> list[GateRow]:
        return [self._gate_row(gate, setting) for gate, setting in DEFAULTS.items()]

    def _gate_row(self, gate: str, setting: GateSetting) -> GateRow:
        names = [name for name in self.fields if name.startswith(f"{gate}-")]
        limit = next((name for name in names if "-limit_" in name), None)
        points = f"{gate}-margin_points"
        return GateRow(
            name=gate,
            words=gate_words(gate),
            margin_ratio=self[f"{gate}-margin_ratio"],
            margin_points=self[points] if setting.margin_points is not None else None,
            limit=self[limit] if limit else None,
            limit_unit="s" if limit and limit.endswith("_s") else "%",
            dry_run=self[f"{gate}-dry_run"],
            problems=tuple(str(problem) for name in names for problem in self[name].errors),
        )

    def clean_steps(self) -> tuple[Step, ...]:
        steps = []
        for number, line in enumerate(self.cleaned_data["steps"].split("\n"), 1):
            parts = line.split()
            if not parts:
                continue
            numbers = [read_whole(part) for part in parts]
            if len(parts) != STEP_PARTS or None in numbers:
                raise forms.ValidationError(
                    _("Line %(number)d: three whole numbers are wanted, such as “5 300 200”.")
                    % {"number": number}
                )
            weight, soak_s, min_requests = (part or 0 for part in numbers)
            steps.append(Step(weight, soak_s, min_requests))
        if len(steps) > MOST_STEPS:
            raise forms.ValidationError(_("At most %(most)d steps.") % {"most": MOST_STEPS})
        return tuple(steps)

    def wish(self) -> RolloutWish:
        data = self.cleaned_data
        return RolloutWish(
            candidate=data["candidate"],
            steps=data["steps"],
            gates=self._changed_gates(),
            hold_s=data["hold_min"] * 60,
            lanes=self.lanes if data["lane_by_lane"] else (),
            replicas=data["replicas"],
            accept_outage=data["accept_outage"],
            comment=data["comment"],
        )

    def _changed_gates(self) -> dict[str, dict[str, Any]]:
        """What differs from the defaults: those are left to the version that judges. An emptied limit is no limit, an
        emptied margin the usual one."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in self.cleaned_data.items():
            gate, dash, setting = name.partition("-")
            if not dash or value == getattr(DEFAULTS[gate], setting):
                continue
            if value is not None or (setting.startswith("limit_") and name in self.data):
                found.setdefault(gate, {})[setting] = value
        return found


def _gate_fields(gate: str, setting: GateSetting) -> dict[str, forms.Field]:
    fields: dict[str, forms.Field] = {f"{gate}-margin_ratio": _ratio("margin_ratio", setting)}
    if setting.margin_points is not None:
        fields[f"{gate}-margin_points"] = _ratio("margin_points", setting)
        if gate != "shape":
            fields[f"{gate}-limit_ratio"] = _ratio("limit_ratio", setting)
    else:
        fields[f"{gate}-limit_s"] = PlainFloatField(
            required=False, min_value=0.001, max_value=3600, initial=setting.limit_s
        )
        fields[f"{gate}-limit_s"].widget.attrs["step"] = "any"
    fields[f"{gate}-dry_run"] = forms.BooleanField(required=False, initial=setting.dry_run)
    return fields


def _ratio(name: str, setting: GateSetting) -> PercentField:
    low, high = _RATIOS[name]
    return PercentField(low=low, high=high, required=False, initial=getattr(setting, name))
