"""The console as a person uses it: signed in, a form fetched, some fields typed, the form sent."""

from __future__ import annotations

import http.client
import urllib.parse
from html.parser import HTMLParser
from typing import Any

from tests.journeys.installation import Answer, Installed


class Visitor:
    """Keeps its cookies; follows no redirect, so that a test sees whether a form was taken."""

    def __init__(self, installed: Installed) -> None:
        self._port = installed.web_port
        self._cookies: dict[str, str] = {}
        signed = self.send(
            "/sign-in/", username="admin", password=installed.variables["SLUICE_ADMIN_PASSWORD"]
        )
        assert signed.status == 302, signed

    def open(self, path: str) -> Answer:
        return self._ask("GET", path)

    def send(self, path: str, **typed: str | None) -> Answer:
        """The form of the page at `path` as it stands there, but for what is typed; None: taken out."""
        page = self.open(path)
        assert page.status == 200, (path, page.status)
        fields = read_form(page.content.decode()) | typed
        given = {name: value for name, value in fields.items() if value is not None}
        return self._ask("POST", path, urllib.parse.urlencode(given))

    def click(self, page: str, path: str) -> Answer:
        """A button of the page that sends nothing but its token."""
        token = read_form(self.open(page).content.decode())["csrfmiddlewaretoken"]
        return self._ask("POST", path, urllib.parse.urlencode({"csrfmiddlewaretoken": token}))

    def _ask(self, method: str, path: str, body: str | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            for name, value in answer.getheaders():
                if name.lower() == "set-cookie":
                    key, _, rest = value.partition("=")
                    self._cookies[key] = rest.partition(";")[0]
            return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def read_form(page: str) -> dict[str, str | None]:
    """What a browser would send of all forms of the page; templates of rows to come are left out."""
    reader = _FormReader()
    reader.feed(page)
    return reader.fields


class _FormReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str | None] = {}
        self._select = ""
        self._templates = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        self._templates += tag == "template"
        if self._templates:
            return
        if tag == "select":
            self._select = given.get("name", "")
        elif tag == "option" and self._select and "selected" in given:
            self.fields[self._select] = given.get("value", "")
        elif tag == "input" and given.get("name"):
            if given.get("type") in ("checkbox", "radio") and "checked" not in given:
                return
            self.fields[given["name"]] = given.get("value") or (
                "on" if given.get("type") == "checkbox" else ""
            )

    def handle_endtag(self, tag: str) -> None:
        self._templates -= tag == "template"
        if tag == "select":
            self._select = ""
