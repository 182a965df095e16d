from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import ClassVar

import psycopg.errors
import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import IntegrityError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from rest_framework import exceptions as drf

import console
import pool
from console import urls as console_urls
from console.error_answers import answer_exception
from console.errors import TABLE, close_code_for, find_failure, shown_for
from pool.domain.errors import PoolError
from pool.services.errors import Conflict, Invalid, NotFound

NOT_SHOWN = (
    "pool.gateway",
    "pool.telemetry",
    "pool.migrations",
    "console.management",
    "pool.domain.parameters",
    "pool.domain.structured_output",
)
"""Their errors never reach a person or a client of the API; the gateway's clients get them as its own."""


def raise_this(error: Exception) -> Callable[[HttpRequest], HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        raise error

    return view


handler400, handler403 = console_urls.handler400, console_urls.handler403
handler404, handler500 = console_urls.handler404, console_urls.handler500
urlpatterns = [
    path("expected/", raise_this(Conflict("Somebody was first. Look again.", name="<b>x</b>"))),
    path("api/expected/", raise_this(Conflict("Somebody was first. Look again.", name="x"))),
    path("unexpected/", raise_this(RuntimeError("sk-sluice-abcdefghijklmnop leaked"))),
    path("api/unexpected/", raise_this(RuntimeError("sk-sluice-abcdefghijklmnop leaked"))),
    path("down/", raise_this(OperationalError("connection to /secret/path failed"))),
    path("api/down/", raise_this(OperationalError("connection to /secret/path failed"))),
    path("api/secret/", raise_this(Invalid("sk-sluice-abcdefghijklmnop", key=["slt_abcdefghijklmnop"]))),
]
at_these_urls = pytest.mark.urls(__name__)


def import_all(package: object) -> Iterator[str]:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):  # type: ignore[attr-defined]
        if not module.name.startswith(NOT_SHOWN):
            importlib.import_module(module.name)
            yield module.name


def kinds_below(kind: type[PoolError]) -> set[type[PoolError]]:
    return {kind}.union(*(kinds_below(child) for child in kind.__subclasses__()))


def test_every_expected_failure_has_a_row_of_its_own_or_of_its_base() -> None:
    assert list(import_all(pool))
    assert list(import_all(console))
    shown = [
        kind
        for kind in kinds_below(PoolError) - {PoolError}
        if kind.__module__.startswith(("pool.", "console.")) and not kind.__module__.startswith(NOT_SHOWN)
    ]

    for kind in shown:
        codes = {getattr(base, "code", "") for base in kind.__mro__} - {"pool_error"}
        assert codes & set(TABLE), f"{kind.__module__}.{kind.__name__} ({kind.code}) has no row"


def test_codes_and_close_codes_fit_together() -> None:
    for code, shown in TABLE.items():
        assert 400 <= shown.status < 600, code
        assert 4400 <= shown.close_code < 4600, code
        assert shown.next_action.endswith("."), code


class Special(NotFound):
    code: ClassVar[str] = "special"


class Unknown(PoolError):
    code: ClassVar[str] = "unknown_to_the_table"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("m"), 404, "not_found"),
        (Conflict("m"), 409, "conflict"),
        (Invalid("m"), 400, "invalid"),
        (Special("m"), 404, "special"),
        (Unknown("m"), 500, "unknown_to_the_table"),
        (Http404(), 404, "not_found"),
        (PermissionDenied(), 403, "forbidden"),
        (SuspiciousOperation(), 400, "malformed_request"),
        (drf.NotAuthenticated(), 401, "not_authenticated"),
        (drf.AuthenticationFailed(), 401, "invalid_token"),
        (drf.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (drf.NotAcceptable(), 406, "not_acceptable"),
        (drf.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (drf.Throttled(), 429, "too_many_requests"),
        (drf.APIException(), 500, "internal_error"),
    ],
)
def test_a_failure_has_its_status_and_code(error: Exception, status: int, code: str) -> None:
    failure = find_failure(error)

    assert failure is not None
    assert (failure.status, failure.code) == (status, code)
    assert close_code_for(error) == 4000 + status


def test_nobody_expects_a_bug() -> None:
    assert find_failure(RuntimeError()) is None
    assert close_code_for(RuntimeError()) == 4500
    assert shown_for(Unknown("m")).status == 500


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (psycopg.OperationalError("refused"), "database_unavailable"),
        (psycopg.errors.AdminShutdown(), "database_unavailable"),
        (psycopg.errors.LockNotAvailable(), "database_busy"),
        (psycopg.errors.QueryCanceled(), "database_busy"),
        (psycopg.errors.DeadlockDetected(), "database_busy"),
    ],
)
def test_a_database_that_is_down_and_one_that_is_slow_are_told_apart(cause: Exception, code: str) -> None:
    error = OperationalError()
    error.__cause__ = cause

    failure = find_failure(error)

    assert failure is not None
    assert (failure.status, failure.code) == (503, code)
    assert failure.headers()["Retry-After"]


def test_a_lost_race_for_a_name_is_a_conflict_and_other_broken_rules_are_bugs() -> None:
    lost, broken = IntegrityError(), IntegrityError()
    lost.__cause__ = psycopg.errors.UniqueViolation()
    broken.__cause__ = psycopg.errors.CheckViolation()

    failure = find_failure(lost)

    assert failure is not None
    assert failure.code == "conflict"
    assert find_failure(broken) is None


def test_a_bad_field_is_named_in_the_message() -> None:
    error = drf.ValidationError({"lanes": [{}, {"name": ["This field is required."]}]})

    failure = find_failure(error)

    assert failure is not None
    assert failure.message == "lanes.1.name: This field is required."
    assert "fields" in failure.details


@at_these_urls
@pytest.mark.parametrize(("where", "status"), [("expected", 409), ("unexpected", 500), ("down", 503)])
def test_a_failure_is_json_below_api_and_a_page_elsewhere(where: str, status: int) -> None:
    client = Client(raise_request_exception=False)

    page, answer = client.get(f"/{where}/"), client.get(f"/api/{where}/")

    assert (page.status_code, answer.status_code) == (status, status)
    assert page["Content-Type"].startswith("text/html")
    assert set(answer.json()) == {"error"}
    assert answer["X-Request-Id"]


@at_these_urls
def test_an_unexpected_failure_shows_its_request_id_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = Client(raise_request_exception=False).get("/api/unexpected/")

    assert answer.json()["error"]["details"] == {"request_id": answer["X-Request-Id"]}
    assert "sk-sluice" not in answer.content.decode()
    assert [record.message for record in caplog.records if record.name == "console.error_answers"] == [
        "unexpected failure"
    ]


@at_these_urls
def test_keys_never_leave_in_an_error() -> None:
    answer = Client().get("/api/secret/")

    assert answer.json()["error"]["message"] == "***"
    assert answer.json()["error"]["details"] == {"key": ["***"]}


@at_these_urls
def test_the_drivers_words_stay_in_the_log() -> None:
    client = Client(raise_request_exception=False)

    assert "/secret/path" not in client.get("/api/down/").content.decode()
    assert "/secret/path" not in client.get("/down/").content.decode()


@at_these_urls
def test_a_page_escapes_what_it_shows() -> None:
    assert "<b>x</b>" not in Client().get("/expected/").content.decode()


@pytest.mark.django_db
def test_unknown_addresses_are_404_in_the_shape_of_their_side(
    sign_in: Callable[[User], Client], viewer: User
) -> None:
    client = sign_in(viewer)

    assert client.get("/api/nowhere").json()["error"]["code"] == "not_found"
    assert client.get("/internal/nowhere").json()["error"]["code"] == "not_found"
    page = client.get("/nowhere/at/all")
    assert page.status_code == 404
    assert page["Content-Type"].startswith("text/html")


def test_a_foreign_host_name_is_refused() -> None:
    answer = Client().get("/api/v1/models/", headers={"Host": "evil.example"})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_request"


def test_an_answer_does_not_need_the_middleware() -> None:
    answer = answer_exception(RequestFactory().get("/x"), NotFound("There is no x."))

    assert answer.status_code == 404
