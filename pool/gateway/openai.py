"""OpenAI's wire format: what a request asks for, and the shape of errors. No sockets here."""

from typing import Any, ClassVar, NamedTuple

import orjson

from pool.domain.errors import PoolError

# A longer text does not tell two conversations apart any better, and hashing it costs.
_STICKY_TEXT_CHARS = 4096
# A content part is text, or a list of parts that hold text; what nests deeper is no conversation (FC-38).
_PART_DEPTH = 4


class GatewayError(PoolError):
    """What a client is told instead of an answer. `retry_after_s` None = no such header."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[int | None] = None


class InvalidRequest(GatewayError):
    code = "invalid_request"
    status = 400
    kind = "invalid_request_error"


class InvalidApiKey(GatewayError):
    code = "invalid_api_key"
    status = 401
    kind = "authentication_error"


class ModelNotAllowed(GatewayError):
    code = "model_not_allowed"
    status = 403
    kind = "permission_error"


class PinNotAllowed(GatewayError):
    code = "pin_not_allowed"
    status = 403
    kind = "permission_error"


class PathNotFound(GatewayError):
    code = "not_found"
    status = 404
    kind = "invalid_request_error"


class MethodNotAllowed(GatewayError):
    code = "method_not_allowed"
    status = 405
    kind = "invalid_request_error"


class ModelNotFound(GatewayError):
    code = "model_not_found"
    status = 404
    kind = "invalid_request_error"


class RequestTimeout(GatewayError):
    code = "request_timeout"
    status = 408
    kind = "invalid_request_error"


class RequestTooLarge(GatewayError):
    code = "request_too_large"
    status = 413
    kind = "invalid_request_error"


class HeadersTooLarge(GatewayError):
    code = "request_too_large"
    status = 431
    kind = "invalid_request_error"


class NoReadyReplica(GatewayError):
    code = "no_ready_replica"
    status = 503
    retry_after_s = 5


class StartingUp(GatewayError):
    code = "starting_up"
    status = 503
    retry_after_s = 5


class UpstreamFailed(GatewayError):
    code = "upstream_failed"
    status = 502


class UpstreamTimeout(GatewayError):
    code = "upstream_timeout"
    status = 504


class Quarantined(GatewayError):
    """It was in flight at the death of several engines."""

    code = "quarantined"
    status = 422
    kind = "invalid_request_error"


class StreamLate(GatewayError):
    code = "stream_late"


class StreamInterrupted(GatewayError):
    """Told as an event, since the status has left already."""

    code = "stream_interrupted"


def error_body(error: GatewayError) -> bytes:
    shape = {"message": error.message, "type": error.kind, "param": error.details.get("param")}
    return orjson.dumps({"error": {**shape, "code": error.code}})


def error_event(error: GatewayError, *, request_id: str) -> bytes:
    shape = {"message": error.message, "type": error.kind, "param": None, "code": error.code}
    told = error.details.get("engine_error")
    if isinstance(told, dict):
        shape = told
    return b"data: " + orjson.dumps({"error": {**shape, "request_id": request_id}}) + b"\n\n"


def read_engine_error(status: int, body: bytes) -> GatewayError:
    """Of an engine's refusal: what it says of it goes on to the client."""
    try:
        told = orjson.loads(body)["error"]
        return UpstreamFailed(f"The engine answered {status}.", engine_error={"code": status, **told})
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return UpstreamFailed(f"The engine answered {status}. Try again.")


class Body(NamedTuple):
    """A request's body as an object. `body` is what goes on."""

    model: str
    stream: bool
    body: bytes | bytearray
    fields: dict[str, Any]

    @property
    def user(self) -> str:
        return read_user(self.fields)

    @property
    def opening(self) -> str:
        return read_opening(self.fields)


def read_ask(path: bytes, body: bytes | bytearray) -> Body:
    """Raises InvalidRequest."""
    fields = _parse_object(body)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("The field `model` is missing: name the model to ask.", param="model")
    if path == b"/v1/responses":
        body = _forbid_storage(fields)
    return Body(model, fields.get("stream") is True, body, fields)


def read_user(fields: dict[str, Any]) -> str:
    """ "" if there is none."""
    user = fields.get("user")
    return user[:_STICKY_TEXT_CHARS] if isinstance(user, str) else ""


def _parse_object(body: bytes | bytearray) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        # The parser's own text is not passed on: it can quote the prompt.
        raise InvalidRequest("The body is not valid JSON.") from exc
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return fields


def _forbid_storage(fields: dict[str, Any]) -> bytes:
    """Replicas hold no state between requests, so an answer cannot be stored or continued."""
    if fields.get("previous_response_id") is not None:
        raise InvalidRequest(
            "`previous_response_id` is not supported: send the whole conversation.",
            param="previous_response_id",
        )
    fields["store"] = False
    return orjson.dumps(fields)


def read_opening(fields: dict[str, Any]) -> str:
    """The first message that is the caller's own: a system prompt is shared by all conversations."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return _text_of(fields.get("prompt", fields.get("input")))
    for message in messages:
        if isinstance(message, dict) and message.get("role") not in ("system", "developer"):
            return _text_of(message.get("content"))
    return _text_of(messages[0].get("content")) if messages and isinstance(messages[0], dict) else ""


def _text_of(content: object) -> str:
    for _ in range(_PART_DEPTH):
        if not isinstance(content, list) or not content:
            break
        first = content[0]
        content = first.get("text") if isinstance(first, dict) else first
    if isinstance(content, str):
        return content[:_STICKY_TEXT_CHARS]
    return repr(content)[:_STICKY_TEXT_CHARS] if isinstance(content, int) else ""
