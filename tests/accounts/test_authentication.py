"""Authentication by the ``Authorization`` header: accepted keys, refusals and query counts."""

from __future__ import annotations

import http.client
import json
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from accounts.models import ApiKey, KeyDigest
from config.secrets import generate_api_key
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import refusal

ROUTE = "/api/v1/key"
MISSING = "Authentication is missing or invalid. Send 'Authorization: Bearer <API key>'."
INVALID = "The API key is not valid."
# Headers that hold one text behind the scheme, which is no key.
WELL_FORMED = (
    'Bearer "{key}"', "Bearer null", "Bearer undefined", "Bearer sk-cw-", "Bearer {upper}",
    "Bearer {typo}", "Bearer {cut}", "Bearer {other_prefix}",
)  # fmt: skip


refused = partial(refusal, 401, "authentication")


def ask_without_queries(client: APIClient, headers: dict[str, str]) -> Any:
    """Sends a request with these headers, which is refused without a query."""
    with CaptureQueriesContext(connection) as captured:
        response = client.get(ROUTE, headers=headers)
    assert response.status_code == 401
    assert len(captured) == 0
    return response


@pytest.mark.parametrize("header", [None, ""])
def test_a_missing_header_is_refused_without_a_query(
    anonymous: APIClient, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = ask_without_queries(anonymous, headers)
    assert response.json() == refused(MISSING)
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "{key}", "Bearer", "Bearer ", "Bearer {key}\n", "Bearer\u00a0{key}", "Bearer {key},",
        "Bearer {key}, Bearer {key}", "Bearer {key},{key}", "Bearer {key} {key}", "Basic {key}",
        "Token {key}", "Bearer {key}é", *WELL_FORMED, "Bearer {fullwidth}",
    ],
)  # fmt: skip
def test_a_malformed_header_is_refused_without_a_query(
    anonymous: APIClient, tenant: Tenant, header: str
) -> None:
    key = tenant.management_key
    swapped = "0" if key[20] != "0" else "1"
    text = header.format(
        key=key,
        upper=key.upper(),
        typo=key[:20] + swapped + key[21:],
        cut=key[:-1],
        other_prefix="sk" + key[2:],
        fullwidth=key[:-1] + chr(ord(key[-1]) + 0xFEE0),
    )
    response = ask_without_queries(anonymous, {"Authorization": text})
    assert response.json() == refused(INVALID if header in WELL_FORMED else MISSING)


@pytest.mark.parametrize(
    "header", ["bearer {key}", "BEARER {key}", "Bearer  {key}", "Bearer {key} ", "\tBearer\t {key}"]
)
def test_case_of_the_scheme_and_blanks_around_the_key_are_ignored(
    anonymous: APIClient, tenant: Tenant, header: str
) -> None:
    sent = {"Authorization": header.format(key=tenant.management_key)}
    assert anonymous.get(ROUTE, headers=sent).status_code == 200


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X-Api-Key": "KEY"}, None),
        ({"X-Api-Key": " KEY "}, None),
        ({"X-Api-Key": "KEY", "Authorization": "Bearer KEY"}, None),
        ({"X-Api-Key": "", "Authorization": "Bearer KEY"}, None),
        ({"X-Api-Key": "KEY", "Authorization": ""}, None),
        ({"X-Api-Key": "KEY", "Authorization": "Bearer "}, None),
        ({"X-Api-Key": "KEY", "Authorization": "bearer"}, None),
        ({"X-Api-Key": "", "Authorization": "Bearer "}, MISSING),
        ({"X-Api-Key": ""}, MISSING),
        ({"X-Api-Key": "wrong"}, INVALID),
        ({"X-Api-Key": "KEY,KEY"}, MISSING),
        ({"X-Api-Key": "KEY", "Authorization": "Basic eDp5"}, MISSING),
        (
            {"X-Api-Key": "KEY", "Authorization": "Bearer OTHER"},
            "Authorization and x-api-key hold different keys; send one of them.",
        ),
    ],
)
def test_a_key_may_come_in_either_header(
    anonymous: APIClient, tenant: Tenant, headers: dict[str, str], message: str | None
) -> None:
    keys = {"KEY": tenant.management_key, "OTHER": tenant.api_key}
    for name, key in keys.items():
        headers = {header: value.replace(name, key) for header, value in headers.items()}
    response = anonymous.get(ROUTE, headers=headers)
    assert response.status_code == (200 if message is None else 401)
    if message is not None:
        assert response.json() == refused(message)


def test_a_well_formed_key_costs_one_query(anonymous: APIClient) -> None:
    key = generate_api_key(is_management=True).reveal()
    with CaptureQueriesContext(connection) as captured:
        response = anonymous.get(ROUTE, headers={"Authorization": f"Bearer {key}"})
    assert response.json() == refused(INVALID)
    assert len(captured) == 1


def test_the_response_does_not_contain_the_key(anonymous: APIClient) -> None:
    key = generate_api_key(is_management=True).reveal()
    response = anonymous.get(ROUTE, headers={"Authorization": f"Bearer {key}"})
    assert key not in response.content.decode()


@pytest.mark.parametrize("place", ["query", "cookie"])
def test_a_key_outside_the_headers_is_ignored(
    anonymous: APIClient, tenant: Tenant, place: str
) -> None:
    key = tenant.management_key
    if place == "query":
        response = anonymous.get(f"{ROUTE}?api_key={key}&access_token={key}")
    else:
        anonymous.cookies["authorization"] = f"Bearer {key}"
        response = anonymous.get(ROUTE)
    assert response.status_code == 401
    assert response.json() == refused(MISSING)


def test_a_revoked_key_is_refused_on_the_next_request(management: APIClient) -> None:
    assert management.get(ROUTE).status_code == 200
    key = ApiKey.objects.get(is_management=True)
    assert key.revoke() is True
    assert key.revoke() is False
    response = management.get(ROUTE)
    assert response.json() == refused("The API key is disabled.")


def test_a_key_whose_digest_differs_is_refused(tenant: Tenant) -> None:
    KeyDigest.objects.filter(api_key__is_management=True).update(digest="0" * 64)
    assert factories.client(tenant.management_key).get(ROUTE).json() == refused(INVALID)


@pytest.mark.parametrize("path", [ROUTE, "/api/v1/chat/completions"])
def test_two_authorization_headers_are_refused(server: str, path: str) -> None:
    tenant = factories.make_tenant()
    address = urlsplit(server)
    line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    body = json.dumps({"model": "x", "messages": []}) if path != ROUTE else ""
    line.putrequest("POST" if body else "GET", path)
    for _ in range(2):
        line.putheader("Authorization", f"Bearer {tenant.api_key}")
    line.putheader("Content-Type", "application/json")
    line.putheader("Content-Length", str(len(body)))
    line.endheaders(body.encode())
    response = line.getresponse()
    error = json.loads(response.read())["error"]
    line.close()
    assert (response.status, error["metadata"]) == (401, {"error_type": "authentication"})
