"""Bring-your-own-key credentials: creation, listing, and encryption of the secret."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.models import Provider
from config import secrets
from config.credentials import Secret
from config.secrets import DecryptionFailed, digest_api_key
from tests.support import factories
from tests.support.credentials import MALFORMED
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_member, make_workspace, missing, named, send, stamp
from tests.support.upstreams import clouds

ROUTE = "/api/v1/byok"
SECRET = "canary-8f14e45fceea167a5a36"


def post(client: APIClient, **fields: Any) -> Any:
    """Creates a credential of the provider acme with these fields."""
    return send(client, "POST", "byok", {"provider": "acme", "key": SECRET, **fields})


def test_create_returns_every_field_except_the_secret(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    response = post(management)
    assert response.status_code == 201
    stored = ByokCredential.objects.get()
    assert response.json() == {
        "data": {
            "id": str(stored.pk),
            "provider": "acme",
            "workspace_id": str(tenant.workspace.pk),
            "name": None,
            "label": "…5a36",
            "sort_order": 0,
            "disabled": False,
            "is_fallback": False,
            "is_required": False,
            "is_byok_only": False,
            "allowed_models": None,
            "allowed_api_key_hashes": None,
            "allowed_user_ids": None,
            "allowed_hosts": None,
            "declared_region": None,
            "declared_zdr": None,
            "created_at": stamp(stored.created_at),
            "health": {"state": "working", "since": None, "upstream_status": None},
        }
    }
    assert stored.organization == tenant.organization
    assert stored.reveal() == Secret(SECRET)


@pytest.mark.parametrize(
    ("members", "label"),
    [
        (clouds.azure(), f"…{clouds.AZURE_KEY[-4:]}"),
        (clouds.bedrock(access_key_id="AKIAIOSFODNN7EXAMPLE"), "…MPLE"),
        (clouds.bedrock_key(api_key="bedrock-api-key-0123"), "…0123"),
        (clouds.vertex(), f"…{clouds.vertex()['service_account']['private_key_id'][-4:]}"),
        ({"api_key": "sk-0123456789abcdef", "region": "eu"}, "…cdef"),
        ({"api_key": "0123456789abcdef"}, "…cdef"),
        ({"api_key": "0123456789abcde"}, "…"),
        ({"api_key": "sk-0123456789abc\ud800"}, "…"),
        ({"api_key": "sk-0123456789abc\n"}, "…"),
        ({"api_key": 5}, "…"),
        ({"token": "sk-0123456789abcdef"}, "…"),
        ({"service_account": "sk-0123456789abcdef"}, "…"),
        ({}, "…"),
    ],
)
def test_the_label_of_a_json_credential_shows_the_end_of_its_key(
    members: dict[str, Any], label: str
) -> None:
    assert Secret(json.dumps(members)).label == label


def test_create_stores_every_field(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    workspace = make_workspace(tenant.organization)
    member = make_member(tenant.organization)
    factories.make_model("acme/falcon")
    fields = {
        "name": "Production",
        "disabled": True,
        "is_fallback": False,
        "is_required": True,
        "is_byok_only": True,
        "allowed_models": ["acme/falcon"],
        "allowed_api_key_hashes": [digest_api_key(tenant.api_key)],
        "allowed_user_ids": [str(member.pk)],
        "allowed_hosts": ["api.acme.example", "127.0.0.1"],
        "declared_region": "europe",
        "declared_zdr": True,
    }
    response = post(management, **fields, workspace_id=str(workspace.pk))
    assert response.status_code == 201
    data = response.json()["data"]
    assert {name: data[name] for name in fields} == fields
    assert data["workspace_id"] == str(workspace.pk)
    assert management.get(ROUTE).json() == {"data": [data], "total_count": 1}


def test_no_response_log_or_row_contains_the_secret(
    management: APIClient, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    created = post(management)
    listed = management.get(ROUTE)
    refused = post(management, provider="unknown")
    malformed = post(management, key=f"{SECRET}\n", declared_zdr=1)
    assert (created.status_code, refused.status_code, malformed.status_code) == (201, 400, 400)
    stored = ByokCredential.objects.get()
    for text in (
        *(response.content.decode() for response in (created, listed, refused, malformed)),
        caplog.text,
        str(stored),
        repr(stored.__dict__),
        bytes(stored.sealed).decode("latin-1"),
        repr(snapshots.everything()),
    ):
        assert SECRET not in text


@pytest.mark.parametrize(
    "key",
    [
        "12345678",
        "~" * 4096,
        '{"api_key": "12345678"}',
        '{"query": {"a": "b"},\n "headers": {"X-Key": "x"}}',
    ],
)
def test_create_accepts_a_secret(management: APIClient, provider: Provider, key: str) -> None:
    assert post(management, key=key).status_code == 201
    assert ByokCredential.objects.get().reveal() == Secret(key)


@pytest.mark.parametrize(("change", "named"), MALFORMED)
def test_create_refuses_invalid_fields_by_name(
    management: APIClient, provider: Provider, change: dict[str, Any], named: str
) -> None:
    with snapshots.unchanged():
        response = post(management, **change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["metadata"]["error_type"] == "invalid_request"
    (field,) = error["metadata"]["fields"]
    assert field.partition(".")[0].partition("[")[0] == named.partition("[")[0]


@pytest.mark.parametrize(
    "name", ["falcon", "acme/*", "acme/falcon:nitro", "acme/falcom", "mine/own"]
)
def test_create_refuses_a_model_that_no_request_has(
    management: APIClient, provider: Provider, name: str
) -> None:
    factories.make_model("acme/falcon")
    other = factories.make_tenant("Other").organization
    factories.make_model("mine/own", canonical_slug="mine/own", organization=other)
    with snapshots.unchanged():
        response = post(management, allowed_models=["acme/falcon", name])
    assert named(response) == (400, {"allowed_models"})


def test_create_takes_both_slugs_of_a_model_and_those_of_own_models(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    factories.make_model("acme/falcon")
    owner = tenant.organization
    factories.make_model("mine/own", canonical_slug="mine/own", organization=owner)
    names = ["acme/falcon", "acme/falcon-2026-01-01", "mine/own"]
    response = post(management, allowed_models=names)
    assert response.status_code == 201
    assert response.json()["data"]["allowed_models"] == names


def test_create_requires_a_provider_and_a_key(management: APIClient) -> None:
    assert named(send(management, "POST", "byok", {})) == (400, {"provider", "key"})


def test_create_refuses_the_hash_of_a_foreign_key(
    management: APIClient, provider: Provider
) -> None:
    foreign = digest_api_key(factories.make_tenant("Other").api_key)
    with snapshots.unchanged():
        response = post(management, allowed_api_key_hashes=[foreign])
    assert response.status_code == 400
    assert response.json()["error"]["metadata"]["fields"] == {
        "allowed_api_key_hashes": f"{foreign} is the hash of no key of the organization."
    }


def test_create_refuses_a_foreign_workspace(management: APIClient, provider: Provider) -> None:
    foreign = factories.make_tenant("Other").workspace
    with snapshots.unchanged():
        for workspace_id in (foreign.pk, uuid4()):
            response = post(management, workspace_id=str(workspace_id))
            assert (response.status_code, response.json()) == (404, missing("workspace"))


def test_create_requires_a_json_object_if_the_credential_holds_the_url(
    management: APIClient,
) -> None:
    factories.make_provider("azure", name="Azure", dialect="azure", base_url=None)
    with snapshots.unchanged():
        response = post(management, provider="azure")
    assert named(response) == (400, {"key"})
    key = json.dumps({"api_key": SECRET, "endpoint_url": "https://x.openai.azure.com"})
    assert post(management, provider="azure", key=key).status_code == 201


def test_create_refuses_an_unlisted_provider(management: APIClient, provider: Provider) -> None:
    provider.is_listed = False
    provider.save_fields("is_listed")
    assert post(management).status_code == 400
    assert ByokCredential.objects.count() == 0


def test_credentials_of_a_provider_are_tried_in_creation_order(
    management: APIClient, provider: Provider
) -> None:
    factories.make_provider("other")
    for name in ("acme", "other", "acme", "acme", "other"):
        post(management, provider=name)
    rows = management.get(ROUTE).json()["data"]
    assert [(row["provider"], row["sort_order"]) for row in rows] == [
        ("acme", 0), ("acme", 1), ("acme", 2), ("other", 0), ("other", 1),
    ]  # fmt: skip


def test_the_list_filters(management: APIClient, tenant: Tenant, provider: Provider) -> None:
    other = factories.make_provider("other")
    workspace = make_workspace(tenant.organization)
    one = factories.make_credential(tenant, provider)
    two = factories.make_credential(tenant, other, workspace=workspace)
    three = factories.make_credential(tenant, other, workspace=None)
    factories.make_credential(factories.make_tenant("Other"), provider)

    def listed(query: str) -> list[str]:
        answer = management.get(f"{ROUTE}{query}").json()
        assert answer["total_count"] == len(answer["data"])
        return [row["id"] for row in answer["data"]]

    assert listed("") == [str(one.pk), str(two.pk), str(three.pk)]
    assert listed("?provider=acme") == [str(one.pk)]
    assert listed("?provider=acm") == []
    assert listed("?provider=%25") == []
    assert listed(f"?workspace_id={workspace.pk}") == [str(two.pk)]
    assert listed(f"?workspace_id={workspace.pk}&provider=acme") == []
    assert listed(f"?workspace_id={uuid4()}") == []
    assert listed("?unknown=1") == [str(one.pk), str(two.pk), str(three.pk)]


def test_the_list_omits_deleted_credentials(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    factories.make_credential(tenant, provider).remove()
    assert management.get(ROUTE).json() == {"data": [], "total_count": 0}


def test_the_list_is_paged(management: APIClient, tenant: Tenant, provider: Provider) -> None:
    ids = [str(factories.make_credential(tenant, provider).pk) for _ in range(51)]

    def page(query: str) -> list[str]:
        answer = management.get(f"{ROUTE}{query}").json()
        assert answer["total_count"] == 51
        return [row["id"] for row in answer["data"]]

    assert page("") == ids[:50]
    assert page("?limit=100") == ids
    assert page("?limit=1") == ids[:1]
    assert page("?offset=49") == ids[49:]
    assert page("?offset=50&limit=1") == ids[50:]
    assert page("?offset=51") == []
    assert page("?offset=999999999999999999") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(
            (f"limit={value}", "limit")
            for value in ("0", "101", "-1", "1.5", "", "x", "1e1", "%201")
        ),
        *((f"offset={value}", "offset") for value in ("-1", "x", "+1", "1" * 19, "%D9%A3")),
        *((f"workspace_id={value}", "workspace_id") for value in ("x", "", "1")),
        *((f"provider={value}", "provider") for value in ("a%00b", "%0a", "%c2%85")),
    ],
)
def test_the_list_refuses_a_malformed_query(management: APIClient, query: str, field: str) -> None:
    assert named(management.get(f"{ROUTE}?{query}")) == (400, {field})


def test_a_secret_decrypts_in_its_own_row_only(tenant: Tenant, provider: Provider) -> None:
    mine = factories.make_credential(tenant, provider, "secret-of-mine-0123456789")
    neighbour = factories.make_credential(tenant, provider, "secret-of-neighbour-012345")
    mine.sealed, neighbour.sealed = neighbour.sealed, mine.sealed
    for credential in (mine, neighbour):
        credential.save_fields("sealed")
        credential.refresh_from_db()
        with pytest.raises(DecryptionFailed):
            credential.reveal()


@pytest.mark.parametrize("part", ["organization", "workspace", "provider_slug"])
def test_a_secret_does_not_decrypt_under_another_owner(
    tenant: Tenant, provider: Provider, part: str
) -> None:
    credential = factories.make_credential(tenant, provider)
    other = factories.make_tenant("Other")
    match part:
        case "organization":
            credential.organization = other.organization
        case "workspace":
            credential.workspace = other.workspace
        case _:
            credential.provider_slug = "other"
    with pytest.raises(DecryptionFailed):
        credential.reveal()


def test_rotation_to_the_same_secret_changes_the_ciphertext(
    tenant: Tenant, provider: Provider
) -> None:
    one = factories.make_credential(tenant, provider)
    before = bytes(one.sealed)
    one.rotate(one.reveal())
    assert bytes(one.sealed) != before
    assert one.version == 2
    assert one.reveal() == Secret("test-credential-0123456789")


def test_every_altered_byte_fails_decryption(tenant: Tenant, provider: Provider) -> None:
    credential = factories.make_credential(tenant, provider)
    good = bytes(credential.sealed)
    for place in range(len(good)):
        credential.sealed = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with pytest.raises(DecryptionFailed):
            credential.reveal()
    for length in range(len(good)):
        credential.sealed = good[:length]
        with pytest.raises(DecryptionFailed):
            credential.reveal()


def test_a_secret_does_not_decrypt_without_its_key(
    tenant: Tenant, provider: Provider, settings: Any
) -> None:
    credential = factories.make_credential(tenant, provider)
    first = settings.CREDENTIAL_KEYS
    settings.CREDENTIAL_KEYS = [b"k" * 32]
    with pytest.raises(DecryptionFailed):
        credential.reveal()
    settings.CREDENTIAL_KEYS = [b"k" * 32, *first]
    assert credential.reveal() == Secret("test-credential-0123456789")


def test_rewrap_encrypts_with_the_first_key(
    tenant: Tenant, provider: Provider, settings: Any
) -> None:
    credential = factories.make_credential(tenant, provider)
    associated = credential._associated
    assert secrets.is_current(credential.sealed)
    settings.CREDENTIAL_KEYS = [b"k" * 32, *settings.CREDENTIAL_KEYS]
    assert not secrets.is_current(credential.sealed)
    credential.sealed = secrets.rewrap(credential.sealed, associated=associated)
    assert secrets.is_current(credential.sealed)
    settings.CREDENTIAL_KEYS = [b"k" * 32]
    assert credential.reveal() == Secret("test-credential-0123456789")


def test_the_list_works_without_the_encryption_key(
    management: APIClient, tenant: Tenant, provider: Provider, settings: Any
) -> None:
    credential = factories.make_credential(tenant, provider)
    settings.CREDENTIAL_KEYS = [b"k" * 32]
    assert management.get(ROUTE).json()["data"][0]["id"] == str(credential.pk)


def test_the_database_refuses_a_fallback_that_is_byok_only(
    tenant: Tenant, provider: Provider
) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        factories.make_credential(tenant, provider, is_fallback=True, is_byok_only=True)
    assert ByokCredential.objects.count() == 0
