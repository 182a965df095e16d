"""Who may reach what: paths, methods, keys, models, pins."""

import json

import pytest

from tests.pool.gateway.rig import (
    CHAT,
    KEY,
    KEYS,
    NARROW_KEY,
    PIN_KEY,
    Rig,
    chat_request,
    make_key,
    make_release,
    make_table,
)


@pytest.fixture
async def served(rig: Rig) -> Rig:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2")
    table = make_table(make_release(1, first), make_release(2, second), weights={1: 100})
    await rig.serve(table)
    return rig


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../metrics", "//sleep", "/v1//chat/completions", "/v1/chat/completions/", "/V1/models",
        "/%76%31/models", "/v1/%2e%2e/metrics", "/v1%2fmodels", "/v1/models%00", "/v1/models#x", "/invocations",
        "/tokenize", "/detokenize", "/sleep", "/wake_up", "/pause", "/collective_rpc", "/v1/load_lora_adapter",
        "/v1/messages", "/version", "/health", "/load", "/docs", "/openapi.json", "/", "*", "/v1", "/v1/",
        "http://x/v1/models", "http://x/metrics", "/v1/chat/completions/render", "/v1/responses/abc",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_fc19_nothing_else_of_an_engine_is_reachable(served: Rig, method: str, target: str) -> None:
    connection = await served.connect()

    lines = f"host: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: 0\r\n"
    connection.send(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode())
    raw = await connection.read_until(b"\r\n")

    assert raw.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 "))
    assert not any(engine.calls for engine in served.engines.values())


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("OPTIONS", CHAT, "POST"),
    ],
)
async def test_fc19_only_the_listed_methods_pass(served: Rig, method: str, path: str, allow: str) -> None:
    connection = await served.connect()

    connection.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode())
    answer = await connection.read_response()

    assert (answer.status, answer.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/healthz", "/nothing", CHAT])
async def test_an_answer_to_head_has_no_body_that_the_next_answer_could_be_taken_for(
    served: Rig, path: str
) -> None:
    connection = await served.connect()

    connection.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    connection.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    head, _, rest = (await connection.read_to_end()).partition(b"\r\n\r\n")

    assert head.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))
    assert rest.startswith(b"HTTP/1.1 200 ")


async def test_fc19_connect_is_refused(served: Rig) -> None:
    connection = await served.connect()

    connection.send(b"CONNECT engine:80 HTTP/1.1\r\nhost: x\r\n\r\n")
    raw = await connection.read_to_end()

    assert raw.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "authorization",
    ["Bearer sk-wrong", "Bearer ", "Bearer", KEY, f"Basic {KEY}", "", "Bearer " + "x" * 1000, "Bearer \xff"],
)
async def test_without_a_known_key_nothing_passes(served: Rig, authorization: str) -> None:
    answers = [
        await served.ask(headers={"authorization": authorization}),
        await served.get("/v1/models", authorization=authorization),
    ]

    for answer in answers:
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.error["type"] == "authentication_error"
        assert set(answer.error) == {"message", "type", "param", "code"}
    assert not served.engines["r1"].calls


async def test_a_key_padded_in_many_ways_does_not_fill_the_memory(served: Rig) -> None:
    for turn in range(20):
        padded = f"Bearer{' ' * (10_000 + turn)}{KEY}"
        assert (await served.ask(headers={"authorization": padded})).status == 200

    remembered = served.gateway.plane.callers._remembered
    assert sum(len(header) for header in remembered) < 1000


async def test_two_authorization_headers_are_refused(served: Rig) -> None:
    connection = await served.connect()

    connection.send(
        f"GET /v1/models HTTP/1.1\r\nhost: x\r\nAuthorization: Bearer {KEY}\r\n"
        "authorization: Bearer sk-wrong\r\n\r\n".encode()
    )

    assert (await connection.read_response()).status == 400


async def test_a_revoked_key_is_refused_with_the_next_table(served: Rig) -> None:
    before = await served.ask()

    served.apply(make_table(make_release(1, await served.start_engine("r3")), keys=KEYS[1:], version=2))
    after = await served.ask()

    assert (before.status, after.status) == (200, 401)


async def test_a_key_may_be_bound_to_models(served: Rig) -> None:
    answer = await served.ask(key=NARROW_KEY)

    assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")


async def test_the_list_of_models_shows_what_a_key_may_use(served: Rig) -> None:
    mine = await served.get("/v1/models", authorization=f"Bearer {KEY}")
    narrow = await served.get("/v1/models", authorization=f"Bearer {NARROW_KEY}")

    (model,) = json.loads(mine.body)["data"]
    assert (model["id"], model["max_model_len"]) == ("m", 8192)
    assert json.loads(narrow.body)["data"] == []


async def test_an_unknown_model_is_not_found(served: Rig) -> None:
    answer = await served.ask({"model": "nope", "messages": []})

    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_a_key_that_may_pin_reaches_the_release_that_it_names(served: Rig) -> None:
    answer = await served.ask(key=PIN_KEY, headers={"x-sluice-release": "2"})

    assert answer.headers["x-sluice-release"] == "2"


async def test_other_keys_may_not_pin(served: Rig) -> None:
    answer = await served.ask(headers={"x-sluice-release": "2"})

    assert (answer.status, answer.error["code"]) == (403, "pin_not_allowed")


@pytest.mark.parametrize("release", ["7", "x", "-1", "99999999999", ""])
async def test_a_pin_must_name_a_release(served: Rig, release: str) -> None:
    answer = await served.ask(key=PIN_KEY, headers={"x-sluice-release": release})

    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"model":1}', b'{"messages":[]}', b'{"model":""}', b"\xff\xfe", b"{}" * 2],
)
async def test_bodies_that_name_no_model_are_refused(served: Rig, body: bytes) -> None:
    answer = await served.ask(body or b" ")

    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert not served.engines["r1"].calls


async def test_metrics_are_for_this_host_or_for_the_token(rig: Rig) -> None:
    await rig.serve(None, metrics_token="a-token")

    assert (await rig.get("/metrics")).status == 200
    assert (await rig.get("/metrics", x_forwarded_for="8.8.8.8")).status == 401
    assert (await rig.get("/metrics", x_forwarded_for="8.8.8.8", authorization="Bearer no")).status == 401
    proxied = await rig.get("/metrics", x_forwarded_for="8.8.8.8", authorization="Bearer a-token")
    assert proxied.status == 200


async def test_fc57_without_a_table_keys_are_unknown_and_not_invalid(rig: Rig) -> None:
    await rig.serve(None)

    answers = [await rig.ask(), await rig.get("/v1/models", authorization="Bearer sk-wrong")]

    assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "starting_up")] * 2
    assert (await rig.get("/readyz")).status == 503
    assert (await rig.get("/healthz")).status == 200


async def test_ready_means_that_a_table_is_held(served: Rig) -> None:
    answer = await served.get("/readyz")

    assert answer.status == 200
    assert json.loads(answer.body)["table"] == [1, 1]


async def test_fc56_no_prompt_and_no_key_is_in_the_records(
    served: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    marker = "MARKER-IN-PROMPT"
    served.apply(
        make_table(make_release(1, await served.start_engine("r3")), version=2, keys=(make_key(KEY),))
    )

    for prompt in (marker, f"{marker} ERR:500"):
        await served.ask(prompt=prompt, stream=True)
    connection = await served.connect()
    connection.send(chat_request(prompt=marker, headers={"x-request-id": "my-tag"}))
    await connection.read_response()
    records = served.gateway.plane.facts.take(100)

    assert len(records) == 3
    assert records[-1]["tag"] == "my-tag"
    assert marker not in repr(records) + caplog.text
    assert KEY not in repr(records) + caplog.text
