"""Forms of SLOs, rules and webhooks: limits in seconds and percent, as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext_lazy as _

from console.alert_words import step_words
from console.pages.setting_fields import PercentField, PlainFloatField
from pool.domain.ladder import AVAILABLE, Step
from pool.domain.qos import RANKS
from pool.domain.resource_rules import Rule
from pool.domain.slo import TEMPLATES, SloSettings, write_settings
from pool.queries.models import list_models
from pool.services.webhooks import TELLING

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    Words = dict[str, tuple[_StrPromise, _StrPromise | str]]

SECONDS: Words = {
    "ttft_p50_s": (_("P50 at most"), _("Half of the streams begin within it.")),
    "ttft_p95_s": (_("P95 at most"), ""),
    "ttft_p99_s": (_("P99 at most"), _("The promise: 1 % may be slower. That is the budget.")),
    "yellow_s": (_("Yellow from"), _("An early warning.")),
    "orange_s": (_("Orange from"), _("Acts.")),
    "red_s": (_("Red from"), _("Acts harder.")),
}
SHARES: Words = {
    "errors_ratio": (_("Errors below"), ""),
    "degraded_ratio": (_("Degraded below"), _("Spilled, retried, truncated or late.")),
    "interrupted_ratio": (_("Interrupted below"), ""),
}
HOLDS: Words = {
    "enter_hold_s": (_("A level must hold for"), ""),
    "exit_hold_s": (_("Its end must hold for"), _("10 % below its limit.")),
    "cool_down_s": (_("Not again for"), ""),
    "opposite_after_s": (_("No opposite action for"), ""),
}


class NewSloForm(forms.Form):
    model = forms.ChoiceField(label=_("Model"))
    lane = forms.CharField(label=_("Lane"), max_length=63, required=False, help_text=_("Empty: all lanes."))
    tier = forms.ChoiceField(
        label=_("Tier"), required=False, choices=[("", _("all")), *((name, name) for name in RANKS)]
    )
    label = forms.CharField(
        label=_("Business label"),
        max_length=63,
        required=False,
        help_text=_("Of the caller's key. Empty: all."),
    )
    template = forms.ChoiceField(
        label=_("Template"),
        choices=[(name, name.replace("_", " ")) for name in TEMPLATES],
        help_text=_("Its limits are scaled to the lane's target and can be changed on the next page."),
    )
    dry_run = forms.BooleanField(
        label=_("Rehearse: tell what would be done, and do nothing"), required=False, initial=True
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["model"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(row.name, row.name) for row in list_models()]


class SloForm(forms.Form):
    """All settings. An empty limit is no promise."""

    min_samples = forms.IntegerField(
        label=_("Least samples"), min_value=1, max_value=1_000_000, help_text=_("Fewer are no verdict.")
    )
    orange_steps = forms.MultipleChoiceField(
        label=_("At orange"), required=False, widget=forms.CheckboxSelectMultiple
    )
    red_steps = forms.MultipleChoiceField(
        label=_("At red"), required=False, widget=forms.CheckboxSelectMultiple
    )
    max_actions_per_hour = forms.IntegerField(label=_("Actions an hour at most"), min_value=0, max_value=60)
    peak_hours = forms.CharField(
        label=_("Peak hours (UTC)"),
        required=False,
        max_length=80,
        help_text=_("Such as 8,9,10: judged over 5 minutes instead of 15. Empty: learned from the traffic."),
    )
    dry_run = forms.BooleanField(label=_("Rehearse: tell what would be done, and do nothing"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (label, hint) in SECONDS.items():
            self._add(
                name, PlainFloatField(label=label, help_text=hint, required=False, min_value=0.001), "s"
            )
        for name, (label, hint) in SHARES.items():
            self._add(
                name,
                PercentField(label=label, help_text=hint, required=False, low=0.000_001, high=0.999),
                "%",
            )
        for name, (label, hint) in HOLDS.items():
            self._add(name, PlainFloatField(label=label, help_text=hint, min_value=0, max_value=86_400), "s")
        self.fields["long_ttft_ratio"] = PlainFloatField(
            label=_("Long prompts at most"),
            required=False,
            min_value=1,
            help_text=_("Times the P99 of the others. Long: over 8,192 tokens."),
        )
        steps = [(step.value, step_words(step.value)) for step in Step if step in AVAILABLE]
        for name in ("orange_steps", "red_steps"):
            self.fields[name].choices = steps  # type: ignore[attr-defined]

    def clean_peak_hours(self) -> list[int] | None:
        text = self.cleaned_data["peak_hours"].strip()
        if not text:
            return None
        try:
            return [int(part) for part in text.split(",")]
        except ValueError:
            raise forms.ValidationError(_("Hours from 0 to 23, joined by commas.")) from None

    def settings(self) -> dict[str, Any]:
        """Of a valid form."""
        return dict(self.cleaned_data)

    def _add(self, name: str, field: forms.Field, unit: str) -> None:
        field.unit = unit  # type: ignore[attr-defined]
        self.fields[name] = field


def form_values(settings: SloSettings) -> dict[str, Any]:
    values = write_settings(settings)
    hours = values["peak_hours"]
    return values | {"peak_hours": "" if hours is None else ",".join(map(str, hours))}


class RuleForm(forms.Form):
    """One field a level that the rule has."""

    enter_hold_s = PlainFloatField(label=_("A level must hold for"), min_value=0, max_value=86_400)
    exit_hold_s = PlainFloatField(label=_("Its end must hold for"), min_value=0, max_value=86_400)
    off = forms.BooleanField(label=_("Switched off"), required=False)

    def __init__(self, rule: Rule, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.levels = [level.word for level in rule.limits.enter]
        for word in self.levels:
            self.fields[f"enter_{word}"] = PlainFloatField(label=word, min_value=0, max_value=86_400)
        for name in ("enter_hold_s", "exit_hold_s"):
            self.fields[name].unit = "s"  # type: ignore[attr-defined]

    def settings(self) -> dict[str, Any]:
        """Of a valid form."""
        given = self.cleaned_data
        found: dict[str, Any] = {"enter": {word: given[f"enter_{word}"] for word in self.levels}}
        found |= {"enter_hold_s": given["enter_hold_s"], "exit_hold_s": given["exit_hold_s"]}
        return found | ({"off": True} if given["off"] else {})


class WebhookForm(forms.Form):
    name = forms.CharField(label=_("Name"), max_length=63)
    url = forms.CharField(
        label=_("URL"),
        max_length=500,
        help_text=_(
            "http or https, an address of the internet unless SLUICE_WEBHOOK_NETWORKS allows others."
        ),
    )
    least_level = forms.ChoiceField(
        label=_("Tell from level"), choices=[(word, word) for word in TELLING], initial="yellow"
    )
