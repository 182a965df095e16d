"""Latency of a model's requests: the pictures of the latency page as cells or as figures, and what is behind a cell."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.moments import Moment
from console.api.shapes import shape_of, to_json
from console.api.views import PoolView, present
from pool.domain.cells import STAGES
from pool.domain.heatmap import LARGEST_COLUMNS, STEPS_S, Columns, choose_columns
from pool.queries.cells import CellFilter
from pool.queries.composition import Composition, load_composition
from pool.queries.events import Events, list_events
from pool.queries.latency import (
    DIFFERENCE_COLUMNS,
    QUANTILES,
    REGION_COLUMNS,
    DifferenceHeatmap,
    LatencyHeatmap,
    RegionHeatmap,
    load_difference,
    load_heatmap,
    load_regions,
)
from pool.queries.models import find_model
from pool.queries.requests import Brush, BrushedRequests, list_requests

DEFAULT_RANGE = timedelta(hours=1)
LARGEST_LIST, LARGEST_NUMBER = 200, 2**31 - 1
_TOLD = ("summaries", "regions", "requests")
"""Lists of a picture that go with its figure: they are not drawn."""
_Query = type[serializers.Serializer[Any]]


class Names(serializers.CharField):
    """Several, with commas between them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=1000, default="", allow_blank=True, **options)

    def to_internal_value(self, data: Any) -> Any:
        return tuple(name for name in super().to_internal_value(data).split(",") if name)


class Numbers(Names):
    """Of releases, with commas between them."""

    def to_internal_value(self, data: Any) -> Any:
        names = super().to_internal_value(data)
        wrong = next((name for name in names if not (name.isascii() and name.isdecimal())), None)
        if wrong is not None:
            raise serializers.ValidationError(f"'{wrong[:40]}' is no number of a release.")
        return tuple(min(int(name[:12]), LARGEST_NUMBER) for name in names)


def _range_fields() -> dict[str, Any]:
    """`from` is a word of Python's: these fields are made, not written into a class."""
    return {
        "from": Moment(required=False, help_text="An hour before `to`, if left out."),
        "to": Moment(required=False, help_text="Now, if left out."),
        "step": serializers.ChoiceField(
            choices=STEPS_S,
            required=False,
            help_text="Seconds of a column; the finest that fits, if left out.",
        ),
    }


def _filter_fields() -> dict[str, Any]:
    return {
        "lane": Names(help_text="Lanes, with commas between them; all, if left out."),
        "release": Numbers(help_text="Numbers of releases."),
        "replica": Names(help_text="Ids of replicas."),
        "tier": Names(help_text="Tiers of service."),
        "label": Names(help_text="Business labels."),
        "long": serializers.BooleanField(
            default=None, allow_null=True, help_text="Only prompts of more than 8,192 tokens, or only others."
        ),
    }


def _stage_fields() -> dict[str, Any]:
    return {
        "stage": serializers.ChoiceField(
            choices=STAGES,
            default="ttft",
            help_text="`itl`: between chunks; `per_token`: end to end ÷ output tokens.",
        )
    }


def _format_fields() -> dict[str, Any]:
    return {
        "format": serializers.ChoiceField(
            choices=("cells", "figure"), default="cells", help_text="Figures, or a figure for plotly.js."
        )
    }


def _seconds() -> Any:
    return serializers.FloatField(required=False, min_value=0, max_value=1e9)


def _release_number() -> Any:
    return serializers.IntegerField(min_value=1, max_value=LARGEST_NUMBER)


def _query(name: str, *groups: dict[str, Any]) -> _Query:
    return type(
        name, (serializers.Serializer,), {key: field for group in groups for key, field in group.items()}
    )


HeatmapQuery = _query(
    "LatencyQuery",
    _range_fields(),
    _filter_fields(),
    _stage_fields(),
    _format_fields(),
    {"colouring": serializers.ChoiceField(choices=("count", "share"), default="count")},
)
DifferenceQuery = _query(
    "DifferenceQuery",
    {"base": _release_number(), "release": _release_number()},
    _range_fields(),
    {name: field for name, field in _filter_fields().items() if name != "release"},
    _stage_fields(),
    _format_fields(),
)
RegionQuery = _query(
    "RegionQuery",
    _range_fields(),
    _stage_fields(),
    _format_fields(),
    {"quantile": serializers.ChoiceField(choices=QUANTILES, default=0.95)},  # type: ignore[arg-type]  # a float is one
)
CompositionQuery = _query("CompositionQuery", _range_fields(), _filter_fields())
EventsQuery = _query(
    "EventsQuery", {name: field for name, field in _range_fields().items() if name != "step"}
)
BrushQuery = _query(
    "BrushQuery",
    {name: field for name, field in _range_fields().items() if name != "step"},
    _filter_fields(),
    _stage_fields(),
    {
        "cell_from": Moment(required=False, help_text="`from`, if left out."),
        "cell_to": Moment(required=False, help_text="`to`, if left out."),
        "low_s": _seconds(),
        "high_s": _seconds(),
        "limit": serializers.IntegerField(min_value=1, max_value=LARGEST_LIST, default=50),
    },
)


FigureAnswer = type(
    "Figure",
    (serializers.Serializer,),
    {
        "__doc__": "For plotly.js: colours are `var(--name)`, names of the console's style sheet.",
        "data": serializers.ListField(child=serializers.DictField()),
        "layout": serializers.DictField(),
    },
)


def _either(kind: type) -> Any:
    return PolymorphicProxySerializer(
        component_name=f"{kind.__name__}OrFigure",
        serializers=[shape_of(kind), FigureAnswer],
        resource_type_field_name=None,
    )


class LatencyView(PoolView):
    """Reads the query and knows what all pictures need of it."""

    rights = {"GET": Right.VIEW}
    query: Any = None

    def load_query(self, model: str) -> tuple[dict[str, Any], datetime]:
        """The query with `from` and `to` set, and now."""
        present(find_model(model), kind="model", name=model)
        values, now = self.read_query(self.query), timezone.now()
        values.setdefault("to", now)
        values.setdefault("from", values["to"] - DEFAULT_RANGE)
        return values, now


class Latency(LatencyView):
    query = HeatmapQuery

    @describe_read(_either(LatencyHeatmap), parameters=(HeatmapQuery,), operation_id="get_latency")
    def get(self, request: Request, *, model: str) -> Response:
        values, now = self.load_query(model)
        columns = _columns(values, now)
        picture = load_heatmap(
            _filter(model, values, releases=values["release"]), values["stage"], columns, now=now
        )

        def draw() -> Any:
            from console.figures.latency import draw_heatmap  # plotly is large, and few ask for it

            events = list_events(model, start=picture.start, end=picture.end).events
            return draw_heatmap(picture, events, colouring=values["colouring"])

        return _answer(values, picture, draw)


class LatencyDifference(LatencyView):
    query = DifferenceQuery

    @describe_read(
        _either(DifferenceHeatmap), parameters=(DifferenceQuery,), operation_id="get_latency_difference"
    )
    def get(self, request: Request, *, model: str) -> Response:
        values, now = self.load_query(model)
        picture = load_difference(
            _filter(model, values),
            values["stage"],
            _columns(values, now, largest=DIFFERENCE_COLUMNS),
            base=values["base"],
            release=values["release"],
            now=now,
        )

        def draw() -> Any:
            from console.figures.latency import draw_difference  # plotly is large, and few ask for it

            return draw_difference(picture)

        return _answer(values, picture, draw)


class LatencyRegions(LatencyView):
    query = RegionQuery

    @describe_read(_either(RegionHeatmap), parameters=(RegionQuery,), operation_id="get_latency_regions")
    def get(self, request: Request, *, model: str) -> Response:
        values, now = self.load_query(model)
        columns = _columns(values, now, largest=REGION_COLUMNS)
        quantile = values["quantile"]
        picture = load_regions(model, values["stage"], columns, quantile=quantile, now=now)

        def draw() -> Any:
            from console.figures.latency import draw_regions  # plotly is large, and few ask for it

            return draw_regions(picture)

        return _answer(values, picture, draw)


class LatencyComposition(LatencyView):
    query = CompositionQuery

    @describe_read(
        shape_of(Composition), parameters=(CompositionQuery,), operation_id="get_latency_composition"
    )
    def get(self, request: Request, *, model: str) -> Response:
        values, now = self.load_query(model)
        found = load_composition(
            _filter(model, values, releases=values["release"]), _columns(values, now), now=now
        )
        return Response(to_json(found))


class LatencyEvents(LatencyView):
    query = EventsQuery

    @describe_read(shape_of(Events), parameters=(EventsQuery,), operation_id="list_latency_events")
    def get(self, request: Request, *, model: str) -> Response:
        values, now = self.load_query(model)
        columns = _columns(values, now)
        return Response(to_json(list_events(model, start=columns.start, end=columns.end)))


class LatencyRequests(LatencyView):
    query = BrushQuery

    @describe_read(
        shape_of(BrushedRequests),
        parameters=(BrushQuery,),
        operation_id="list_latency_requests",
        description="The requests that ended from `cell_from` to `cell_to` and took more than `low_s`, up to `high_s`, "
        "and what is more frequent among them than among the others from `from` to `to`.",
    )
    def get(self, request: Request, *, model: str) -> Response:
        values, now = self.load_query(model)
        window, cell = _columns(values, now), (values.get("cell_from"), values.get("cell_to"))
        brush = Brush(
            stage=values["stage"],
            start=cell[0] or window.start,
            end=cell[1] or window.end,
            low_s=values.get("low_s"),
            high_s=values.get("high_s"),
            window_start=window.start,
            window_end=window.end,
        )
        choose_columns(brush.start, brush.end, now=now)  # refuses what is no range
        found = list_requests(
            _filter(model, values, releases=values["release"]), brush, now=now, limit=values["limit"]
        )
        return Response(to_json(found))


def _filter(model: str, values: dict[str, Any], *, releases: tuple[int, ...] = ()) -> CellFilter:
    return CellFilter(
        model=model,
        releases=releases,
        replicas=values["replica"],
        lanes=values["lane"],
        tiers=values["tier"],
        labels=values["label"],
        long_prompt=values["long"],
    )


def _columns(values: dict[str, Any], now: datetime, *, largest: int = LARGEST_COLUMNS) -> Columns:
    return choose_columns(values["from"], values["to"], now=now, step_s=values.get("step"), largest=largest)


def _answer(values: dict[str, Any], picture: Any, draw: Callable[[], Any]) -> Response:
    cells = to_json(picture)
    if values["format"] != "figure":
        return Response(cells)
    about = {
        name: value for name, value in cells.items() if name in _TOLD or not isinstance(value, list | tuple)
    }
    return Response(draw() | {"about": about})
