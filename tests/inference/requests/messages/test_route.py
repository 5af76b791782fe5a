"""`/messages` on the running service."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from django.conf import LazySettings

from accounts.models import ApiKey
from inference.models import Generation
from inference.requests.messages.events import PING
from tests.support import factories
from tests.support.inference.messages import asked, events_of, text
from tests.support.inference.site import MESSAGES, Site


def as_keys(site: Site, headers: dict[str, str]) -> dict[str, str]:
    """Returns headers with the keys that KEY and OTHER stand for."""
    for name, key in {"KEY": site.tenant.api_key, "OTHER": site.tenant.management_key}.items():
        headers = {header: value.replace(name, key) for header, value in headers.items()}
    return headers


def send(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> requests.Response:
    sent = {"x-api-key": site.tenant.api_key} if headers is None else headers
    return requests.post(
        f"{site.server}{MESSAGES}", json=asked(**fields), headers=sent, timeout=60, stream=True
    )


def count(site: Site, key: str | None = None, **fields: Any) -> requests.Response:
    return requests.post(
        f"{site.server}{MESSAGES}/count_tokens",
        json={"model": "acme/falcon", "messages": [{"role": "user", "content": "Hi"}], **fields},
        headers={"x-api-key": key or site.tenant.api_key},
        timeout=60,
    )


def test_tokens_are_counted_by_size_and_cost_nothing(site: Site) -> None:
    found = count(site)
    assert (found.status_code, found.json()) == (200, {"input_tokens": 5})
    assert "X-Generation-Id" not in found.headers
    assert found.headers["request-id"] == found.headers["X-Request-Id"]
    assert count(site, max_tokens=5, system="x" * 400).json() == {"input_tokens": 5 + 4 + 100}
    tool = {"name": "f", "input_schema": {"type": "object", "description": "x" * 4000}}
    assert count(site, tools=[tool]).json()["input_tokens"] > 1005
    assert not Generation.objects.exists()
    assert not site.dialled()


def test_count_tokens_refuses_an_invalid_request_and_other_keys(site: Site) -> None:
    refused = count(site, messages=[])
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "type": "invalid_request_error",
        "message": "messages: Expected array of length >= 1.",
        "details": {
            "error_code": "invalid_request",
            "fields": {"messages": "Expected array of length >= 1."},
        },
    }
    for key, status, kind in (
        ("sk-unknown", 401, "authentication_error"),
        (site.tenant.management_key, 403, "permission_error"),
    ):
        refused = count(site, key)
        assert (refused.status_code, refused.json()["type"]) == (status, "error")
        assert refused.json()["error"]["type"] == kind
    ApiKey.objects.update(disabled=True)
    assert count(site).status_code == 401


def test_a_message_costs_as_much_as_its_chat(published: Site) -> None:
    found = send(published, content="one two", metadata={"user_id": "ada@example.com"})
    assert found.status_code == 200, found.text
    row = published.settled()
    assert found.json() == {
        "id": row.id,
        "type": "message",
        "role": "assistant",
        "model": "acme/falcon",
        "content": [text("You said: one two")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
            "cost": 0.00001,
            "is_byok": False,
            "cost_details": {
                "upstream_inference_cost": 0.00001,
                "upstream_inference_prompt_cost": 0.000002,
                "upstream_inference_completions_cost": 0.000008,
            },
        },
        "provider": "Acme AI",
    }
    assert (row.status, row.operation, row.cost_nano) == ("completed", "chat/completions", 10_000)
    assert found.headers["request-id"] == found.headers["x-request-id"]
    assert found.headers["x-generation-id"] == row.id
    [request] = published.dialled()
    assert request.body["max_tokens"] == 50
    assert "ada@example.com" not in json.dumps(request.body)


def test_a_quiet_stream_is_kept_alive_with_pings(site: Site, settings: LazySettings) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    site.publish("sim-gated")
    chunks = send(site, content="one two", stream=True).iter_content(None)
    # Comments may come before the first event.
    first = next(chunk for chunk in chunks if chunk[:1] != b":")
    assert first.startswith(b"event: message_start\n")
    assert next(chunks) == PING
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    site.upstream.release(20)
    rest = b"".join(chunks).replace(PING, b"")
    words = [
        each["delta"]["text"] for each in events_of(rest) if "index" in each and "delta" in each
    ]
    assert "".join(words) == "You said: one two"
    assert rest.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert site.settled().status == "completed"


def test_a_caller_that_leaves_ends_the_upstream(site: Site) -> None:
    site.publish("sim-gated")
    site.upstream.release(3)
    with send(site, content="one two", stream=True) as found:
        lines = found.iter_lines(chunk_size=None)
        assert next(line for line in lines if b" one" in line or b" said" in line)
    [request] = site.dialled()
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert site.settled().status == "cancelled"


def test_a_stream_that_breaks_off_ends_in_an_error(site: Site) -> None:
    site.publish("sim-reset-stream")
    events = events_of(send(site, content="one two", stream=True).content)
    kinds = ["message_start", "content_block_start", "content_block_delta", "error"]
    assert [each["type"] for each in events] == kinds
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["error"]["details"]["error_code"] == "provider_unavailable"
    assert site.settled().status == "failed"


@pytest.mark.parametrize("stream", [False, True])
def test_an_overloaded_upstream_is_an_overloaded_error(site: Site, stream: bool) -> None:
    site.publish("sim-status:529")
    found = send(site, stream=stream)
    assert found.status_code == 529
    assert found.json()["error"]["type"] == "overloaded_error"
    assert found.json()["request_id"] == found.headers["request-id"]
    assert site.settled().status == "failed"


MISSING = "Authentication is missing or invalid. Send 'Authorization: Bearer <API key>'."
TWO_KEYS = "Authorization and x-api-key hold different keys; send one of them."


def test_a_request_without_exactly_one_valid_key_is_refused(published: Site) -> None:
    for headers, message in (
        ({}, MISSING),
        ({"x-api-key": "wrong"}, "The API key is not valid."),
        ({"Authorization": "Bearer wrong"}, "The API key is not valid."),
        ({"x-api-key": "KEY", "Authorization": "Basic eDp5"}, MISSING),
        ({"x-api-key": "KEY", "Authorization": "Bearer OTHER"}, TWO_KEYS),
    ):
        found = send(published, headers=as_keys(published, headers))
        assert found.status_code == 401, headers
        assert found.json() == {
            "type": "error",
            "error": {
                "type": "authentication_error",
                "message": message,
                "details": {"error_code": "authentication"},
            },
            "request_id": found.headers["request-id"],
        }
        assert found.headers["WWW-Authenticate"] == "Bearer"
    published.assert_nothing_happened()


@pytest.mark.parametrize(
    "names", [("x-api-key",), ("Authorization",), ("x-api-key", "Authorization")]
)
def test_a_key_may_be_sent_in_either_header(published: Site, names: tuple[str, ...]) -> None:
    key = published.tenant.api_key
    values = {"x-api-key": key, "Authorization": f"Bearer {key}"}
    assert send(published, headers={name: values[name] for name in names}).status_code == 200


def test_every_face_takes_the_key_in_either_header(site: Site) -> None:
    """A caller whose key is known gets as far as the body, which is no object."""
    for path in ("chat/completions", "responses", "embeddings", "audio/speech"):
        for headers, message in (
            ({"x-api-key": "KEY"}, None),
            ({"x-api-key": "KEY", "Authorization": "Bearer  KEY"}, None),
            ({"x-api-key": "wrong"}, "The API key is not valid."),
            ({"x-api-key": "KEY", "Authorization": "Bearer OTHER"}, TWO_KEYS),
        ):
            url = f"{site.server}/api/v1/{path}"
            found = requests.post(url, json=[], headers=as_keys(site, headers), timeout=60)
            assert found.status_code == (400 if message is None else 401), (path, headers)
            assert message is None or found.json()["error"]["message"] == message
    site.assert_nothing_happened()


def test_another_key_on_a_kept_connection_is_another_caller(published: Site) -> None:
    """The digests of a key are remembered for its connection, whichever header brought it."""
    found = []
    with requests.Session() as session:
        for headers in (
            {"x-api-key": published.tenant.api_key},
            {"Authorization": f"Bearer {published.tenant.api_key}"},
            {"x-api-key": published.tenant.management_key},
            {"Authorization": published.tenant.api_key},
        ):
            answer = session.post(
                f"{published.server}/api/v1/chat/completions",
                json=published.chat_body(),
                headers=headers,
                timeout=60,
            )
            found.append(answer.status_code)
    assert found == [200, 200, 403, 401]


def test_a_refusal_has_the_format_of_messages_and_stores_nothing(
    published: Site, settings: LazySettings
) -> None:
    for fields, status, kind in (
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error"),
        ({"model": "acme/unknown"}, 404, "not_found_error"),
        ({"session_id": "s" * 257}, 400, "invalid_request_error"),
        ({"session_id": "a\n"}, 400, "invalid_request_error"),
        ({"provider": {"options": {"acme": {"n": 2}}}}, 400, "invalid_request_error"),
    ):
        found = send(published, **fields)
        assert (fields, found.status_code, found.json()["error"]["type"]) == (fields, status, kind)
    # A caller without credits gets a billing error.
    poor = factories.make_tenant("Poor", credits_usd=0)
    found = send(published, headers={"x-api-key": poor.api_key})
    assert (found.status_code, found.json()["error"]["type"]) == (402, "billing_error")
    assert found.json()["error"]["details"]["error_code"] == "payment_required"
    # Other methods and a large body are refused.
    found = requests.get(f"{published.server}{MESSAGES}", timeout=60)
    assert (found.status_code, found.headers["Allow"]) == (405, "POST")
    assert found.json()["error"]["type"] == "invalid_request_error"
    settings.MAX_REQUEST_BYTES = 10
    found = send(published)
    assert (found.status_code, found.json()["error"]["type"]) == (413, "request_too_large")
    published.assert_nothing_happened()


def test_concurrent_messages_do_not_mix(published: Site) -> None:
    words = [f"word{number}" for number in range(20)]

    def said(word: str) -> str:
        events = events_of(send(published, content=word, stream=True).content)
        deltas = (each["delta"] for each in events if each["type"] == "content_block_delta")
        return "".join(piece["text"] for piece in deltas)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(said, words)) == [f"You said: {word}" for word in words]
