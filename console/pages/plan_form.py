"""The form of a traffic plan: a weight for every release, and the shadow. Lanes and pins of the plan in force stay."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.live.screens.rows import hue_of
from console.pages.numbers import read_whole
from pool.queries.models import ModelView
from pool.services.plans import PlanWish

WHOLE = 100
_FIRST_SHADOW_PERCENT = 10


class PlanForm(forms.Form):
    """Weights in percent; `shadow_release` empty: none."""

    shadow_release = forms.ChoiceField(label=gettext_lazy("Release that watches"), required=False)
    shadow_percent = forms.FloatField(
        label=gettext_lazy("Part of the requests"),
        min_value=0,
        max_value=WHOLE,
        required=False,
        widget=forms.NumberInput(attrs={"inputmode": "decimal", "step": "any"}),
    )
    comment = forms.CharField(
        label=gettext_lazy("Comment"),
        required=False,
        max_length=2000,
        widget=forms.TextInput(attrs={"placeholder": gettext_lazy("Why; the next one on duty reads it")}),
    )

    def __init__(self, view: ModelView, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.releases = view.releases
        self.current = view.model.plan
        for release in view.releases:
            self.fields[f"weight_{release.number}"] = forms.IntegerField(
                label=_("Weight of release %(number)d in percent") % {"number": release.number},
                min_value=0,
                max_value=WHOLE,
                required=False,
                initial=release.weight_percent,
                widget=forms.NumberInput(attrs={"data-weight": release.number, "inputmode": "numeric"}),
            )
        self._add_shadow()

    def _add_shadow(self) -> None:
        named = [(str(one.number), _("release %(number)d") % {"number": one.number}) for one in self.releases]
        choice: Any = self.fields["shadow_release"]
        choice.choices = [("", _("none")), *named]
        percent: Any = self.fields["shadow_percent"]
        percent.unit = "%"
        shadow = self.shadow_in_force()
        choice.initial = str(shadow["release"]) if shadow else ""
        percent.initial = f"{shadow['percent']:g}" if shadow else _FIRST_SHADOW_PERCENT

    def shadow_in_force(self) -> dict[str, Any] | None:
        """`release` and `percent`; None: there is none."""
        shadow: Any = self.current.shadow if self.current else None
        return {"release": shadow["release"], "percent": shadow.get("percent", WHOLE)} if shadow else None

    def rows(self) -> list[dict[str, object]]:
        return [
            {
                "release": release,
                "field": self[f"weight_{release.number}"],
                "hue": hue_of(release.number),
                "ready": sum(count.ready for count in release.counts),
                "wanted": sum(count.wanted for count in release.counts),
            }
            for release in self.releases
        ]

    def typed_weights(self) -> dict[int, int]:
        """What stands in the fields now, valid or not; what is no number counts 0."""
        typed = {one.number: str(self[f"weight_{one.number}"].value() or 0) for one in self.releases}
        return {number: read_whole(text) or 0 for number, text in typed.items()}

    def typed_shadow(self) -> dict[str, Any] | None:
        """As it stands in the fields now; also while it is not valid: then the one in force."""
        if not self.is_bound or "shadow_release" not in self.data:
            return self.shadow_in_force()
        if {"shadow_release", "shadow_percent"} & set(self.errors):
            return self.shadow_in_force()
        given = self.cleaned_data
        if not given["shadow_release"]:
            return None
        percent = float(given["shadow_percent"])
        return {
            "release": int(given["shadow_release"]),
            "percent": int(percent) if percent.is_integer() else percent,
        }

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if given.get("shadow_release") and given.get("shadow_percent") is None:
            self.add_error("shadow_percent", _("How many of the requests, in percent?"))
        total = sum(given.get(f"weight_{release.number}") or 0 for release in self.releases)
        if total != WHOLE and not self.errors:
            raise forms.ValidationError(
                _("The weights sum to %(total)d %%, not to 100 %%."), params={"total": total}, code="sum"
            )
        return given

    def wish(self) -> PlanWish:
        """Of a valid form; an empty weight is 0."""
        current, given = self.current, self.cleaned_data
        weights = {one.number: given.get(f"weight_{one.number}") or 0 for one in self.releases}
        lanes = current.lanes if current else {}
        return PlanWish(
            weights={number: percent for number, percent in weights.items() if percent},
            lanes={lane: {int(n): p for n, p in shares.items()} for lane, shares in lanes.items()},
            pins=dict(current.pins) if current else {},
            shadow=self.typed_shadow(),
            comment=given["comment"],
        )
