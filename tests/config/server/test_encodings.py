"""Request bodies that a client has compressed, at the running service."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import random
import threading
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
import requests
from backports import zstd
from django.conf import LazySettings

from config.server.bodies import decode_body
from config.server.bulkheads import Bulkheads
from endusers.models import EndUser
from tests.support.inference.site import CHAT, Site

# With the body itself, the most members that a body has.
EMPTY_MEMBERS = 999
MESSAGES = "/api/v1/messages"
END_USERS = "/api/v1/end-users"
FALLBACK = "Content-Encoding: send the body without it, or with one of: gzip, zstd."


def send(
    site: Site,
    body: Any,
    *,
    path: str = CHAT,
    encoding: str = "gzip",
    kind: str = "application/json",
) -> requests.Response:
    """Sends the bytes of a body with the key that its route takes."""
    tenant = site.tenant
    key = tenant.management_key if path == END_USERS else tenant.api_key
    headers = {"Authorization": f"Bearer {key}", "Content-Type": kind, "Content-Encoding": encoding}
    return requests.post(f"{site.server}{path}", data=body, headers=headers, timeout=60)


def halves(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Compresses a body as two members, which is one stream too."""
    return lambda body: compress(body[:9]) + compress(body[9:])


ENCODINGS = [
    pytest.param("gzip", gzip.compress, id="gzip"),
    pytest.param("GZIP", gzip.compress, id="upper case"),
    pytest.param("x-gzip", gzip.compress, id="x-gzip"),
    pytest.param("gzip", halves(gzip.compress), id="two members"),
    pytest.param("gzip", lambda body: gzip.compress(body) + bytes(512), id="padded"),
    pytest.param("gzip", lambda body: gzip.compress(body[:9]) + bytes(70_000)
                 + gzip.compress(body[9:]), id="padded between"),
    pytest.param("gzip", lambda body: gzip.compress(b"") * EMPTY_MEMBERS + gzip.compress(body),
                 id="many members"),
    pytest.param("gzip", lambda body: gzip.compress(body, 0), id="gzip at 0"),
    pytest.param("zstd", zstd.compress, id="zstd"),
    pytest.param("zstd", lambda body: zstd.compress(b"") * EMPTY_MEMBERS + zstd.compress(body),
                 id="many frames"),
    pytest.param("zstd", lambda body: b"\x50\x2a\x4d\x18\2\0\0\0ab" + zstd.compress(body),
                 id="a frame to skip"),
    pytest.param("zstd", halves(zstd.compress), id="two frames"),
    pytest.param("zstd", lambda body: zstd.compress(body, 19), id="zstd at 19"),
    pytest.param("identity", bytes, id="identity"),
    pytest.param("identity, gzip", gzip.compress, id="identity and gzip"),
    pytest.param("", bytes, id="empty"),
]  # fmt: skip


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("encoding", "encode"), ENCODINGS)
def test_a_compressed_body_is_read(
    site: Site, encoding: str, encode: Callable[[bytes], bytes], is_chunked: bool
) -> None:
    site.publish()
    words = "Größe " * 20_000
    body = encode(json.dumps(site.chat_body(words), ensure_ascii=False).encode())
    answer = send(site, iter([body[:7], body[7:]]) if is_chunked else body, encoding=encoding)
    assert answer.status_code == 200, answer.text
    [sent] = site.dialled()
    assert sent.body["messages"] == [{"role": "user", "content": words}]
    assert "content-encoding" not in sent.headers


@pytest.mark.parametrize("size", [0, 100_000])
@pytest.mark.parametrize(("encoding", "encode"), ENCODINGS)
def test_a_compressed_body_of_a_management_route_is_read(
    site: Site, encoding: str, encode: Callable[[bytes], bytes], size: int
) -> None:
    body = encode(b'{"user": "customer-1"}' + b" " * size)
    found = send(site, body, path=END_USERS, encoding=encoding)
    assert found.status_code == 201, found.text
    assert EndUser.objects.get().user == "customer-1"


def wide_window(body: bytes) -> bytes:
    """Compresses with a window of 128 MiB, which its reader would have to hold."""
    options: Any = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(body) + compressor.flush()


REFUSALS = [
    pytest.param("br", bytes, 415, FALLBACK, id="unknown"),
    pytest.param("deflate", zlib.compress, 415, FALLBACK, id="deflate"),
    pytest.param("gzip, gzip", lambda body: gzip.compress(gzip.compress(body)), 415, FALLBACK,
                 id="twice"),
    pytest.param("gzip", bytes, 400, "gzip", id="plain"),
    pytest.param("gzip", lambda body: gzip.compress(body)[:-9], 400, "gzip", id="cut off"),
    pytest.param("gzip", lambda body: gzip.compress(body)[:-5] + b"12345", 400, "gzip",
                 id="wrong sum"),
    pytest.param("gzip", lambda body: gzip.compress(body) + b"more", 400, "gzip", id="more"),
    pytest.param("zstd", lambda body: zstd.compress(body)[:-2], 400, "zstd", id="zstd cut off"),
    pytest.param("zstd", lambda body: zstd.compress(body) + b"garbage", 400, "zstd",
                 id="zstd and more"),
    pytest.param("gzip", lambda body: gzip.compress(body) + gzip.compress(b"")[:1], 400, "gzip",
                 id="half a head"),
    pytest.param("zstd", gzip.compress, 400, "zstd", id="another"),
    pytest.param("zstd", wide_window, 400, "zstd", id="a wide window"),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "encode", "status", "message"), REFUSALS)
def test_a_body_that_cannot_be_decoded_is_refused_by_name(
    site: Site, encoding: str, encode: Callable[[bytes], bytes], status: int, message: str
) -> None:
    site.publish()
    if status == 400:
        message = f"Content-Encoding: the body is not whole, or no {message}."
    body = encode(json.dumps(site.chat_body()).encode())
    for path in (CHAT, MESSAGES):
        found = send(site, body, path=path, encoding=encoding)
        assert (found.status_code, found.json()["error"]["message"]) == (status, message)
        assert found.headers.get("Accept-Encoding") == ("gzip, zstd" if status == 415 else None)
    site.assert_nothing_happened()
    found = send(site, encode(b'{"user": "customer-1"}'), path=END_USERS, encoding=encoding)
    assert (found.status_code, found.json()["error"]["message"]) == (status, message)
    assert not EndUser.objects.exists()


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstd.compress)]
)
def test_a_body_of_too_many_members_is_refused(
    site: Site, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    site.publish()
    empty = compress(b"") * (EMPTY_MEMBERS + 1)
    message = "Content-Encoding: the body has more than 1,000 members."
    for path, body in ((CHAT, site.chat_body()), (END_USERS, {"user": "customer-1"})):
        found = send(
            site, empty + compress(json.dumps(body).encode()), path=path, encoding=encoding
        )
        assert (found.status_code, found.json()["error"]["message"]) == (400, message)
    site.assert_nothing_happened()
    assert not EndUser.objects.exists()


@pytest.mark.parametrize(
    ("encoding", "compress"), [(b"gzip", gzip.compress), (b"zstd", zstd.compress)]
)
def test_a_large_body_is_decoded_in_its_organizations_turn(
    encoding: bytes, compress: Callable[[bytes], bytes]
) -> None:
    body = random.Random(1).randbytes(600_000)
    ours, others = UUID(int=1), UUID(int=2)
    go = threading.Event()

    async def scene() -> None:
        bulkheads = Bulkheads()
        with bulkheads.enter(ours, ours) as mine, bulkheads.enter(others, others) as theirs:
            held = asyncio.create_task(bulkheads.large_work.run(ours, go.wait))
            await asyncio.sleep(0)
            waiting = asyncio.create_task(decode_body(encoding, compress(body), mine, len(body)))
            await asyncio.sleep(0)
            found = await decode_body(encoding, compress(body), theirs, len(body))
            assert (found, theirs.held) == (body, len(body))
            assert (waiting.done(), mine.held) == (False, 0)
            go.set()
            assert await held
            assert (await waiting, mine.held) == (body, len(body))
        bulkheads.large_work.close()

    try:
        asyncio.run(scene())
    finally:
        go.set()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_small_body_that_becomes_large_is_refused(
    site: Site, settings: LazySettings, encoding: str
) -> None:
    settings.MAX_REQUEST_BYTES = 1_000_000
    site.publish()
    body = bytes(1_000_001)
    encoded = gzip.compress(body) if encoding == "gzip" else zstd.compress(body)
    found = send(site, encoded, encoding=encoding)
    assert (found.status_code, found.json()["error"]["code"]) == (413, 413)
    assert send(site, encoded, path=END_USERS, encoding=encoding).status_code == 413
    site.assert_nothing_happened()


def test_a_body_counts_by_what_it_becomes(site: Site, settings: LazySettings) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 500_000
    site.publish()
    found = send(site, gzip.compress(bytes(600_000)))
    assert found.status_code == 429
    assert found.json()["error"]["message"].startswith("The organization's requests hold too many")
    site.assert_nothing_happened()


def test_a_compressed_form_is_read(site: Site) -> None:
    """The boundary stands in a header, and the file in the decoded body."""
    site.model.output_modalities = ["transcription"]
    site.model.save(update_fields=["output_modalities"])
    form = requests.Request(
        "POST",
        site.server,
        data={"model": site.model.slug},
        files={"file": ("a.wav", io.BytesIO(b"RIFF" + bytes(40)))},
    ).prepare()
    assert isinstance(form.body, bytes)
    found = send(
        site,
        gzip.compress(form.body),
        path="/api/v1/audio/transcriptions",
        kind=form.headers["Content-Type"],
    )
    assert found.status_code == 404
    assert found.json()["error"]["message"].startswith("No endpoints found")
