"""The read side's dataclasses: described for the OpenAPI schema, and turned into JSON values."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from rest_framework import serializers

_PLAIN: dict[Any, type[serializers.Field[Any, Any, Any, Any]]] = {
    str: serializers.CharField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    bool: serializers.BooleanField,
    datetime: serializers.DateTimeField,
}


def to_json(value: Any) -> Any:
    """A dataclass (or several) as what the JSON renderer takes."""
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return asdict(value)


@cache
def shape_of(kind: type) -> type[serializers.Serializer[Any]]:
    """The serializer class of a dataclass, one per class, so that the schema has one component for it."""
    hints = get_type_hints(kind)
    members = {field.name: _field(hints[field.name]) for field in fields(kind)}
    return type(kind.__name__, (serializers.Serializer,), members)


@cache
def page_of(kind: type) -> type[serializers.Serializer[Any]]:
    """`{"results": [...], "next": url or null}`"""
    members = {
        "results": shape_of(kind)(many=True),
        "next": serializers.URLField(allow_null=True),
    }
    return type(f"{kind.__name__}Page", (serializers.Serializer,), members)


def _field(hint: Any, **options: Any) -> serializers.Field[Any, Any, Any, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = next(item for item in arguments if item is not type(None))
        return _field(inner, allow_null=True)
    if origin in (tuple, list, Sequence):
        return _list_field(arguments[0], options)
    if origin in (dict, Mapping):
        return _dict_field(arguments[1], options)
    if is_dataclass(hint) and isinstance(hint, type):
        return shape_of(hint)(**options)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return serializers.ChoiceField(choices=[item.value for item in hint], **options)
    if hint in _PLAIN:
        return _PLAIN[hint](**options)
    return serializers.JSONField(**options)


def _list_field(item: Any, options: dict[str, Any]) -> serializers.Field[Any, Any, Any, Any]:
    if is_dataclass(item) and isinstance(item, type):
        return shape_of(item)(many=True, **options)
    return serializers.ListField(child=_field(item), **options)


def _dict_field(value: Any, options: dict[str, Any]) -> serializers.Field[Any, Any, Any, Any]:
    if value in (object, Any):
        return serializers.DictField(**options)
    return serializers.DictField(child=_field(value), **options)
