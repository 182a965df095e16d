"""Form fields made from the gateway's settings: ratios are typed in percent, an empty limit means none."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

from django import forms
from django.utils.translation import gettext as _

from console.gateway_fields import Kind, words_of
from pool.domain.gateway_settings import SWITCHES, number_bounds

PERCENT = 100


class PercentField(forms.FloatField):
    """A ratio, shown and typed in percent."""

    def __init__(self, *, low: float, high: float, **options: Any) -> None:
        self.low, self.high = low, high
        super().__init__(**options)
        self.widget.attrs |= {"min": f"{low * PERCENT:g}", "max": f"{high * PERCENT:g}", "step": "any"}

    def prepare_value(self, value: Any) -> Any:
        return f"{round(value * PERCENT, 6):g}" if isinstance(value, int | float) else value

    def to_python(self, value: Any) -> float | None:  # type: ignore[override]  # the stubs' FloatField gives int
        percent = super().to_python(value)
        if percent is None:
            return None
        if not self.low <= percent / PERCENT <= self.high:
            words = _("Between %(low)s and %(high)s %%.")
            limits = {"low": f"{self.low * PERCENT:g}", "high": f"{self.high * PERCENT:g}"}
            raise forms.ValidationError(words % limits)
        return round(percent / PERCENT, 8)


class PlainFloatField(forms.FloatField):
    """Shows 30, not 30.0."""

    def prepare_value(self, value: Any) -> Any:
        return f"{value:g}" if isinstance(value, float) and value < 1_000_000 else value


def setting_fields(kind: Kind) -> dict[str, forms.Field]:
    """One for each setting, in the order of the class."""
    return {one.name: _field(kind, one) for one in fields(kind)}


def _field(kind: Kind, one: Field[Any]) -> forms.Field:
    words = words_of(kind, one.name)
    options: dict[str, Any] = {"label": words.label, "help_text": words.hint, "initial": one.default}
    if one.name in SWITCHES:
        choices = [(word, word.replace("_", " ")) for word in SWITCHES[one.name]]
        return forms.ChoiceField(choices=choices, **options)
    if one.type == "bool":
        return forms.BooleanField(required=False, **options)
    low, high = number_bounds(one.name)
    if one.name.endswith("_ratio"):
        return _with_unit(PercentField(low=low, high=high, **options), "%")
    if str(one.type).startswith("int"):
        options |= {"required": not str(one.type).endswith("None")}
        field: forms.Field = forms.IntegerField(min_value=int(low), max_value=int(high), **options)
        field.widget.attrs["inputmode"] = "numeric"
    else:
        field = PlainFloatField(min_value=low, max_value=high, **options)
        field.widget.attrs["step"] = "any"
    return _with_unit(field, words.unit)


def _with_unit(field: forms.Field, unit: str) -> forms.Field:
    field.unit = unit  # type: ignore[attr-defined]
    return field
