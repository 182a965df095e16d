"""What a client is told when the gateway could serve but will not now: limits, full queues and shedding."""

from pool.gateway.openai import GatewayError


class Refusal(GatewayError):
    """Each says when to come back. `retry_after_s` is at least 1: a header of 0 invites a storm."""

    def __init__(self, message: str, /, *, retry_after_s: float, **details: object) -> None:
        super().__init__(message, **details)
        self.retry_after_s = max(1, -int(-retry_after_s // 1))  # type: ignore[misc]


class RateLimited(Refusal):
    """A limit in requests or tokens a minute of the key, the lane or the model is used up."""

    code = "rate_limited"
    status = 429
    kind = "rate_limit_error"


class QueueFull(Refusal):
    """As many requests wait in the lane as may wait."""

    code = "queue_full"
    status = 429
    kind = "rate_limit_error"


class QueueTimeout(Refusal):
    """It waited as long as the lane lets a request wait."""

    code = "queue_timeout"
    status = 429
    kind = "rate_limit_error"


class Shed(Refusal):
    """Given up in favour of a higher tier, or because waiting requests grow faster than they are served."""

    code = "shed"
    status = 429
    kind = "rate_limit_error"


class Overloaded(Refusal):
    """The replicas' memory is too full for this lane and tier."""

    code = "overloaded"
    status = 503


class ContextLengthExceeded(GatewayError):
    """No replica of the release holds the prompt and the asked output."""

    code = "context_length_exceeded"
    status = 400
    kind = "invalid_request_error"
