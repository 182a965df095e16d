"""The evidence of a rollout's gates over time, as figures or as a picture for plotly.js."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.latency import FigureAnswer
from console.api.shapes import shape_of, to_json
from console.api.views import PoolView, present
from pool.queries.rollout_evidence import Evidence, load_evidence
from pool.queries.rollouts import find_rollout


class EvidenceQuery(serializers.Serializer[Any]):
    format = serializers.ChoiceField(
        choices=("cells", "figure"), default="cells", help_text="Figures, or a picture for plotly.js."
    )
    columns = serializers.IntegerField(
        min_value=1, max_value=3, default=3, help_text="Plots beside each other in the picture."
    )


class RolloutEvidence(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        PolymorphicProxySerializer(
            component_name="EvidenceOrFigure",
            serializers=[shape_of(Evidence), FigureAnswer],
            resource_type_field_name=None,
        ),
        parameters=(EvidenceQuery,),
        operation_id="get_rollout_evidence",
        description="How far each gate's evidence was, as a part of the way to its bar: at most 240 points each over "
        "the last six hours with weight.",
    )
    def get(self, request: Request, *, rollout_id: str) -> Response:
        rollout = present(find_rollout(rollout_id), kind="rollout", name=rollout_id)
        values = self.read_query(EvidenceQuery)
        evidence = load_evidence(rollout, now=timezone.now())
        if values["format"] == "cells":
            return Response(to_json(evidence))
        from console.figures.evidence import draw_evidence  # plotly is large, and few ask for it

        return Response(draw_evidence(evidence, columns=values["columns"]))
