"""Versions of a model: registered from a source, verified, retired."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right, require
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, done, once, present
from pool.queries.models import VersionRow, find_model, find_version, list_versions
from pool.services import catalog, registration
from pool.services.idempotency import Answer

VERSION = shape_of(VersionRow)


class VersionInput(serializers.Serializer[Any]):
    source = serializers.CharField(  # type: ignore[assignment]  # a field of that name
        max_length=512, help_text="`path:FOLDER` under a model root, `package:NAME`, or `hub:OWNER/NAME`."
    )
    revision = serializers.CharField(max_length=128, default="", allow_blank=True)
    name = serializers.CharField(max_length=63, default="", allow_blank=True)
    approve_remote_code = serializers.BooleanField(default=False, help_text="For administrators.")


class VersionList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(VersionRow), parameters=(LIMIT, OFFSET), operation_id="list_versions")
    def get(self, request: Request, *, model: str) -> Response:
        present(find_model(model), kind="model", name=model)
        return self.answer_page(lambda limit, offset: list_versions(model, limit=limit, offset=offset))

    @describe_post(
        VERSION,
        request=VersionInput,
        status=201,
        codes=("unprocessable", "bad_model_config"),
        operation_id="register_version",
    )
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(VersionInput)
        if body["approve_remote_code"]:
            require(self.request.user, Right.ADMINISTER)
        version = registration.register_version(
            model,
            body["source"],
            revision=body["revision"],
            name=body["name"],
            approve_remote_code=body["approve_remote_code"],
            actor=self.actor(),
        )
        return created(find_version(model, version.name))


class VersionDetail(PoolView):
    rights = {"GET": Right.VIEW, "DELETE": Right.OPERATE}

    @describe_read(VERSION, operation_id="get_version")
    def get(self, request: Request, *, model: str, version: str) -> Response:
        return answer_one(find_version(model, version), kind="version", name=version)

    @describe_write(
        VERSION, operation_id="retire_version", description="Retires it: no new release may use it."
    )
    def delete(self, request: Request, *, model: str, version: str) -> Response:
        catalog.retire_version(model, version, actor=self.actor())
        return answer_one(find_version(model, version), kind="version", name=version)


class VersionVerify(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(VERSION, operation_id="verify_version", description="Each node hashes all files again.")
    @once()
    def post(self, request: Request, *, model: str, version: str) -> Answer:
        present(find_version(model, version), kind="version", name=version)
        catalog.ask_full_check(model, version, actor=self.actor())
        return done(find_version(model, version))
