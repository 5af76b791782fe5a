"""Stored credentials are shown, changed, rotated in place and deleted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from accounts.models import (
    ApiKey,
    ByokCredential,
    CredentialNotFound,
    Member,
    credentials,
    remove_member,
)
from catalog.models import Provider
from config.api.errors import InvalidRequest
from config.credentials import Secret
from config.secrets import DecryptionFailed, digest_api_key
from endpoints import validation
from inference.models import Generation
from tests.support import factories
from tests.support.credentials import MALFORMED
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    ask_service,
    caller,
    make_key,
    make_member,
    missing,
    named,
    send,
    stamp,
)
from tests.support.inference.site import TENANT_SECRET, Site
from tests.support.simulator.server import Simulator

ROUTE = "/api/v1/byok"
SECRET = "test-credential-0123456789"
NEW = "another-canary-8f14e45fceea1234"
NO_CREDENTIAL = missing("BYOK credential")
MEMBER = "5b1e6f1e-7c39-4f5e-9d0a-6a2b8c4d1e3f"
FULL: dict[str, Any] = {
    "name": "Production",
    "disabled": True,
    "is_fallback": False,
    "is_required": True,
    "is_byok_only": True,
    "allowed_models": ["acme/falcon"],
    "allowed_user_ids": [MEMBER],
    "allowed_hosts": ["api.acme.example"],
    "declared_region": "europe",
    "declared_zdr": True,
}
CLEARED = (
    "name", "allowed_models", "allowed_api_key_hashes", "allowed_user_ids", "allowed_hosts",
    "declared_region", "declared_zdr",
)  # fmt: skip


@pytest.fixture
def credential(tenant: Tenant, provider: Provider) -> ByokCredential:
    make_member(tenant.organization, pk=MEMBER)
    return factories.make_credential(
        tenant, provider, **FULL, allowed_api_key_hashes=[digest_api_key(tenant.api_key)]
    )


def patch(client: APIClient, credential: ByokCredential, body: Any) -> Any:
    return send(client, "PATCH", f"byok/{credential.pk}", body)


def shown(credential: ByokCredential) -> dict[str, Any]:
    credential.refresh_from_db()
    return {
        "id": str(credential.pk),
        "provider": "acme",
        "workspace_id": str(credential.workspace_id),
        **{name: getattr(credential, name) for name in (*FULL, "label", "sort_order")},
        "allowed_api_key_hashes": credential.allowed_api_key_hashes,
        "created_at": stamp(credential.created_at),
        "health": {"state": "working", "since": None, "upstream_status": None},
    }


def test_get_shows_every_field_except_the_secret(
    management: APIClient, credential: ByokCredential
) -> None:
    response = management.get(f"{ROUTE}/{credential.pk}")
    assert response.status_code == 200
    assert response.json() == {"data": shown(credential)}
    assert {name: response.json()["data"][name] for name in FULL} == FULL
    assert "test-credential" not in response.content.decode()
    assert management.get(f"{ROUTE}/{str(credential.pk).upper()}").json() == response.json()


def test_foreign_deleted_and_unknown_credentials_are_not_found(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    gone = factories.make_credential(tenant, provider)
    gone.remove()
    mine = factories.make_credential(tenant, provider)
    foreign = factories.make_credential(factories.make_tenant("Other"), provider)
    with snapshots.unchanged():
        wanted = (foreign.pk, gone.pk, uuid4(), mine.pk.hex, f"{mine.pk}%0A", f"{{{mine.pk}}}", "x")
        for wanted_id in (*wanted, "%00"):
            for method, body in (("GET", None), ("PATCH", {"name": "x"}), ("DELETE", None)):
                response = send(management, method, f"byok/{wanted_id}", body)
                assert (wanted_id, response.status_code) == (wanted_id, 404)
                assert response.json() == NO_CREDENTIAL


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        *(({name: None}, {name: None}) for name in CLEARED if name != "allowed_hosts"),
        ({"allowed_hosts": None, "key": SECRET}, {"allowed_hosts": None}),
        ({"allowed_hosts": ["127.0.0.1"], "key": SECRET}, {"allowed_hosts": ["127.0.0.1"]}),
        *(
            (fields, fields)
            for fields in (
                {"name": "new"},
                {"disabled": False},
                {"is_required": False},
                {"is_byok_only": False},
                {"allowed_models": []},
                {"allowed_user_ids": []},
                {"declared_region": "us"},
                {"declared_zdr": False},
                {"is_byok_only": False, "is_fallback": True},
            )
        ),
        ({**dict.fromkeys(CLEARED), "key": SECRET}, dict.fromkeys(CLEARED)),
    ],
)
def test_patch_changes_only_the_given_fields(
    management: APIClient, credential: ByokCredential, body: dict[str, Any], stored: dict[str, Any]
) -> None:
    before, sealed = shown(credential), bytes(credential.sealed)
    response = patch(management, credential, body)
    assert response.status_code == 200
    assert response.json() == {"data": before | stored}
    assert shown(credential) == before | stored
    assert (bytes(credential.sealed), credential.version) == (sealed, 1)
    with snapshots.unchanged():
        assert patch(management, credential, body).json() == response.json()


def test_a_list_keeps_what_is_gone_and_takes_nothing_unknown(
    management: APIClient, credential: ByokCredential, tenant: Tenant
) -> None:
    """A client writes back what it has read, with one more entry."""
    remove_member(Member.objects.get(pk=MEMBER))
    used = ApiKey.objects.get(name="inference")
    used.revoke()
    member, key = make_member(tenant.organization), make_key(tenant)
    for name, gone, added, unknown in (
        ("allowed_user_ids", MEMBER, str(member.pk), str(uuid4())),
        ("allowed_api_key_hashes", used.digest, key.digest, "0" * 64),
    ):
        with snapshots.unchanged():
            refused = patch(management, credential, {name: [gone, added, unknown]})
        assert refused.status_code == 400
        assert unknown in refused.json()["error"]["metadata"]["fields"][name]
        kept = patch(management, credential, {name: [gone, added]})
        assert (kept.status_code, kept.json()["data"][name]) == (200, [gone, added])


def test_patch_without_a_change_changes_nothing(
    management: APIClient, credential: ByokCredential
) -> None:
    with snapshots.unchanged():
        for body in ({}, FULL):
            assert patch(management, credential, body).json() == {"data": shown(credential)}


def test_patch_rotates_the_secret_in_place(
    management: APIClient, credential: ByokCredential
) -> None:
    before = shown(credential)
    response = patch(management, credential, {"key": NEW, "name": "rotated"})
    assert response.json() == {"data": before | {"label": "…1234", "name": "rotated"}}
    assert NEW not in response.content.decode()
    credential.refresh_from_db()
    assert credential.reveal() == Secret(NEW)
    assert credential.version == 2


def test_patch_rotates_the_secret_of_an_unlisted_provider(
    management: APIClient, credential: ByokCredential, provider: Provider
) -> None:
    provider.is_listed = False
    provider.save_fields("is_listed")
    assert patch(management, credential, {"key": NEW}).status_code == 200
    credential.refresh_from_db()
    assert credential.reveal() == Secret(NEW)


def test_a_rotation_makes_validations_stale(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    credential = factories.make_credential(tenant, provider)
    draft = factories.make_draft(tenant, factories.make_model(), provider)
    current = factories.make_validation(draft, credential)
    assert patch(management, credential, {"name": "new"}).status_code == 200
    current.refresh_from_db()
    assert current.is_current_for(draft.configuration)
    assert patch(management, credential, {"key": NEW}).status_code == 200
    current.refresh_from_db()
    assert not current.is_current_for(draft.configuration)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(row for row in MALFORMED if next(iter(row[0])) not in ("provider", "workspace_id")),
        ({"provider": "acme"}, "provider"),
        ({"workspace_id": None}, "workspace_id"),
        ({"is_fallback": True}, "is_fallback"),
        ({"disabled": None}, "disabled"),
    ],
)
def test_patch_refuses_invalid_fields_by_name(
    management: APIClient, credential: ByokCredential, change: dict[str, Any], named: str
) -> None:
    with snapshots.unchanged():
        response = patch(management, credential, {"name": "new"} | change)
    assert response.status_code == 400
    (field,) = response.json()["error"]["metadata"]["fields"]
    assert field.partition(".")[0].partition("[")[0] == named.partition("[")[0]


def test_patch_refuses_a_foreign_key_hash_and_an_unusable_secret(
    management: APIClient, tenant: Tenant, credential: ByokCredential
) -> None:
    cloud = factories.make_provider("azure", dialect="azure", base_url=None)
    text = json.dumps({"api_key": NEW, "endpoint_url": "https://x.openai.azure.com"})
    azure = factories.make_credential(tenant, cloud, text)
    foreign = digest_api_key(factories.make_tenant("Other").api_key)
    with snapshots.unchanged():
        for row, body in (
            (credential, {"allowed_api_key_hashes": [foreign]}),
            (azure, {"key": NEW}),
        ):
            response = patch(management, row, body)
            assert response.status_code == 400
            assert list(response.json()["error"]["metadata"]["fields"]) == list(body)


def test_the_lists_of_an_organization_have_few_entries_together(
    management: APIClient, credential: ByokCredential, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.make_credential(
        factories.make_tenant("Other"), Provider.objects.get(), allowed_models=["x"] * 9
    )
    models = [factories.make_model(f"acme/{letter}").slug for letter in "abcdefg"]
    monkeypatch.setattr(credentials, "_MOST_ENTRIES", 6)
    why = "The lists of all credentials of an organization can have at most 6 entries, and have"
    with snapshots.unchanged():
        answer = patch(management, credential, {"allowed_models": models[:4]})
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["fields"] == {
        "allowed_models": f"{why} 4. Shorten some."
    }
    assert patch(management, credential, {"allowed_models": models[:3]}).status_code == 200

    body = {"provider": "acme", "key": SECRET}
    with snapshots.unchanged():
        answer = send(management, "POST", "byok", {**body, "allowed_hosts": ["x.example"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["fields"] == {
        "allowed_hosts": f"{why} 6. Shorten some."
    }
    assert send(management, "POST", "byok", body).status_code == 201

    # What is stored may be kept, exchanged and shortened.
    monkeypatch.setattr(credentials, "_MOST_ENTRIES", 1)
    for names in (models[3:6], models[6:]):
        answer = patch(management, credential, {"name": "new", "allowed_models": names})
        assert answer.json()["data"]["allowed_models"] == names


def test_patch_keeps_a_model_that_left_and_takes_no_other_that_is_none(
    management: APIClient, credential: ByokCredential
) -> None:
    factories.make_model("acme/hawk")
    kept = ["acme/hawk", "acme/falcon"]
    answer = patch(management, credential, {"allowed_models": kept})
    assert answer.json()["data"]["allowed_models"] == kept
    with snapshots.unchanged():
        for name in ("falcon", "acme/*", "acme/falcon:nitro", "acme/kestrel"):
            answer = patch(management, credential, {"allowed_models": [*kept, name]})
            assert named(answer) == (400, {"allowed_models"})


def test_delete_wipes_the_secret_and_keeps_a_tombstone(
    management: APIClient, credential: ByokCredential
) -> None:
    response = management.delete(f"{ROUTE}/{credential.pk}")
    assert (response.status_code, response.json()) == (200, {"deleted": True})
    credential.refresh_from_db()
    assert (bytes(credential.sealed), credential.deleted_at is not None) == (b"", True)
    with pytest.raises(DecryptionFailed):
        credential.reveal()
    assert management.get(ROUTE).json() == {"data": [], "total_count": 0}
    again = management.delete(f"{ROUTE}/{credential.pk}")
    assert (again.status_code, again.json()) == (404, NO_CREDENTIAL)


def test_a_deleted_credential_cannot_be_changed(credential: ByokCredential) -> None:
    stale = ByokCredential.objects.get(pk=credential.pk)
    credential.remove()
    with snapshots.unchanged():
        for change in (
            lambda: stale.rotate(Secret(NEW)),
            lambda: stale.edit(secret=Secret(NEW)),
            lambda: stale.edit(name="x"),
            stale.remove,
        ):
            with pytest.raises(CredentialNotFound):
                change()


def test_edit_compares_the_flags_with_the_stored_row(tenant: Tenant, provider: Provider) -> None:
    credential = factories.make_credential(tenant, provider)
    stale = ByokCredential.objects.get(pk=credential.pk)
    assert credential.edit(is_byok_only=True) is True
    with snapshots.unchanged(), pytest.raises(InvalidRequest):
        stale.edit(secret=Secret(NEW), is_fallback=True)


def test_the_database_refuses_a_tombstone_with_a_secret(credential: ByokCredential) -> None:
    credential.deleted_at = credential.created_at
    with pytest.raises(IntegrityError), transaction.atomic():
        credential.save_fields("deleted_at")


def test_a_deleted_credential_fails_old_and_new_validations(
    tenant: Tenant, provider: Provider, simulator: Simulator
) -> None:
    credential = factories.make_credential(tenant, provider)
    draft = factories.make_draft(
        tenant, factories.make_model(), provider, base_url=simulator.base_url
    )
    current = factories.make_validation(draft, credential)
    credential.remove()
    current.refresh_from_db()
    assert not current.is_current_for(draft.configuration)
    simulator.clear()
    result = validation.run(draft, workspace_id=tenant.workspace.pk)
    assert result.checks[-1]["reason"] == "no_byok_key"
    assert simulator.requests == []


def test_requests_never_use_a_deleted_credential(site: Site) -> None:
    site.own()
    assert site.chat().status_code == 200
    site.settled()
    site.upstream.clear()
    credential = ByokCredential.objects.get()
    answer = ask_service(site.server, site.tenant, "DELETE", f"byok/{credential.pk}")
    assert answer.json() == {"deleted": True}
    refused = site.chat()
    assert refused.status_code == 404
    assert refused.json()["error"]["metadata"]["error_type"] == "no_endpoint"
    assert site.dialled() == []
    assert Generation.objects.count() == 1


def test_the_next_request_uses_the_rotated_secret(site: Site) -> None:
    site.own()
    assert site.chat().status_code == 200
    credential = ByokCredential.objects.get()
    ask_service(site.server, site.tenant, "PATCH", f"byok/{credential.pk}", {"key": NEW})
    assert site.chat().status_code == 200
    assert [request.headers["authorization"] for request in site.dialled()] == [
        f"Bearer {TENANT_SECRET}",
        f"Bearer {NEW}",
    ]


def test_concurrent_deletes_delete_once(server: str, together: Callable[..., list[Any]]) -> None:
    tenant = factories.make_tenant()
    credential = factories.make_credential(tenant, factories.make_provider("acme"))
    delete = caller(server, tenant, "DELETE", f"byok/{credential.pk}")
    assert Counter(together(*[delete] * 32)) == {200: 1, 404: 31}


def test_rotations_that_race_a_delete_never_restore_the_secret(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    credential = factories.make_credential(tenant, factories.make_provider("acme"))
    path = f"byok/{credential.pk}"
    rotate = caller(server, tenant, "PATCH", path, {"key": NEW})
    answers = together(*[rotate] * 31, caller(server, tenant, "DELETE", path))
    assert answers[-1] == 200
    assert set(answers[:-1]) <= {200, 404}
    credential.refresh_from_db()
    assert (bytes(credential.sealed), credential.version) == (b"", 1 + answers.count(200) - 1)


def test_concurrent_patches_never_set_both_exclusive_flags(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    credential = factories.make_credential(tenant, factories.make_provider("acme"))
    calls = [
        caller(server, tenant, "PATCH", f"byok/{credential.pk}", {name: True})
        for name in ("is_fallback", "is_byok_only")
    ]
    assert Counter(together(*calls * 16)) == {200: 16, 400: 16}
    credential.refresh_from_db()
    assert credential.is_fallback is not credential.is_byok_only
