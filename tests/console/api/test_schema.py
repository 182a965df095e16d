"""The OpenAPI schema: complete, served, and kept by the API under generated requests."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started
from django.db import close_old_connections
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from hypothesis import HealthCheck, Phase, given, settings
from rest_framework.test import APIClient
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from console.errors import TABLE
from tests import factories
from tests.console.routes import list_routes

pytestmark = pytest.mark.django_db


validate: Any = validate_schema


def load_schema() -> dict[str, Any]:
    generator: Any = SchemaGenerator  # untyped
    return dict(generator().get_schema(request=None, public=True))


def test_the_schema_is_valid_and_holds_every_endpoint() -> None:
    schema = load_schema()

    validate(schema)
    held = {(path, method.upper()) for path, methods in schema["paths"].items() for method in methods}
    stated = {
        method
        for route in list_routes()
        for method in route.rights
        if route.path.startswith("/api/v1/") and route.path != "/api/v1/schema/"
    }
    assert len(held) == sum(
        len(route.rights)
        for route in list_routes()
        if route.path.startswith("/api/v1/") and "schema" not in route.path
    )
    assert {method for _, method in held} == stated


def test_every_operation_documents_its_error_codes_and_repetition() -> None:
    documented: set[str] = set()
    for path, methods in load_schema()["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            assert {"401", "403", "404", "500", "503"} <= set(answers), (method, path)
            documented.update(
                code for code in TABLE for answer in answers.values() if f"`{code}`" in answer["description"]
            )
            names = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert ("Idempotency-Key" in names) == (method == "post"), (method, path)

    assert {"conflict", "profile_conflicts", "idempotency_conflict", "database_unavailable"} <= documented


def test_schema_and_docs_are_for_those_who_may_view(as_viewer: APIClient, client: Any) -> None:
    docs = as_viewer.get("/api/docs/", HTTP_ACCEPT="text/html")

    assert as_viewer.get("/api/v1/schema/").status_code == 200
    assert docs.status_code == 200
    assert "<script>" not in docs.content.decode()  # the CSP allows no inline script
    assert "cdn" not in docs.content.decode()
    assert "<style" not in docs.content.decode()
    assert client.get("/api/docs/")["Location"] == "/sign-in/?next=/api/docs/"
    assert client.get("/api/v1/schema/").status_code == 401


@pytest.fixture
def _one_connection() -> Any:
    """Each request over WSGI would close the connection that the test's transaction lives on."""
    request_started.disconnect(close_old_connections)
    yield
    request_started.connect(close_old_connections)


@pytest.mark.usefixtures("_one_connection", "routing_state")
def test_generated_requests_get_answers_that_the_schema_describes(admin: User) -> None:
    factories.make_pool(1)
    headers = {"Authorization": f"Bearer {factories.make_token(admin)}", "Host": "localhost"}
    schema = schemathesis.openapi.from_dict(load_schema())
    schema.app = WSGIHandler()
    checks = [not_a_server_error, status_code_conformance, response_schema_conformance]

    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @settings(
            max_examples=4,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(headers=headers, checks=checks)

        ask()
