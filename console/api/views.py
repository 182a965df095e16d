"""What all API views share: who acts, lists in pages, posts that are done once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from console.access import Right
from console.api.shapes import to_json
from pool.domain.errors import PoolError
from pool.services.audit import Actor
from pool.services.errors import not_found
from pool.services.idempotency import Answer, Asked, digest_body, run_once
from pool.services.refusals import record_refusal

LARGEST_PAGE = 500

Post = Callable[..., Answer]
Finish = Callable[[dict[str, Any]], dict[str, Any]]


class PoolView(APIView):
    # Each method needs the right that `rights` states for it; without one it is refused.

    rights: ClassVar[Mapping[str, Right]] = {}

    def actor(self) -> Actor:
        request = self.request
        return Actor(
            name=request.user.get_username(), source="api", request_id=getattr(request, "request_id", "")
        )

    def read_body(self, kind: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """The validated body; raises DRF's ValidationError with every bad field."""
        body = kind(data=self.request.data)
        body.is_valid(raise_exception=True)
        return dict(body.validated_data)

    def read_query(self, kind: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        query = kind(data=self.request.query_params.dict())
        query.is_valid(raise_exception=True)
        return dict(query.validated_data)

    def answer_page(self, load: Callable[[int, int], tuple[Any, ...]]) -> Response:
        """`load(limit, offset)` is asked for one row more than the page has: it says that there is a next."""
        query = self.read_query(PageQuery)
        limit, offset = query["limit"], query["offset"]
        rows = load(limit + 1, offset)
        following = self._link(limit=limit, offset=offset + limit) if len(rows) > limit else None
        return Response({"results": to_json(rows[:limit]), "next": following})

    def _link(self, **changed: int) -> str:
        query = self.request.query_params.copy()
        for name, value in changed.items():
            query[name] = str(value)
        return self.request.build_absolute_uri(f"{self.request.path}?{query.urlencode()}")


class PageQuery(serializers.Serializer[Any]):
    limit = serializers.IntegerField(min_value=1, max_value=LARGEST_PAGE, default=100)
    offset = serializers.IntegerField(min_value=0, max_value=10_000_000, default=0)


def answer_one(row: Any, *, kind: str, name: object) -> Response:
    """The row, or NotFound where the query found None."""
    return Response(to_json(present(row, kind=kind, name=name)))


def present(row: Any, *, kind: str, name: object) -> Any:
    if row is None:
        raise not_found(kind, name)
    return row


def created(row: Any, **more: object) -> Answer:
    return Answer(201, to_json(row) | more)


def done(row: Any, **more: object) -> Answer:
    return Answer(200, to_json(row) | more)


def once(
    *, hidden: tuple[str, ...] = (), finish: Finish | None = None
) -> Callable[[Post], Callable[..., Response]]:
    """Makes a view's `post` from a function that gives an Answer: with an Idempotency-Key it runs once.

    `hidden` fields are in the first answer only. `finish` adds what is known after the commit.
    """

    def decorate(work: Post) -> Callable[..., Response]:
        @wraps(work)
        def post(self: PoolView, request: Request, **path: Any) -> Response:
            try:
                answer = _answer(request, lambda: work(self, request, **path), hidden)
            except PoolError as error:
                record_refusal(self.actor(), error, subject=request.path)
                raise
            body = finish(answer.body) if finish else answer.body
            headers = {"Idempotent-Replay": "true"} if answer.replayed else None
            return Response(body, status=answer.status, headers=headers)

        post.is_once = True  # type: ignore[attr-defined]
        return post

    return decorate


def _answer(request: Request, work: Callable[[], Answer], hidden: tuple[str, ...]) -> Answer:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return work()
    path = request.get_full_path()
    asked = Asked(
        actor=request.user.get_username(),
        key=key,
        path=path,
        body_digest=digest_body("POST", path, request.body),
    )
    return run_once(asked, lambda: _plain(work()), hidden=hidden)


def _plain(answer: Answer) -> Answer:
    """Times and the like as the text that the renderer makes of them, so that a replay reads the same."""
    return Answer(answer.status, json.loads(JSONRenderer().render(answer.body)), answer.replayed)
