from __future__ import annotations

import hashlib

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction

from pool.domain.routing_table import ReleaseRoute, from_bytes
from pool.models import RoutingState, TokenizerFile, Version
from pool.queries.tokenizers import find_tokenizer_file, find_tokenizer_problem
from pool.services.routing import rebuild_table
from pool.services.tokenizers import has_tokenizer_use, store_tokenizer
from pool.tokenizer_folder import TokenizerReading
from tests import factories

pytestmark = pytest.mark.django_db

READING = TokenizerReading(b"tokenizer", b"template", "")


@pytest.fixture
def version(routing_state: None) -> Version:
    model = factories.make_model()
    version = factories.make_version(model)
    factories.make_release(model, version=version)
    factories.make_plan(model)
    rebuild_table()
    return version


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def release_in_table() -> ReleaseRoute:
    table = from_bytes(bytes(RoutingState.objects.get().body), settings.SECRET_KEY)
    return table.models[0].releases[0]


def test_the_table_names_what_was_stored(version: Version) -> None:
    before = release_in_table()

    assert store_tokenizer(version, READING)

    release = release_in_table()
    assert (before.tokenizer, before.chat_template) == (None, None)
    assert (release.tokenizer, release.chat_template) == (sha256(b"tokenizer"), sha256(b"template"))


def test_the_first_node_decides(version: Version) -> None:
    store_tokenizer(version, READING)

    assert not store_tokenizer(version, TokenizerReading(b"another", None, ""))

    assert release_in_table().tokenizer == sha256(b"tokenizer")


def test_versions_share_equal_files(version: Version) -> None:
    second = factories.make_version(version.model, name="v2")

    store_tokenizer(version, READING)
    store_tokenizer(second, READING)

    assert TokenizerFile.objects.count() == 2


def test_fc41_a_version_without_a_tokenizer_keeps_the_reason(version: Version) -> None:
    assert find_tokenizer_problem(version.model.name, "v1") is None

    store_tokenizer(version, TokenizerReading(None, None, "no_tokenizer_json"))

    assert has_tokenizer_use(version)
    assert find_tokenizer_problem(version.model.name, "v1") == "no_tokenizer_json"
    assert release_in_table().tokenizer is None


def test_files_are_found_by_their_hash(version: Version) -> None:
    store_tokenizer(version, READING)

    assert find_tokenizer_file(sha256(b"template")) == b"template"
    assert find_tokenizer_file("0" * 64) is None


@pytest.mark.parametrize(
    "values",
    [
        {"digest": "0" * 63},
        {"digest": "Z" * 64},
        {"kind": "other"},
        {"size_bytes": 32 * 2**20 + 1},
    ],
)
def test_the_database_refuses_what_is_no_such_file(db: None, values: dict[str, object]) -> None:
    usual = {"digest": "0" * 64, "kind": "tokenizer", "content": b"", "size_bytes": 0}

    with pytest.raises(IntegrityError), transaction.atomic():
        TokenizerFile.objects.create(**(usual | values))
