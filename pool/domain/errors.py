"""The base of every expected failure. Subclasses live beside the function that raises them."""

from typing import ClassVar


class PoolError(Exception):
    """An expected failure that an operator or a client can act on.

    `code` is stable and machine-readable. `message` says what, why and what next. `details` holds ids and
    numbers, never prompts or keys.
    """

    code: ClassVar[str] = "pool_error"

    def __init__(self, message: str, /, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details
