"""Heads, trailers and pipelines that are more, or something else, than a request may be."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from endusers.models import EndUser
from tests.support.attack import connect, counted, head_of, post_of, split_answers
from tests.support.inference.site import CHAT, Site

END_USERS = "/api/v1/end-users"
LAST_CHUNK = b"0\r\n"


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def chat_head(site: Site, **headers: str) -> bytes:
    key = {"Authorization": f"Bearer {site.tenant.api_key}"}
    return head_of("POST", CHAT, Transfer_Encoding="chunked", **{**key, **headers})


@pytest.mark.parametrize("path", ["/healthz", CHAT, END_USERS, "/admin/login/"])
@pytest.mark.parametrize(
    "hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: a\r\nx: y\r\nHOST: b\r\n"]
)
def test_a_request_needs_exactly_one_host(service: Site, path: str, hosts: bytes) -> None:
    with counted(service.server, "host"), connect(service.server) as line:
        line.send(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), hosts))
        answer = line.receive_answer()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert answer.error == {
        "code": 400,
        "message": "Send exactly one Host header.",
        "metadata": {"error_type": "invalid_request"},
    }


def test_an_old_request_needs_no_host(service: Site) -> None:
    with connect(service.server) as line:
        line.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert line.receive_answer().status == 200


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_stream_to_an_old_caller_has_no_chunks(service: Site, version: bytes) -> None:
    """RFC 9112, section 6.1, and for ``Expect`` RFC 9110, section 10.1.1."""
    body = json.dumps(service.chat_body("old", stream=True)).encode()
    request = post_of(CHAT, service.tenant.api_key, body, Expect="100-continue", Connection="close")
    with connect(service.server) as line:
        line.send(request.replace(b"HTTP/1.1", b"HTTP/" + version, 1))
        found = line.receive_rest()
    is_old = version == b"1.0"
    assert found.startswith(b"HTTP/1.1 200") == is_old
    head, _, answer = found.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    assert (b"transfer-encoding" in head) == (not is_old)
    assert b"\r\nconnection: close" in head
    assert answer.startswith(b"data: ") == is_old
    assert answer.endswith(b"data: [DONE]\n\n" if is_old else b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_trailer_authenticates_nobody(
    service: Site, is_served: Callable[[], bool], is_late: bool
) -> None:
    body = json.dumps(service.chat_body()).encode()
    trailer = f"Authorization: Bearer {service.tenant.api_key}\r\n\r\n".encode()
    head = head_of("POST", CHAT, Transfer_Encoding="chunked")
    with connect(service.server) as line:
        line.send(head + chunk(body) + (b"" if is_late else LAST_CHUNK + trailer))
        if is_late:
            assert is_served()
            line.send_while_accepted(LAST_CHUNK + trailer)
        assert line.receive_answer().status == 401
    with connect(service.server) as line:
        head = head_of(
            "POST", END_USERS, Transfer_Encoding="chunked", Content_Type="application/json"
        )
        trailer = f"authorization: Bearer {service.tenant.management_key}\r\n\r\n".encode()
        line.send(head + chunk(b'{"user": "trailer"}') + LAST_CHUNK + trailer)
        assert line.receive_answer().status == 401
    assert not EndUser.objects.exists()


def test_a_trailer_changes_no_header(service: Site) -> None:
    """Otherwise two keys would be sent, which is 401."""
    body = json.dumps(service.chat_body()).encode()
    with connect(service.server) as line:
        line.send(chat_head(service) + chunk(body) + LAST_CHUNK)
        line.send(b"Authorization: Bearer another\r\nX-Request-Id: trailer\r\n\r\n")
        answer = line.receive_answer()
    assert answer.status == 200
    assert answer.headers["x-request-id"] != "trailer"


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param((LAST_CHUNK + b"X: ", b"y" * 65_536), id="one trailer"),
        pytest.param((LAST_CHUNK, b"X-Trailer: y\r\n" * 4096), id="many trailers"),
        pytest.param((b"5;", b"e" * 65_536), id="an extension"),
        pytest.param((b"", chunk(b"x", b";" + b"e" * 99) * 600), id="many extensions"),
    ],
)
def test_bytes_that_are_no_body_are_bounded(
    service: Site, is_served: Callable[[], bool], flood: tuple[bytes, bytes]
) -> None:
    begin, more = flood
    with counted(service.server, "framing_size"), connect(service.server) as line:
        line.send(chat_head(service) + chunk(b'{"model": "') + begin)
        line.send_while_accepted(more * 64)
        answer = line.receive_answer()
    assert (answer.status, answer.headers["connection"]) == (431, "close")
    assert answer.error["message"] == "The trailers or the extensions of the chunks are too large."
    service.assert_nothing_happened()
    assert is_served()


def test_small_chunks_are_a_body(service: Site) -> None:
    body = json.dumps(service.chat_body("x" * 50_000)).encode()
    pieces = b"".join(chunk(body[start : start + 16]) for start in range(0, len(body), 16))
    with connect(service.server) as line:
        line.send(chat_head(service) + pieces + LAST_CHUNK + b"\r\n")
        assert line.receive_answer().status == 200


@pytest.mark.parametrize(
    ("first", "more", "message"),
    [
        (b"", b"A: b\r\n" * 128, "A request has at most 100 headers."),
        (b"A: ", b"b" * 65_536, "The request headers are too large."),
        (b"A", b"a" * 65_536, "The request headers are too large."),
    ],
    ids=["many", "a value", "a name"],
)
def test_heads_are_bounded(
    service: Site, is_served: Callable[[], bool], first: bytes, more: bytes, message: str
) -> None:
    with counted(service.server, "head_size"), connect(service.server) as line:
        line.send(head_of("GET", "/healthz")[:-2] + first)
        line.send_while_accepted(more * 256)
        answer = line.receive_answer()
        assert (answer.status, answer.error["message"]) == (431, message)
        assert line.receive_rest() == b""
    assert is_served()


def test_a_head_is_refused_although_it_ends(service: Site) -> None:
    with connect(service.server) as line:
        line.send(head_of("GET", "/healthz", A="b" * 90_000))
        assert line.receive_answer().status == 431


def test_a_flood_of_pipelined_requests_is_refused_after_the_first(
    service: Site, is_served: Callable[[], bool]
) -> None:
    with counted(service.server, "pipeline"), connect(service.server) as line:
        line.send_while_accepted(head_of("GET", "/nowhere") * 2_000)
        answers = split_answers(line.receive_rest())
    assert [answer.status for answer in answers[:-1]] == [404] * (len(answers) - 1)
    assert (answers[-1].status, answers[-1].headers["retry-after"]) == (429, "1")
    assert 9 <= len(answers) < 2_000
    assert is_served()


def test_a_refusal_waits_for_the_responses_before_it(service: Site) -> None:
    service.publish("sim-held")
    body = json.dumps(service.chat_body()).encode()
    with counted(service.server, "malformed"), connect(service.server) as line:
        line.send(post_of(CHAT, service.tenant.api_key, body))
        line.send(b"This is no HTTP\r\n\r\n")
        service.eventually(lambda: len(service.upstream.requests) == 1)
        service.upstream.release()
        answers = split_answers(line.receive_rest())
    assert [answer.status for answer in answers] == [200, 400]
    assert json.loads(answers[0].body)["object"] == "chat.completion"
    assert answers[1].error["message"] == "This is not valid HTTP/1.1."


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0, HTTP/2.0"])
def test_the_offer_of_another_protocol_is_ignored(
    service: Site, offer: str, is_apart: bool, is_chunked: bool
) -> None:
    """Java's client offers ``h2c`` with each request. What follows is the next request."""
    body = json.dumps(service.chat_body()).encode()
    framing: dict[str, str | int] = {"Content_Length": len(body)}
    if is_chunked:
        framing = {"Transfer_Encoding": "chunked"}
        body = chunk(body[:9]) + chunk(body[9:]) + LAST_CHUNK + b"\r\n"
    head = head_of(
        "POST",
        CHAT,
        Authorization=f"Bearer {service.tenant.api_key}",
        Connection="Upgrade, HTTP2-Settings",
        Upgrade=offer,
        HTTP2_Settings="AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        **framing,
    )
    last = head_of("GET", "/healthz", Connection="close")
    with connect(service.server) as line:
        for part in (head, body[:9], body[9:], head + body[:9], body[9:] + last):
            line.send(part)
            if is_apart:
                assert line.is_open()
        answers = split_answers(line.receive_rest())
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [request.body["model"] for request in service.dialled()] == ["sim-echo"] * 2


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("method", ["POST", "CONNECT"])
def test_the_body_of_an_upgrade_is_no_request(service: Site, method: str, is_apart: bool) -> None:
    user, key = b'{"user": "smuggled"}', service.tenant.management_key
    smuggled = post_of(END_USERS, key, user, Content_Type="application/json")
    path = "localhost:80" if method == "CONNECT" else "/api/v1/nowhere"
    head = head_of(method, path, Connection="Upgrade", Upgrade="h2c", Content_Length=len(smuggled))
    with connect(service.server) as line:
        line.send(head if is_apart else head + smuggled)
        if is_apart:
            line.send_while_accepted(smuggled)
        assert line.receive_answer().status == (400 if method == "CONNECT" else 404)
    assert not EndUser.objects.exists()


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "chunked, gzip", "x"])
@pytest.mark.parametrize(("method", "path"), [("POST", END_USERS), ("POST", CHAT), ("GET", "/")])
def test_an_upgrade_whose_body_has_no_end_is_refused(
    service: Site, method: str, path: str, coding: str, is_first: bool
) -> None:
    key = service.tenant.api_key if path == CHAT else service.tenant.management_key
    head = head_of(
        method,
        path,
        Authorization=f"Bearer {key}",
        Connection="Upgrade",
        Upgrade="h2c",
        Transfer_Encoding=coding,
        Content_Type="application/json",
    )
    before = b"" if is_first else head_of("GET", "/healthz")
    with counted(service.server, "malformed"), connect(service.server) as line:
        line.send(before + head + b'{"user": "endless"}')
        *answers, last = split_answers(line.receive_rest())
    assert [answer.status for answer in answers] == ([] if is_first else [200])
    assert (last.status, last.headers["connection"]) == (400, "close")
    assert last.error["message"] == "This is not valid HTTP/1.1."
    service.assert_nothing_happened()
    assert not EndUser.objects.exists()


def test_a_tunnel_is_refused_before_its_bytes(service: Site) -> None:
    with counted(service.server, "upgrade"), connect(service.server) as line:
        line.send(head_of("CONNECT", "localhost:80", Content_Length=9) + b"GET / HTT")
        answer = line.receive_answer()
        assert line.receive_rest() == b""
    message = "This is no proxy: CONNECT is not served."
    assert (answer.status, answer.error["message"]) == (400, message)


def test_an_upgrade_is_answered_as_if_it_had_not_been_asked_for(service: Site) -> None:
    head = head_of("GET", "/healthz", Connection="Upgrade", Upgrade="websocket")
    with connect(service.server) as line:
        line.send(head * 2)
        line.send(head_of("GET", "/healthz", Connection="close"))
        assert [answer.status for answer in split_answers(line.receive_rest())] == [200] * 3
