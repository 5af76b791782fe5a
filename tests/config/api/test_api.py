"""Strict parsing of JSON bodies, and refusals that happen before any field is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rest_framework.test import APIClient

from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant

ROUTE = "/api/v1/end-users"


def send(
    client: APIClient, body: bytes, content_type: str | None = "application/json", **headers: str
) -> Any:
    return client.generic("POST", ROUTE, body, content_type=content_type, headers=headers)


def refusal(status: int, message: str, error_type: str = "invalid_request") -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "metadata": {"error_type": error_type}}}


TWICE = "The body names a key twice in one object."
TOO_DEEP = "The body has more than 32 levels of nesting. Send less in one request."
TOO_MANY = "The body has more than 200,000 values. Send less in one request."
OUT_OF_RANGE = "The body holds a number that is out of range."
NOT_UTF8 = "The body is not valid UTF-8."
NO_OBJECT = "The body must be a JSON object."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b" ", "The body is not valid JSON (Expecting value)."),
        (b"{", "The body is not valid JSON (Expecting property name enclosed in double quotes)."),
        (b'{"user": "a"', "The body is not valid JSON (Expecting ',' delimiter)."),
        (b'{"user": "a"} x', "The body is not valid JSON (Extra data)."),
        (b'{"user": "a"}{"user": "b"}', "The body is not valid JSON (Extra data)."),
        (b"{'user': 'a'}", ("The body is not valid JSON (Expecting property name enclosed in "
                           "double quotes).")),
        (b'{"user": "a\nb"}', "The body is not valid JSON (Invalid control character at)."),
        (b'{"user": "\\x41"}', "The body is not valid JSON (Invalid \\escape)."),
        (b"user=a", "The body is not valid JSON (Expecting value)."),
        (b"[]", NO_OBJECT),
        (b'[{"user": "a"}]', NO_OBJECT),
        (b'"user"', NO_OBJECT),
        (b"5", NO_OBJECT),
        (b"true", NO_OBJECT),
        (b"null", NO_OBJECT),
        (b'{"user": "a", "user": "b"}', TWICE),
        (b'{"user": "a", "user": "a"}', TWICE),
        (b'{"user": "a", "\\u0075ser": "b"}', TWICE),
        (b'{"x": {"y": 1, "y": 2}}', TWICE),
        (b'{"x": [' + b"1," * 200_000 + b"1]}", TOO_MANY),
        (b'{"user": NaN}', "The body holds NaN, which is not JSON."),
        (b'{"user": Infinity}', "The body holds Infinity, which is not JSON."),
        (b'{"user": -Infinity}', "The body holds -Infinity, which is not JSON."),
        (b'{"user": ' + b"9" * 5000 + b"}", "The body holds a number that is too long."),
        (b'{"user": 1e99999999999999999999}', OUT_OF_RANGE),
        (b'{"x": {"y": [-1.5e-99999999999999999999]}}', OUT_OF_RANGE),
        (b'{"x": ' + b"[" * 32 + b"]" * 32 + b"}", TOO_DEEP),
        (b'{"x": ' * 33 + b"1" + b"}" * 33, TOO_DEEP),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", TOO_DEEP),
        (b'{"x": ' * 100_000, TOO_DEEP),
        (b'{"user": "\xff"}', NOT_UTF8),
        (b'{"user": "\xc0\xaf"}', NOT_UTF8),
        (b'{"user": "\xed\xa0\x80"}', NOT_UTF8),
        ('{"user": "ü"}'.encode("latin-1"), NOT_UTF8),
        ('{"user": "a"}'.encode("utf-16"), NOT_UTF8),
        (b'{"\\u0000": 1}', "The body has a key with control characters."),
        (b'{"\\ud800": 1}', "The body has a key with control characters."),
    ],
)  # fmt: skip
def test_a_body_that_is_not_a_strict_json_object_is_refused(
    management: APIClient, body: bytes, message: str
) -> None:
    with snapshots.unchanged():
        response = send(management, body)
        assert response.status_code == 400
        assert response.json() == refusal(400, message)


def test_an_empty_body_is_an_object_without_fields(management: APIClient) -> None:
    response = send(management, b"")
    assert response.status_code == 400
    assert response.json()["error"]["metadata"]["fields"] == {"user": "This field is required."}


def test_a_byte_order_mark_is_refused(management: APIClient) -> None:
    response = send(management, b'\xef\xbb\xbf{"user": "a"}')
    assert response.status_code == 400
    assert response.json()["error"]["metadata"] == {"error_type": "invalid_request"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"user": "a"}',
        b' \t\r\n{"user": "a"}\n',
        b'{"\\u0075ser": "\\u0061"}',
        '{"user": "ü😀"}'.encode(),
        b'{"user": "\\ud83d\\ude00"}',
    ],
)
def test_a_strict_json_object_is_accepted(management: APIClient, body: bytes) -> None:
    response = send(management, body)
    assert response.status_code == 201
    assert response.json()["data"]["user"] == json.loads(body)["user"]


def test_a_body_of_the_greatest_depth_is_read(management: APIClient) -> None:
    response = send(management, b'{"x": ' + b"[" * 31 + b"]" * 31 + b"}")
    assert response.status_code == 400
    assert response.json()["error"]["metadata"]["fields"] == {"x": "Unknown field."}


@pytest.mark.parametrize(
    "content_type",
    [
        "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "application/xml", "application/jsonp", "text/json", "application/merge-patch+json",
        "nonsense",
    ],
)  # fmt: skip
def test_another_content_type_is_refused(management: APIClient, content_type: str) -> None:
    with snapshots.unchanged():
        response = send(management, b'{"user": "a"}', content_type)
        assert response.status_code == 415
        assert response.json() == refusal(
            415, "Send a JSON body with 'Content-Type: application/json'."
        )


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"]
)
def test_every_spelling_of_the_json_content_type_is_accepted(
    management: APIClient, content_type: str
) -> None:
    assert send(management, b'{"user": "a"}', content_type).status_code == 201


def test_a_body_of_the_greatest_size_is_read(management: APIClient, settings: Any) -> None:
    settings.MAX_REQUEST_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    body = b'{"user": "a"}'
    assert send(management, body + b" " * (100 - len(body))).status_code == 201
    before = snapshots.everything()
    response = send(management, body + b" " * (101 - len(body)))
    assert response.status_code == 413
    assert response.json() == refusal(413, "The request body is too large.", "payload_too_large")
    assert snapshots.everything() == before


def test_at_most_ten_unknown_fields_are_named_in_100_characters_each(management: APIClient) -> None:
    response = send(management, json.dumps({f"{n}" * 200: 1 for n in range(1, 50)}).encode())
    fields = response.json()["error"]["metadata"]["fields"]
    assert len(fields) == 10
    assert {len(name) for name in fields} == {100}


@pytest.mark.parametrize(
    ("path", "name", "values"),
    [
        ("/api/v1/models", "supported_parameters", ("tools", "seed")),
        ("/api/v1/keys", "offset", ("0", "1")),
        ("/api/v1/keys", "include_disabled", ("true", "false")),
        ("/api/v1/activity", "group_by", ("end_user", "end_user")),
        ("/api/v1/generation", "id", ("gen-1-a", "gen-1-b")),
    ],
)
def test_a_query_parameter_is_sent_once(
    management: APIClient, path: str, name: str, values: tuple[str, str]
) -> None:
    answer = management.get(f"{path}?" + "&".join(f"{name}={value}" for value in values))
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["metadata"]["fields"] == {name: "Must be sent once."}


@pytest.mark.parametrize("last", ["true", "false"])
def test_a_flag_that_is_sent_twice_deletes_nothing(
    management: APIClient, tenant: Tenant, last: str
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    draft = factories.make_draft(tenant, model, provider, base_url="https://api.example.com/v1")
    path = f"/api/v1/private-endpoints/{draft.pk}?draft_only=true&draft_only={last}"
    answer = management.delete(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["fields"] == {"draft_only": "Must be sent once."}
    draft.refresh_from_db()
    assert draft.deleted_at is None
