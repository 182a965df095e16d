"""How soon a model's traffic can be back where it came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.shapes import shape_of, to_json
from console.api.views import PoolView, present
from console.readiness_words import readiness_words
from pool.queries.readiness import Readiness, load_readiness


@dataclass(frozen=True)
class ReadinessView(Readiness):
    text: str
    """In one line, as pages show it."""


class ModelReadiness(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(ReadinessView),
        operation_id="get_readiness",
        description="Where one click on rollback goes, how long it takes, and whether what is ready there carries the "
        "present demand. `seconds` is null where it is not known, `capacity_ratio` where no request shows it.",
    )
    def get(self, request: Request, *, model: str) -> Response:
        told = present(load_readiness(model, timezone.now()), kind="model", name=model)
        return Response(to_json(ReadinessView(**asdict(told), text=readiness_words(told))))
