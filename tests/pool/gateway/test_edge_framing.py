"""Where a message ends: what two parsers could read differently gets one answer, and what follows it is not read."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from tests.pool.gateway.leaks import wait_for_rest
from tests.pool.gateway.rig import CHAT, KEY, Rig, chat_request, make_release, make_table

HOST = b"host: x\r\n"
AUTH = f"authorization: Bearer {KEY}\r\n".encode()
LINE = f"POST {CHAT} HTTP/1.1\r\n".encode()
HEAD = LINE + HOST + AUTH
SMUGGLED = chat_request(prompt="smuggled")
MARKER = chat_request(prompt="marker")
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "first"}]}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@dataclass(frozen=True)
class Case:
    """`status`: of the one answer before the connection ends; 0 = the request is good, and so is the next one."""

    sent: bytes
    status: int = 400


CASES = {
    # Two lengths, or one that is none.
    "cl.te": Case(HEAD + b"content-length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SMUGGLED),
    "te.cl": Case(HEAD + CHUNKED + b"content-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED),
    "te.te": Case(HEAD + CHUNKED + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED),
    "te twice": Case(HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS),
    "te list": Case(HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS),
    "te not last": Case(HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNKS),
    "te x": Case(HEAD + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS),
    "te quoted": Case(HEAD + b'transfer-encoding: "chunked"\r\n\r\n' + CHUNKS),
    "te comma": Case(HEAD + b"transfer-encoding: ,chunked\r\n\r\n" + CHUNKS),
    "te parameter": Case(HEAD + b"transfer-encoding: chunked;q=1\r\n\r\n" + CHUNKS),
    "te vertical tab": Case(HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKS),
    "te form feed": Case(HEAD + b"transfer-encoding: chunked\x0c\r\n\r\n" + CHUNKS),
    "te empty": Case(HEAD + b"transfer-encoding: \r\n\r\n" + CHUNKS),
    "te folded": Case(HEAD + b"transfer-encoding:\r\n chunked\r\n\r\n" + CHUNKS),
    "te space before the colon": Case(HEAD + b"transfer-encoding : chunked\r\n" + LENGTH + b"\r\n" + SMUGGLED),
    "te tab before the colon": Case(HEAD + b"transfer-encoding\t: chunked\r\n" + LENGTH + b"\r\n" + SMUGGLED),
    "te after a space": Case(LINE + b" transfer-encoding: chunked\r\n" + HOST + AUTH + b"\r\n" + CHUNKS),
    "te with an underscore": Case(HEAD + b"transfer_encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY, 0),
    "te behind a lone lf": Case(HEAD + LENGTH + b"x: a\ntransfer-encoding: chunked\r\n\r\n" + BODY + SMUGGLED),
    "te behind a lone cr": Case(HEAD + LENGTH + b"x: a\rtransfer-encoding: chunked\r\n\r\n" + BODY + SMUGGLED),
    "te in http/1.0": Case(HEAD.replace(b"/1.1", b"/1.0") + CHUNKED + b"\r\n" + CHUNKS),
    "cl twice": Case(HEAD + LENGTH + LENGTH + b"\r\n" + BODY),
    "cl twice, another": Case(HEAD + b"content-length: 0\r\n" + LENGTH + b"\r\n" + SMUGGLED),
    "cl twice, another case": Case(HEAD + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY),
    "cl list": Case(HEAD + b"content-length: 5, 5\r\n\r\nhello"),
    "cl plus": Case(HEAD + b"content-length: +5\r\n\r\nhello"),
    "cl negative": Case(HEAD + b"content-length: -1\r\n\r\n"),
    "cl hex": Case(HEAD + b"content-length: 0x5\r\n\r\nhello"),
    "cl empty": Case(HEAD + b"content-length: \r\n\r\n"),
    "cl words": Case(HEAD + b"content-length: five\r\n\r\nhello"),
    "cl fraction": Case(HEAD + b"content-length: 5.0\r\n\r\nhello"),
    "cl underscore": Case(HEAD + b"content-length: 1_0\r\n\r\nhello"),
    "cl other digits": Case(HEAD + b"content-length: \xd9\xa5\r\n\r\nhello"),
    "cl inner space": Case(HEAD + b"content-length: 1 0\r\n\r\nhello"),
    "cl over 64 bits": Case(HEAD + b"content-length: 99999999999999999999\r\n\r\n"),
    "cl wraps to 5": Case(HEAD + b"content-length: 18446744073709551621\r\n\r\nhello"),
    "cl folded": Case(HEAD + b"content-length: 5\r\n 0\r\n\r\nhello"),
    "cl space before the colon": Case(HEAD + b"content-length : 5\r\n\r\nhello"),
    "cl nul": Case(HEAD + b"content-length: 5\x00\r\n\r\nhello"),
    "cl huge": Case(HEAD + b"content-length: 9999999999\r\n\r\n", 413),
    "cl leading zeros": Case(HEAD + b"content-length: 000%d\r\n\r\n" % len(BODY) + BODY, 0),
    "cl spaces around": Case(HEAD + b"content-length: \t %d \t\r\n\r\n" % len(BODY) + BODY, 0),
    "cl upper case": Case(HEAD + LENGTH.upper() + b"\r\n" + BODY, 0),
    # Chunks.
    "chunked": Case(HEAD + CHUNKED + b"\r\n" + CHUNKS, 0),
    "chunked upper case": Case(HEAD + CHUNKED.upper() + b"\r\n" + CHUNKS, 0),
    "chunk extension": Case(HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b';a="b"\r\n', 1), 0),
    "chunk trailer": Case(HEAD + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"x: a\r\n\r\n", 0),
    "trailers that matter": Case(
        HEAD + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"authorization: no\r\nhost: y\r\nx-sluice-release: 9\r\n\r\n", 0
    ),
    "cl in a trailer": Case(HEAD + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"content-length: 9\r\n\r\n"),
    "chunk of no size": Case(HEAD + CHUNKED + b"\r\n\r\n" + BODY),
    "chunk negative": Case(HEAD + CHUNKED + b"\r\n-1\r\n" + SMUGGLED),
    "chunk plus": Case(HEAD + CHUNKED + b"\r\n+5\r\nhello\r\n0\r\n\r\n"),
    "chunk 0x": Case(HEAD + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk of words": Case(HEAD + CHUNKED + b"\r\nxyz\r\nhello\r\n0\r\n\r\n"),
    "chunk over 64 bits": Case(HEAD + CHUNKED + b"\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "chunk space before": Case(HEAD + CHUNKED + b"\r\n 5\r\nhello\r\n0\r\n\r\n"),
    "chunk space after": Case(HEAD + CHUNKED + b"\r\n5 \r\nhello\r\n0\r\n\r\n"),
    "chunk too long": Case(HEAD + CHUNKED + b"\r\n4\r\nhello\r\n0\r\n\r\n" + SMUGGLED),
    "chunk too short": Case(HEAD + CHUNKED + b"\r\n6\r\nhello\r\n0\r\n\r\n" + SMUGGLED),
    "chunk lf after the size": Case(HEAD + CHUNKED + b"\r\n5\nhello\r\n0\r\n\r\n" + SMUGGLED),
    "chunk cr after the size": Case(HEAD + CHUNKED + b"\r\n5\rhello\r\n0\r\n\r\n" + SMUGGLED),
    "chunk lf after the data": Case(HEAD + CHUNKED + b"\r\n5\r\nhello\n0\r\n\r\n" + SMUGGLED),
    "chunk lf in an extension": Case(HEAD + CHUNKED + b"\r\n5;a\nx\r\nhello\r\n0\r\n\r\n" + SMUGGLED),
    "chunk cr in an extension": Case(HEAD + CHUNKED + b"\r\n5;a\rx\r\nhello\r\n0\r\n\r\n" + SMUGGLED),
    "chunk nul in an extension": Case(HEAD + CHUNKED + b"\r\n5;\x00\r\nhello\r\n0\r\n\r\n"),
    # Lines.
    "lf only": Case((HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY),
    "cr only": Case((HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\r") + BODY),
    "lf ends the head": Case(HEAD + LENGTH + b"\n" + BODY),
    "cr in the target": Case(LINE.replace(b" HTTP", b"\r HTTP") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "nul in the target": Case(LINE.replace(b" HTTP", b"\x00 HTTP") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "nul in a name": Case(HEAD + b"x\x00y: a\r\n" + LENGTH + b"\r\n" + BODY),
    "nul in a value": Case(HEAD + b"x: a\x00b\r\n" + LENGTH + b"\r\n" + BODY),
    "empty name": Case(HEAD + b": a\r\n" + LENGTH + b"\r\n" + BODY),
    "no colon": Case(HEAD + b"rubbish\r\n" + LENGTH + b"\r\n" + BODY),
    "space in a name": Case(HEAD + b"x y: a\r\n" + LENGTH + b"\r\n" + BODY),
    "folded": Case(HEAD + b"x: a\r\n\tb\r\n" + LENGTH + b"\r\n" + BODY),
    "space before the first header": Case(LINE + b" " + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "bytes above ascii in a value": Case(HEAD + b"x: \xe4\xbd\xa0\r\n" + LENGTH + b"\r\n" + BODY, 0),
    "empty lines before": Case(b"\r\n\r\n" + HEAD + LENGTH + b"\r\n" + BODY, 0),
    # The first line.
    "no version": Case(b"POST /v1/chat/completions\r\n" + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "http/0.9": Case(LINE.replace(b"1.1", b"0.9") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "http/1.2": Case(LINE.replace(b"1.1", b"1.2") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "http/2": Case(LINE.replace(b"1.1", b"2.0") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "http/1.10": Case(LINE.replace(b"1.1", b"1.10") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "http/1": Case(LINE.replace(b"1.1", b"1") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "lower case version": Case(LINE.replace(b"HTTP", b"http") + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "two spaces": Case(LINE.replace(b" HTTP", b"  HTTP") + HOST + AUTH + LENGTH + b"\r\n" + BODY, 0),
    "unknown method": Case(b"SMUGGLE" + LINE[4:] + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "lower case method": Case(b"post" + LINE[4:] + HOST + AUTH + LENGTH + b"\r\n" + BODY),
    "preface of http/2": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "hello of tls": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "reply instead of a request": Case(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    # The host.
    "no host": Case(LINE + AUTH + LENGTH + b"\r\n" + BODY),
    "two hosts": Case(HEAD + HOST + LENGTH + b"\r\n" + BODY),
    "two keys": Case(HEAD + AUTH + LENGTH + b"\r\n" + BODY),
}  # fmt: skip


@pytest.fixture
async def served(rig: Rig) -> Rig:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    return rig


def list_prompts(rig: Rig) -> list[str]:
    return [json.loads(call.body)["messages"][0]["content"] for call in rig.engines["r1"].calls]


@pytest.mark.parametrize("name", CASES)
async def test_a_message_has_one_end(served: Rig, name: str) -> None:
    case = CASES[name]

    for pieces in (len(case.sent), 7):
        served.engines["r1"].calls.clear()
        connection = await served.connect()
        for at in range(0, len(case.sent), pieces):
            connection.send(case.sent[at : at + pieces])
            await asyncio.sleep(0)
        connection.send(MARKER)

        if case.status:
            raw = await connection.read_to_end()
            assert raw.startswith(b"HTTP/1.1 %d " % case.status)
            assert raw.count(b"x-request-id: ") == 1
            assert not served.engines["r1"].calls
        else:
            assert [(await connection.read_response()).status for _ in range(2)] == [200, 200]
            assert list_prompts(served) == ["first", "marker"]

    # Nor does a connection to the engine hold something that the next request could be taken for.
    assert (await served.ask(prompt="another")).status == 200
    assert list_prompts(served)[-1] == "another"
    await wait_for_rest(served)
