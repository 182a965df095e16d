"""FC-20: after good and bad requests no secret is anywhere but in the folder of the secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pool.domain.signing import derive_engine_key
from tests.journeys.installation import SECRETS, Answer, Installed, ask, read_proc, wait_until
from tests.journeys.streams import Stream

READ_BYTES = 1 << 22


def test_no_secret_is_kept_or_shown_anywhere_fc20(sluice: Installed) -> None:
    (replica,) = sluice.replicas(phase="ready")
    engine_key = derive_engine_key(
        SECRETS["SLUICE_SECRET_KEY"], replica_id=replica["id"], generation=replica["generation"]
    )
    wanted = {name: value.encode() for name, value in SECRETS.items()} | {"engine key": engine_key.encode()}

    answers = list(take_every_path(sluice))
    # Facts, beats and logs are written within a second or two.
    wait_until(lambda: sluice.select("SELECT sum(requests) FROM pool_secondcell")[0][0], limit_s=20)

    found = [
        f"{name} in answer {number}" for number, text in enumerate(answers) for name in names_in(text, wanted)
    ]
    found += [f"{name} in {path}" for path in list_files(sluice) for name in names_in_file(path, wanted)]
    for pid in sluice.list_processes():
        found += [
            f"{name} in the command line of {pid}" for name in names_in(read_proc(pid, "cmdline"), wanted)
        ]
    assert found == []


def take_every_path(sluice: Installed) -> Iterator[bytes]:
    """Good and bad: chats, wrong and right keys in wrong places, refusals of the API, status and logs."""
    yield whole(sluice.chat())
    stream = Stream(sluice, tokens=10)
    stream.finish()
    yield json.dumps(stream.events).encode()
    yield whole(sluice.chat(model="unknown"))
    yield whole(sluice.chat(temperature="hot"))
    yield whole(sluice.chat(messages=[{"role": "user", "content": "long " * 50_000}]))
    port, key, token = sluice.gateway_port, sluice.key, sluice.variables["SLUICE_API_TOKEN"]
    yield whole(ask(port, "POST", "/v1/chat/completions", {"model": "smollm2"}, key=key[:-1]))
    yield whole(ask(port, "GET", f"/v1/models?key={key}", key=token))
    yield whole(ask(port, "GET", "/metrics", key=key))
    # Somebody mixes the two keys up, and pastes one into a path or a body.
    yield whole(sluice.call("GET", "replicas/", token=key))
    yield whole(sluice.call("GET", f"replicas/?model={token[:20]}"))
    yield whole(sluice.call("POST", "profiles/", {"name": "x", "settings": {"dtype": "strange"}}))
    yield whole(sluice.call("POST", "models/smollm2/versions/", {"source": "hub:a/b@c d"}))
    yield whole(sluice.call("GET", "keys/"))
    yield whole(sluice.call("GET", "tokens/"))
    yield whole(sluice.call("GET", "audit/?limit=200"))
    yield whole(sluice.call("GET", "status/"))
    yield whole(sluice.call("POST", "keys/", {"name": "canary-two"}, token="wrong"))
    for command in (("status",), ("status", "--json"), ("logs",)):
        outcome = sluice.run(*command)
        yield (outcome.stdout + outcome.stderr).encode()


def whole(answer: Answer) -> bytes:
    return json.dumps(answer.headers).encode() + answer.content


def names_in(text: bytes, wanted: dict[str, bytes]) -> list[str]:
    return [name for name, value in wanted.items() if value in text]


def list_files(sluice: Installed) -> list[Path]:
    """Logs, PostgreSQL's and Valkey's own files, tables on disk, records: all but the secrets themselves."""
    data = sluice.layout.data
    return [
        Path(folder) / name
        for folder, _, names in os.walk(data)
        if Path(folder) != sluice.layout.secrets
        for name in names
        if (Path(folder) / name).is_file()
    ]


def names_in_file(path: Path, wanted: dict[str, bytes]) -> list[str]:
    """In pieces that overlap by more than the longest secret."""
    found: set[str] = set()
    try:
        with path.open("rb") as content:
            last = b""
            while piece := content.read(READ_BYTES):
                found.update(names_in(last + piece, wanted))
                last = piece[-256:]
    except FileNotFoundError:
        pass
    return sorted(found)
