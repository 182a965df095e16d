"""Nodes with devices and runtimes, and what an operator asks of a node."""

from __future__ import annotations

from typing import ClassVar

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.replicas import UnloadInput
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, done, once
from pool.queries.nodes import (
    DeviceRow,
    NodeRow,
    RuntimeRow,
    find_node,
    list_devices,
    list_nodes,
    list_runtimes,
)
from pool.services import wishes
from pool.services.idempotency import Answer

NODE = shape_of(NodeRow)


class NodeList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(NodeRow), parameters=(LIMIT, OFFSET), operation_id="list_nodes")
    def get(self, request: Request) -> Response:
        now = timezone.now()
        return self.answer_page(lambda limit, offset: list_nodes(now=now, limit=limit, offset=offset))


class NodeDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(NODE, operation_id="get_node")
    def get(self, request: Request, *, name: str) -> Response:
        return answer_one(find_node(name, now=timezone.now()), kind="node", name=name)


class NodeWish(PoolView):
    """`wish` is set where the route is made: one view a wish."""

    rights = {"POST": Right.OPERATE}
    wish: ClassVar[str]

    @describe_post(NODE, request=UnloadInput)
    @once()
    def post(self, request: Request, *, name: str) -> Answer:
        wishes.set_node_wish(name, self.wish, actor=self.actor(), **self.read_body(UnloadInput))
        return done(find_node(name, now=timezone.now()))


class NodeCordon(NodeWish):
    """No new replica is placed on it; what runs stays."""

    wish = "cordon"


class NodeDrain(NodeWish):
    """Its replicas move elsewhere. Refused with 409 while the rest does not carry the present demand."""

    wish = "drain"


class NodeReturn(NodeWish):
    """It takes replicas again."""

    wish = "serve"


class DeviceList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(DeviceRow), parameters=(LIMIT, OFFSET), operation_id="list_devices")
    def get(self, request: Request) -> Response:
        now = timezone.now()
        return self.answer_page(lambda limit, offset: list_devices(now=now, limit=limit, offset=offset))


class RuntimeList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(RuntimeRow), parameters=(LIMIT, OFFSET), operation_id="list_runtimes")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_runtimes(limit=limit, offset=offset))
