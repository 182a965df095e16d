"""PoolError → HTTP status, JSON body, HTML page, socket close code: the only such table.

A class without a row of its own takes that of its nearest base. Its close code is 4000 + the status.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import IntegrityError, InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions as drf

from pool.domain.errors import PoolError
from pool.domain.redaction import redact

logger = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 2
_UNIQUE_VIOLATION = "23505"
_BUSY_STATES = frozenset({"55P03", "57014", "40P01", "40001"})
"""PostgreSQL: lock not available, query cancelled, deadlock, serialization failure."""


@dataclass(frozen=True)
class Shown:
    """How a kind of failure is shown. `next_action` is for the page; the message says the particular."""

    status: int
    next_action: str

    @property
    def close_code(self) -> int:
        return 4000 + self.status


TABLE: Final[Mapping[str, Shown]] = {
    "invalid": Shown(400, "Correct the input and send it again."),
    "invalid_name": Shown(400, "Choose another name."),
    "invalid_gateway_settings": Shown(400, "Correct the named setting and send it again."),
    "invalid_slo": Shown(400, "Correct the named limit and send it again."),
    "invalid_rule": Shown(400, "Correct the named limit and send it again."),
    "unsafe_url": Shown(400, "Name an http or https address that notices may go to."),
    "invalid_lanes": Shown(400, "Correct the lanes and send them again."),
    "invalid_plan": Shown(400, "Correct the plan and send it again."),
    "invalid_source": Shown(400, "Name a folder under a model root, a package or a hub name."),
    "path_outside_root": Shown(400, "Name a folder that lies under a registered model root."),
    "malformed_request": Shown(400, "Send valid UTF-8 JSON without NUL characters."),
    "invalid_host": Shown(400, "Use one of the host names that this console is set up for."),
    "not_authenticated": Shown(401, "Sign in, or send a token."),
    "invalid_token": Shown(401, "Send a token that is not revoked, of an active user."),
    "forbidden": Shown(403, "Ask an administrator for the right."),
    "csrf_failed": Shown(403, "Load the page again and repeat the action."),
    "not_found": Shown(404, "Check the address or the name."),
    "method_not_allowed": Shown(405, "Use a method that the API's description names."),
    "not_acceptable": Shown(406, "Accept application/json."),
    "request_timeout": Shown(408, "Send the request again, faster."),
    "conflict": Shown(409, "Load the current state and decide again."),
    "replica_not_ready": Shown(409, "Wait until the replica is ready, then repeat."),
    "no_stable_replica": Shown(409, "Start a replica of the stable release, then repeat."),
    "engine_is_simulated": Shown(409, "Choose a replica of a real engine."),
    "profile_is_open": Shown(409, "Wait for the result of the profile that is under way."),
    "version_busy": Shown(409, "Wait until the version's files are read, then repeat."),
    "idempotency_conflict": Shown(409, "Use a new Idempotency-Key for another request."),
    "request_in_progress": Shown(409, "Wait for the first request with this Idempotency-Key, then repeat."),
    "length_required": Shown(411, "Send a Content-Length."),
    "request_too_large": Shown(413, "Send less."),
    "unsupported_media_type": Shown(415, "Send application/json."),
    "unprocessable": Shown(422, "Correct what the rules name and send it again."),
    "profile_conflicts": Shown(422, "Correct the settings that the rules name."),
    "bad_model_config": Shown(422, "Check the model's config.json."),
    "files_broken": Shown(422, "Fetch the named files again, then verify the version."),
    "source_not_found": Shown(422, "Check the source's spelling and that a node holds it."),
    "remote_code": Shown(422, "Read the code, then let an administrator approve it."),
    "too_many_requests": Shown(429, "Wait and try again."),
    "bad_block_map": Shown(502, "Wait for the worker's next map; if it stays like this, update the worker."),
    "internal_error": Shown(500, "Try again. If it comes back, look for the request id in the web log."),
    "pool_error": Shown(500, "Look for the request id in the web log."),
    "no_runtime": Shown(503, "Look at the node worker's log."),
    "config_invalid": Shown(500, "Correct the named variable and start the process again."),
    "routing_table_invalid": Shown(500, "Give all hosts the same secret key."),
    "gateway_unreachable": Shown(502, "Look at the gateway's log (./sluice logs gateway)."),
    "disk_full": Shown(507, "Free disk space, then repeat."),
    "hub_unavailable": Shown(503, "Check this machine's network, or copy the files under a model root."),
    "hub_unreachable": Shown(503, "Check this machine's network, or copy the files under a model root."),
    "database_unavailable": Shown(503, "Wait: the console tries again by itself. Traffic goes on meanwhile."),
    "database_busy": Shown(503, "Try again in a moment."),
    "redis_unavailable": Shown(503, "Try again in a moment. What was saved is not lost."),
}


@dataclass(frozen=True)
class Failure:
    """One failure, ready to be shown as JSON, page or close code."""

    code: str
    message: str
    shown: Shown
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return self.shown.status

    def body(self) -> dict[str, object]:
        return {"error": {"code": self.code, "message": self.message, "details": dict(self.details)}}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="sluice"'
        if self.code in ("database_unavailable", "database_busy", "request_in_progress", "redis_unavailable"):
            headers["Retry-After"] = str(RETRY_AFTER_S)
        return headers


def shown_for(error: PoolError) -> Shown:
    for kind in type(error).__mro__:
        row = TABLE.get(getattr(kind, "code", ""))
        if row is not None:
            return row
    return TABLE["internal_error"]


def close_code_for(error: BaseException) -> int:
    """What a socket is closed with."""
    failure = find_failure(error)
    return (failure.shown if failure else TABLE["internal_error"]).close_code


def make_failure(code: str, message: str, **details: object) -> Failure:
    return Failure(code=code, message=message, shown=TABLE[code], details=details)


def unexpected_failure(request_id: str) -> Failure:
    return make_failure(
        "internal_error",
        "Something went wrong that nobody expected. The web log has it under this request id.",
        request_id=request_id,
    )


def find_failure(error: BaseException) -> Failure | None:
    """The failure that an expected exception stands for; None: nobody expected it."""
    if isinstance(error, PoolError):
        return Failure(error.code, redact(error.message), shown_for(error), _redacted(error.details))
    if isinstance(error, OperationalError | InterfaceError):
        return _database_failure(error)
    if isinstance(error, IntegrityError) and _sql_state(error) == _UNIQUE_VIOLATION:
        return make_failure("conflict", "Somebody else was first with the same name or number.")
    if isinstance(error, drf.APIException):
        return _drf_failure(error)
    return _django_failure(error)


def _redacted(value: Any) -> Any:
    """Keys never leave in an error, whatever a message or a detail was built from (FC-20)."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(name): _redacted(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redacted(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))


def _database_failure(error: BaseException) -> Failure:
    # The driver's text names hosts and files, so it goes to the log only.
    state = _sql_state(error)
    logger.warning("database not usable", extra={"sql_state": state, "error": redact(str(error))})
    if state in _BUSY_STATES:
        return make_failure("database_busy", "The database did not finish in time. Nothing was changed.")
    return database_down()


def database_down() -> Failure:
    return make_failure(
        "database_unavailable",
        "The database cannot be reached, so nothing can be shown or changed. Traffic goes on.",
    )


def _sql_state(error: BaseException) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


_DRF_CODES: Final[tuple[tuple[type[drf.APIException], str], ...]] = (
    (drf.ParseError, "malformed_request"),
    (drf.NotAuthenticated, "not_authenticated"),
    (drf.AuthenticationFailed, "invalid_token"),
    (drf.PermissionDenied, "forbidden"),
    (drf.NotFound, "not_found"),
    (drf.MethodNotAllowed, "method_not_allowed"),
    (drf.NotAcceptable, "not_acceptable"),
    (drf.UnsupportedMediaType, "unsupported_media_type"),
    (drf.Throttled, "too_many_requests"),
)


def _drf_failure(error: drf.APIException) -> Failure:
    if isinstance(error, drf.ValidationError):
        fields = error.get_full_details()
        return make_failure("invalid", _first_message(fields), fields=_redacted(fields))
    for kind, code in _DRF_CODES:
        if isinstance(error, kind):
            return make_failure(code, redact(str(error.detail)))
    return make_failure("internal_error", "The API failed in a way that it has no word for.")


def _first_message(details: Any, path: str = "") -> str:
    """The first complaint with the field that it is about: `lanes.0.name: This field is required.`"""
    if isinstance(details, Mapping) and set(details) == {"message", "code"}:
        return f"{path}: {details['message']}" if path else str(details["message"])
    if isinstance(details, Mapping):
        steps = [(str(name), item) for name, item in details.items() if item]
    else:
        steps = [
            ("" if set(item) == {"message", "code"} else str(n), item)
            for n, item in enumerate(details)
            if item
        ]
    for name, item in steps:
        name = "" if name == "non_field_errors" else name
        return _first_message(item, ".".join(part for part in (path, name) if part))
    return "The input is refused."


def _django_failure(error: BaseException) -> Failure | None:
    if isinstance(error, Http404):
        return make_failure("not_found", "There is nothing at this address.")
    if isinstance(error, PermissionDenied):
        return make_failure("forbidden", "Your account does not have the right for this.")
    if isinstance(error, RequestDataTooBig):
        return make_failure("request_too_large", "The body is larger than what the console accepts (1 MiB).")
    if isinstance(error, SuspiciousOperation):
        return make_failure("malformed_request", "The request is malformed.")
    return None
