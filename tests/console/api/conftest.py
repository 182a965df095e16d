from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from tests import factories


def client_of(user: User) -> APIClient:
    """Calls as scripts do: with a token."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {factories.make_token(user)}")
    client.default_format = "json"
    return client


@pytest.fixture
def as_viewer(viewer: User, routing_state: None) -> APIClient:
    return client_of(viewer)


@pytest.fixture
def as_operator(operator: User, routing_state: None) -> APIClient:
    return client_of(operator)


@pytest.fixture
def as_admin(admin: User, routing_state: None) -> APIClient:
    return client_of(admin)
