"""Path converters: what does not look like a name never reaches a view."""

from __future__ import annotations

from django.urls import register_converter

from pool.domain.names import NAME_PATTERN


class NameConverter:
    regex: str = NAME_PATTERN.strip("^$").replace("(", "(?:", 1)

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class IdentityConverter(NameConverter):
    """Opaque ids: of replicas, tokens and gateways."""

    regex = "[a-z0-9]{1,20}"


class RequestIdConverter(NameConverter):
    """As the gateway makes them; what a caller sent is no id here."""

    regex = "[A-Za-z0-9._-]{1,64}"


class UserNameConverter(NameConverter):
    regex = "[A-Za-z0-9@.+_-]{1,150}"


class NumberConverter:
    """Of releases and plans: 1 to 999,999,999."""

    regex = "[1-9][0-9]{0,8}"

    def to_python(self, value: str) -> int:
        return int(value)

    def to_url(self, value: int) -> str:
        return str(value)


def register_converters() -> None:
    register_converter(NameConverter, "name")
    register_converter(IdentityConverter, "identity")
    register_converter(RequestIdConverter, "request_id")
    register_converter(UserNameConverter, "user_name")
    register_converter(NumberConverter, "number")
