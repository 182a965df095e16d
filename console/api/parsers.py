"""JSON bodies, read strictly: what PostgreSQL could not store is refused at the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer


class StrictJSONParser(BaseParser):
    """No NaN, no lone surrogates, no NUL, bounded size and depth. An empty body is an empty object."""

    media_type = "application/json"
    renderer_class = JSONRenderer

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        body: bytes = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise RequestDataTooBig
        if b"\\u0000" in body:
            raise ParseError("NUL characters are not accepted.")
        try:
            return orjson.loads(body) if body.strip() else {}
        except orjson.JSONDecodeError as exc:
            raise ParseError(f"The body is no valid JSON: {exc}") from exc
