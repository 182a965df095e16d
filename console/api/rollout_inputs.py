"""What a start and a rollback of a rollout take: their fields, ranges and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from pool.domain.gates import DEFAULTS, RANGES, settings_of
from pool.domain.rollout import Step
from pool.services import rollouts
from pool.services.rollouts import DEFAULT_STEPS, RolloutWish

_LARGEST = 2**31 - 1
_SETTING_WORDS = {
    "margin_ratio": "Worse by no more than this part of stable's is allowed (0.1 is 10 %).",
    "margin_points": "A share's difference up to which it is called not worse (0.01 is one point of a hundred).",
    "limit_ratio": "Fixed limit of the share, whatever stable does; null: none.",
    "limit_s": "Fixed limit of P95 in seconds, whatever stable does; null: none.",
    "dry_run": "Reports, and never acts.",
}


def _setting_field(gate: str, name: str) -> serializers.Field[Any, Any, Any, Any]:
    default = getattr(DEFAULTS[gate], name)
    if name == "dry_run":
        return serializers.BooleanField(default=default, help_text=_SETTING_WORDS[name])
    lowest, highest = RANGES[name]
    return serializers.FloatField(
        min_value=lowest,
        max_value=highest,
        default=default,
        allow_null=name.startswith("limit_"),
        help_text=_SETTING_WORDS[name],
    )


class _AsGiven(serializers.Serializer[Any]):
    """Describes its fields and takes an object as it is: `read_gates` judges it, with every broken rule, and what is
    left out stays left out."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError("An object is wanted.")
        return dict(data)


def _gate_input(gate: str) -> serializers.Field[Any, Any, Any, Any]:
    members: dict[str, Any] = {name: _setting_field(gate, name) for name in settings_of(gate)}
    members["__doc__"] = f"Settings of the gate `{gate}`; what is left out has its default."
    kind = type(f"{gate.title().replace('_', '')}GateInput", (_AsGiven,), members)
    field: serializers.Field[Any, Any, Any, Any] = kind(required=False)
    return field


_MEMBERS: dict[str, Any] = {gate: _gate_input(gate) for gate in DEFAULTS}
GatesInput: Any = type("GatesInput", (_AsGiven,), _MEMBERS | {"__doc__": "Settings by gate."})


class StepInput(serializers.Serializer[Any]):
    weight = serializers.IntegerField(min_value=1, max_value=100, help_text="Percent for the candidate.")
    soak_s = serializers.IntegerField(min_value=0, max_value=rollouts.LONGEST_SOAK_S, default=300)
    min_requests = serializers.IntegerField(
        min_value=0,
        max_value=rollouts.MOST_REQUESTS,
        default=200,
        help_text="Of the candidate, in each lane that has traffic, since the step began.",
    )


class RolloutInput(serializers.Serializer[Any]):
    candidate = serializers.IntegerField(min_value=1, max_value=_LARGEST, help_text="Release number.")
    steps = StepInput(many=True, required=False)
    gates = GatesInput(
        required=False, help_text="Those that differ from their defaults; docs/verdict.md tells more."
    )
    hold_s = serializers.IntegerField(min_value=0, max_value=rollouts.LONGEST_HOLD_S, default=1800)
    lanes = serializers.ListField(
        child=serializers.CharField(max_length=63),
        required=False,
        help_text="One lane after the other in this order, each with all steps; empty: all at once.",
    )
    replicas = serializers.IntegerField(min_value=1, max_value=512, required=False, allow_null=True)
    accept_outage = serializers.BooleanField(
        default=False,
        help_text="Replicas of stable may stop first where nothing else makes room; a dry run says for how long.",
    )
    comment = serializers.CharField(max_length=4000, default="", allow_blank=True)
    dry_run = serializers.BooleanField(
        default=False, help_text="Tells what a start would do, and starts nothing."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """What is not known is refused: a start that leaves out a wish does something else than was asked for."""
        unknown = sorted(set(self.initial_data) - set(self.fields))
        if unknown:
            raise serializers.ValidationError(dict.fromkeys(unknown, "There is no such field."))
        return attrs


class StreamsInput(serializers.Serializer[Any]):
    end_after_tokens = serializers.IntegerField(
        min_value=0,
        max_value=100_000,
        required=False,
        allow_null=True,
        default=None,
        help_text="Running streams of the candidate end after so many more tokens; without it they finish.",
    )


def read_wish(body: dict[str, Any]) -> RolloutWish:
    steps = tuple(
        Step(step["weight"], step["soak_s"], step["min_requests"]) for step in body.get("steps") or ()
    )
    return RolloutWish(
        candidate=body["candidate"],
        steps=steps or DEFAULT_STEPS,
        gates=body.get("gates") or {},
        hold_s=body["hold_s"],
        lanes=tuple(body.get("lanes") or ()),
        replicas=body.get("replicas"),
        accept_outage=body["accept_outage"],
        comment=body["comment"],
    )
