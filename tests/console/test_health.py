from __future__ import annotations

import pytest
from django.db import OperationalError, connection
from django.test import Client

from console.database_gate import ask_database


@pytest.mark.django_db
def test_a_console_with_its_database_is_alive_and_ready(client: Client) -> None:
    assert client.get("/healthz").json() == {"alive": True}
    assert client.get("/readyz").json() == {"ready": True}


def test_without_its_database_it_is_alive_but_not_ready(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OperationalError

    monkeypatch.setattr(connection, "cursor", refuse)

    assert ask_database() is False
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503


def test_only_reading_is_answered(client: Client) -> None:
    assert client.post("/healthz").status_code == 405
    assert client.delete("/readyz").status_code == 405
