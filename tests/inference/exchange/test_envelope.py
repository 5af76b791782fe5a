"""Refusals of the inference routes: status, body and headers, without other effects."""

from __future__ import annotations

import http.client
import json
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.conf import LazySettings
from django.utils import timezone

from accounts.models import ApiKey
from tests.support.bodies.lines import dial, post_bytes
from tests.support.inference.site import CHAT, TEXT, Site

MISSING = "Authentication is missing or invalid. Send 'Authorization: Bearer <API key>'."
WRONG = "The API key is not valid."
STRANGE_HOSTS = ("bad.test", "localhost.bad.test", "xlocalhost", "localhost@bad", "a b", "::1", "")


def envelope(code: int, message: str, error_type: str, **metadata: Any) -> dict[str, Any]:
    return {
        "error": {
            "code": code,
            "message": message,
            "metadata": {"error_type": error_type, **metadata},
        }
    }


def raw(site: Site, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends the bytes on a new connection; returns status, headers and body of the answer."""
    with dial(site, request) as line:
        answer = http.client.HTTPResponse(line)
        answer.begin()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()


def assert_refused(
    answer: requests.Response, code: int, message: str, error_type: str, **metadata: Any
) -> None:
    assert answer.status_code == code
    assert answer.json() == envelope(code, message, error_type, **metadata)


def test_a_caller_without_one_valid_inference_key_is_refused(published: Site) -> None:
    site, key = published, published.tenant.api_key
    for path in (CHAT, TEXT):
        for authorization, message in (
            (None, MISSING),
            ("", MISSING),
            ("Basic dTpw", MISSING),
            ("Bearer", MISSING),
            ("Bearer ", MISSING),
            ("Bearer wrong", WRONG),
            (f"Bearer {key}x", WRONG),
            (f"Bearer {key[:-1]}", WRONG),
            (f"Bearer {key},Bearer {key}", MISSING),
            (key, MISSING),
        ):
            headers = {} if authorization is None else {"Authorization": authorization}
            answer = requests.post(
                f"{site.server}{path}", json=site.chat_body(prompt="x"), headers=headers, timeout=60
            )
            assert_refused(answer, 401, message, "authentication")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.headers["Content-Type"] == "application/json"
            assert len(answer.headers["X-Request-Id"]) == 16
            assert "X-Generation-Id" not in answer.headers
        # A management key cannot call inference.
        answer = site.post(site.chat_body(prompt="x"), path=path, key=site.tenant.management_key)
        message = "Management keys cannot call inference; use an inference key."
        assert_refused(answer, 403, message, "permission_denied")
    # Two Authorization headers are refused.
    second = f"Authorization: Bearer {key}"
    status, received, body = raw(site, post_bytes(site, site.chat_body(), second))
    assert (status, received["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body) == envelope(401, "Send one Authorization header.", "authentication")
    # A disabled, an expired and a deleted key are refused.
    stored = ApiKey.objects.filter(name="inference")
    stored.update(disabled=True)
    assert_refused(site.chat(), 401, "The API key is disabled.", "authentication")
    stored.update(disabled=False, expires_at=timezone.now() - timedelta(seconds=30))
    assert_refused(site.chat(), 401, "The API key has expired.", "authentication")
    stored.get().delete()
    assert_refused(site.chat(), 401, WRONG, "authentication")
    site.assert_nothing_happened()


def test_a_request_to_a_wrong_address_is_refused(published: Site) -> None:
    site, body = published, published.chat_body(prompt="x")
    for path in (CHAT, TEXT):
        # Only POST is allowed.
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"):
            answer = requests.request(
                method,
                f"{site.server}{path}",
                headers={"Authorization": f"Bearer {site.tenant.api_key}"},
                timeout=60,
            )
            assert answer.status_code == 405
            assert answer.headers["Allow"] == "POST"
            if method == "HEAD":
                assert answer.content == b""
            else:
                assert_refused(answer, 405, "This method is not allowed here.", "invalid_request")
        # A host that is not served is refused, each time.
        for host in STRANGE_HOSTS * 2:
            status, _, text = raw(site, post_bytes(site, body, path=path, host=host))
            assert (host, status, json.loads(text)) == (
                host, 400, envelope(400, "This host name is not served here.", "invalid_request")
            )  # fmt: skip
    # Two Host headers are refused.
    two = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"
    status, _, text = raw(site, two.encode())
    assert (status, json.loads(text)["error"]["message"]) == (400, "Send exactly one Host header.")
    # An unknown path is not found.
    for path in ("/api/v1/chat", "/v1/chat", f"{CHAT}x", f"{TEXT}/x"):
        answer = site.post(body, path=path)
        assert_refused(answer, 404, "There is no such route.", "not_found")
    site.assert_nothing_happened()


@pytest.mark.parametrize("host", ["localhost", "LocalHost:443", "localhost.:8000", "127.0.0.1"])
def test_a_served_host_is_accepted_in_any_spelling(site: Site, host: str) -> None:
    site.publish()
    assert site.post(site.chat_body(), headers={"Host": host}).status_code == 200


def test_a_wrong_body_is_refused_and_its_field_named(published: Site) -> None:
    for body, message in (
        (b"", "The body is not valid JSON."),
        (b"{", "The body is not valid JSON."),
        (b'{"model":"\xff"}', "The body is not valid UTF-8."),
        (b"[]", "The body must be a JSON object. (Expected object, got array)"),
    ):
        assert_refused(published.post(None, data=body), 400, message, "invalid_request")
    text = "Expected float <= 2.0."
    answer = published.chat(temperature=3)
    fields = {"temperature": text}
    assert_refused(answer, 400, f"temperature: {text}", "invalid_request", fields=fields)
    published.assert_nothing_happened()


def test_a_body_at_the_size_limit_passes_and_one_more_byte_does_not(
    site: Site, settings: LazySettings
) -> None:
    site.publish()
    body = json.dumps(site.chat_body()).encode()
    settings.MAX_REQUEST_BYTES = len(body)
    refused = site.post(None, data=body + b" ")
    assert_refused(refused, 413, "The request body is too large.", "payload_too_large")
    chunked = site.post(None, data=iter([body[:10], body[10:], b" "]))
    assert chunked.status_code == 413
    site.assert_nothing_happened()
    assert site.post(None, data=body).status_code == 200
    assert site.post(None, data=iter([body[:10], body[10:]])).status_code == 200


def test_a_body_announced_as_too_large_is_refused_unread(
    site: Site, settings: LazySettings
) -> None:
    settings.MAX_REQUEST_BYTES = 1000
    status, _, answer = raw(
        site,
        b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 99999999999\r\n"
        + f"Authorization: Bearer {site.tenant.api_key}\r\nExpect: 100-continue\r\n\r\n".encode(),
    )
    assert status == 413
    assert json.loads(answer)["error"]["code"] == 413
    site.assert_nothing_happened()


def test_a_chunked_body_is_read_whole(site: Site) -> None:
    site.publish()
    body = json.dumps(site.chat_body("one two")).encode()
    answer = site.post(None, data=(body[at : at + 7] for at in range(0, len(body), 7)))
    assert answer.json()["choices"][0]["message"]["content"] == "You said: one two"


def test_an_http_1_0_client_gets_its_answer_and_a_closed_connection(site: Site) -> None:
    site.publish()
    request = post_bytes(site, site.chat_body("one two"))
    old = request.replace(b"HTTP/1.1\r\nHost: localhost\r\n", b"HTTP/1.0\r\n")
    status, headers, answer = raw(site, old)
    assert status == 200
    assert headers["connection"] == "close"
    assert json.loads(answer)["choices"][0]["message"]["content"] == "You said: one two"


def test_pipelined_requests_are_answered_in_order(site: Site) -> None:
    site.publish()
    words = ("first", "second", "third")
    asked = b"".join(post_bytes(site, site.chat_body(word)) for word in words)
    answers = []
    with dial(site, asked) as line, line.makefile("rb") as file:
        for _ in words:
            assert file.readline() == b"HTTP/1.1 200 OK\r\n"
            length = 0
            while (header := file.readline()) != b"\r\n":
                name, _, value = header.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            answers.append(json.loads(file.read(length)))
    contents = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert contents == ["You said: first", "You said: second", "You said: third"]


def test_a_caller_that_leaves_during_its_body_creates_no_generation(site: Site) -> None:
    site.publish()
    with dial(site, post_bytes(site, site.chat_body())[:-9]):
        pass
    assert site.chat("still here").status_code == 200
    assert site.settled().status == "completed"


def test_an_error_after_admission_names_its_generation(site: Site) -> None:
    site.publish("sim-status:500")
    answer = site.chat()
    assert answer.status_code == 502
    assert answer.headers["X-Generation-Id"] == site.settled().id
