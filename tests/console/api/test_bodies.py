"""Bodies and requests that are no such thing: a clear error, never a 500."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from pool.models import Model

pytestmark = pytest.mark.django_db

PATH = "/api/v1/models/"


def send(client: APIClient, body: bytes, content_type: str = "application/json", **extra: Any) -> Any:
    anything: Any = client  # its stub wants text
    return anything.generic("POST", PATH, body, content_type, **extra)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"name": NaN}',
        b'{"name": 1e999}',
        b'{"name": "\\ud800"}',
        b'{"name": "a\\u0000"}',
        b'{"name": "\xff"}',
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_malformed_json_is_400(as_operator: APIClient, body: bytes) -> None:
    answer = send(as_operator, body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_request"


@pytest.mark.parametrize("body", [b"[]", b"1", b'"text"', b"null", b"true"])
def test_json_that_is_no_object_is_400(as_operator: APIClient, body: bytes) -> None:
    answer = send(as_operator, body)

    assert answer.status_code == 400
    assert not Model.objects.exists()


def test_a_body_over_a_mebibyte_is_413(as_operator: APIClient) -> None:
    body = b'{"name": "' + b"a" * 1_048_577 + b'"}'

    for headers in ({}, {"Idempotency-Key": "k"}):
        answer = send(as_operator, body, headers=headers)

        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"


def test_another_media_type_is_415(as_operator: APIClient) -> None:
    answer = send(as_operator, b"name=a", content_type="application/x-www-form-urlencoded")

    assert answer.status_code == 415


def test_another_method_is_405(as_operator: APIClient) -> None:
    answer = as_operator.delete(PATH)

    assert answer.status_code in (403, 405)
    assert "error" in answer.json()


@pytest.mark.parametrize("form", [b"lane=%00", b"lane=\0"])
def test_nul_in_a_form_is_400(as_operator: APIClient, form: bytes) -> None:
    answer = as_operator.post("/sign-in/", form, content_type="application/x-www-form-urlencoded")

    assert answer.status_code == 400


@pytest.mark.parametrize("path", ["/api/v1/models/a%00b/", "/api/v1/audit/?subject=a%00b"])
def test_nul_in_an_address_is_400(as_operator: APIClient, path: str) -> None:
    answer = as_operator.get(path)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_request"


def test_a_chunked_body_is_411_and_not_taken_for_empty(as_operator: APIClient) -> None:
    answer = send(as_operator, b"", HTTP_TRANSFER_ENCODING="chunked")

    assert answer.status_code == 411


def test_a_number_beyond_the_databases_range_is_no_500(as_operator: APIClient) -> None:
    assert as_operator.get("/api/v1/models/m/releases/999999999/").status_code == 404
    assert as_operator.get("/api/v1/models/m/releases/99999999999999999999/").status_code == 404
    assert as_operator.delete("/api/v1/tokens/99999999999999999999/").status_code == 404


def test_each_answer_has_an_id_and_security_headers(as_operator: APIClient) -> None:
    answer = as_operator.get("/api/v1/models/")

    assert len(answer["X-Request-Id"]) == 16
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["Cache-Control"] == "private, no-store"
    assert "default-src 'none'" in answer["Content-Security-Policy"]
