"""``POST /keys/{hash}/rotate``: a new secret for a key, and an overlap for the former one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import close_old_connections, connection
from rest_framework.test import APIClient

from accounts.models import ApiKey, ByokCredential, KeyDigest, credentials, guardrails_of
from config.audit.entries import AuditEntry
from config.clocks.clock import clock
from config.secrets import KeyDigests, digest_api_key
from inference.admission.renewal import RENEW_DIGESTS, RenewedDigest
from tests.support import factories
from tests.support.broadcast.destinations import make_destination
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    issue_key,
    make_guardrail,
    make_key,
    send,
    stamp,
    status_of,
    told,
)

WEEK = 604_800
TAKEN = "The API key was rotated already: rotate or change the key that replaced it."


def rotate(client: APIClient, digest: str, body: Any = None) -> Any:
    return send(client, "POST", f"keys/{digest}/rotate", body)


def inference_key(tenant: Tenant) -> ApiKey:
    found: ApiKey = ApiKey.objects.get(organization=tenant.organization, name="inference")
    return found


def seconds_left(text: str) -> float:
    former = ApiKey.objects.exclude(successor=None).latest("expires_at")
    assert former.expires_at is not None
    assert text == stamp(former.expires_at)
    made_at = ApiKey.objects.get(pk=former.successor_id).created_at
    return (former.expires_at - made_at).total_seconds()


def test_both_secrets_work_during_the_overlap(management: APIClient, tenant: Tenant) -> None:
    key = inference_key(tenant)
    shown = management.get(f"/api/v1/keys/{key.digest}").json()["data"]
    answer = rotate(management, key.digest)
    assert answer.status_code == 201
    body = answer.json()
    assert set(body) == {"data", "key", "expires_at"}
    secret = body["key"]
    assert secret != tenant.api_key
    assert secret.startswith("sk-cw-")
    assert seconds_left(body["expires_at"]) == 3600
    changed = {name: body["data"][name] for name in ("hash", "label", "created_at", "updated_at")}
    assert body["data"] == {**shown, **changed}
    assert body["data"]["hash"] == digest_api_key(secret)
    assert [status_of(secret), status_of(tenant.api_key)] == [200, 200]
    assert management.get(f"/api/v1/keys/{body['data']['hash']}").json()["data"] == body["data"]
    former = management.get(f"/api/v1/keys/{key.digest}").json()["data"]
    assert (former["hash"], former["label"]) == (key.digest, key.label)
    assert former["expires_at"] == body["expires_at"]
    assert former["rotated_to"] == body["data"]["hash"]
    assert {secret, tenant.api_key}.isdisjoint(management.get("/api/v1/keys").content.decode())
    listed = management.get("/api/v1/keys").json()["data"]
    assert [(row["hash"], row["rotated_to"]) for row in listed] == [
        (body["data"]["hash"], None), (key.digest, body["data"]["hash"]),
    ]  # fmt: skip


@pytest.mark.parametrize("overlap", [0, 1, WEEK])
def test_the_overlap_is_what_was_asked_for(
    management: APIClient, tenant: Tenant, overlap: int
) -> None:
    answer = rotate(management, inference_key(tenant).digest, {"overlap_seconds": overlap})
    assert seconds_left(answer.json()["expires_at"]) == overlap
    assert status_of(answer.json()["key"]) == 200
    if not overlap:
        assert status_of(tenant.api_key) == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(
            ({"overlap_seconds": value}, "overlap_seconds")
            for value in (-1, WEEK + 1, 10**30, None, "60", 1.5, True)
        ),
        ({"overlap": 60}, "overlap"),
        ([], "object"),
        ("{", "JSON"),
    ],
)
def test_a_malformed_body_is_refused(
    management: APIClient, tenant: Tenant, body: Any, field: str
) -> None:
    with snapshots.unchanged():
        status, message = told(rotate(management, inference_key(tenant).digest, body))
    assert status == 400
    assert field in message


def test_an_expiry_is_kept_and_never_later(management: APIClient, tenant: Tenant) -> None:
    key = inference_key(tenant)
    ends_at = clock.now() + timedelta(seconds=100)
    key.edit(expires_at=ends_at)
    body = rotate(management, key.digest, {"overlap_seconds": WEEK}).json()
    text = stamp(ends_at)
    assert (body["expires_at"], body["data"]["expires_at"]) == (text, text)
    # A shorter life of the key shortens that of the former secret, a longer one does not.
    present = ApiKey.objects.get(digest=body["data"]["hash"])
    present.edit(expires_at=ends_at - timedelta(seconds=50))
    assert ApiKey.objects.get(digest=key.digest).expires_at == ends_at - timedelta(seconds=50)
    present.edit(expires_at=None)
    assert ApiKey.objects.get(digest=key.digest).expires_at == ends_at - timedelta(seconds=50)


def test_a_key_that_cannot_be_rotated_is_refused_by_name(
    management: APIClient, tenant: Tenant
) -> None:
    key = inference_key(tenant)
    rotate(management, key.digest)
    revoked = make_key(tenant, "revoked")
    revoked.revoke()
    expired = make_key(tenant, "expired", expires_at=clock.now() - timedelta(seconds=1))
    with snapshots.unchanged():
        for digest, message in (
            (key.digest, TAKEN),
            (revoked.digest, "The API key is revoked, so it cannot be rotated."),
            (expired.digest, "The API key has expired, so it cannot be rotated."),
        ):
            assert told(rotate(management, digest)) == (409, message)


def test_strangers_and_inference_keys_rotate_nothing(
    management: APIClient, inference: APIClient, tenant: Tenant
) -> None:
    other = factories.client(factories.make_tenant("Other").management_key)
    with snapshots.unchanged():
        digests = [key.digest for key in ApiKey.objects.filter(organization=tenant.organization)]
        for digest in digests:
            assert rotate(other, digest).status_code == 404
            assert rotate(inference, digest).status_code == 403
        for digest in ("0" * 64, "x", "%00", tenant.api_key):
            assert rotate(management, digest).status_code == 404


def test_a_management_key_rotates_itself_and_another_one(
    management: APIClient, tenant: Tenant
) -> None:
    own = ApiKey.objects.get(organization=tenant.organization, is_management=True)
    body = rotate(management, own.digest, {"overlap_seconds": 60}).json()
    renewed = factories.client(body["key"])
    assert body["key"].startswith("mk-cw-")
    assert [status_of(body["key"]), status_of(tenant.management_key)] == [200, 200]
    assert renewed.get("/api/v1/key").json()["data"]["is_management_key"] is True
    # The former one, which may have leaked, can still be ended at once.
    another, secret = issue_key(tenant, "second", is_management=True)
    ended = rotate(renewed, another.digest, {"overlap_seconds": 0}).json()
    assert [status_of(ended["key"]), status_of(secret)] == [200, 401]
    entry = AuditEntry.objects.filter(action="POST /api/v1/keys/{hash}/rotate").first()
    assert entry is not None
    assert entry.actor == f"key {body['data']['label']}"
    assert not AuditEntry.objects.filter(after__icontains=body["key"]).exists()


def test_deleting_the_former_secret_ends_it_alone(management: APIClient, tenant: Tenant) -> None:
    key = inference_key(tenant)
    body = rotate(management, key.digest).json()
    assert management.delete(f"/api/v1/keys/{key.digest}").json() == {"deleted": True}
    assert [status_of(body["key"]), status_of(tenant.api_key)] == [200, 401]
    assert management.get(f"/api/v1/keys/{key.digest}").status_code == 404


def test_deleting_the_key_ends_all_its_secrets(management: APIClient, tenant: Tenant) -> None:
    key = inference_key(tenant)
    body = rotate(management, key.digest).json()
    last = rotate(management, body["data"]["hash"]).json()
    secrets = [tenant.api_key, body["key"], last["key"]]
    assert list(map(status_of, secrets)) == [200, 200, 200]
    management.delete(f"/api/v1/keys/{last['data']['hash']}")
    assert list(map(status_of, secrets)) == [401, 401, 401]


def test_a_former_secret_follows_its_key_and_cannot_be_changed(
    management: APIClient, tenant: Tenant
) -> None:
    key = inference_key(tenant)
    body = rotate(management, key.digest).json()
    with snapshots.unchanged():
        refused = management.patch(f"/api/v1/keys/{key.digest}", {"limit": 5}, format="json")
    assert told(refused) == (409, TAKEN)
    path = f"/api/v1/keys/{body['data']['hash']}"
    changes = {"limit": 5, "disabled": True, "rate_limits": {"requests_per_minute": 3}}
    management.patch(path, changes, format="json")
    assert [status_of(body["key"]), status_of(tenant.api_key)] == [401, 401]
    former = management.get(f"/api/v1/keys/{key.digest}").json()["data"]
    assert (former["limit"], former["disabled"]) == (5, True)
    assert former["rate_limits"]["requests_per_minute"] == 3


def test_the_former_secret_of_a_disabled_key_never_works_again(
    management: APIClient, tenant: Tenant
) -> None:
    key = inference_key(tenant)
    key.pause()
    body = rotate(management, key.digest, {"overlap_seconds": WEEK}).json()
    assert body["data"]["disabled"] is True
    ApiKey.objects.get(digest=body["data"]["hash"]).resume()
    assert [status_of(body["key"]), status_of(tenant.api_key)] == [200, 401]


def test_guardrail_and_lists_of_keys_apply_to_the_new_secret(
    management: APIClient, tenant: Tenant
) -> None:
    key = inference_key(tenant)
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_keys([key], by="test")
    provider = factories.make_provider()
    factories.make_credential(tenant, provider, allowed_api_key_hashes=[key.digest])
    destination = make_destination(tenant.workspace, api_key_hashes=[key.digest])
    body = rotate(management, key.digest).json()
    both = [key.digest, body["data"]["hash"]]
    assert ByokCredential.objects.get().allowed_api_key_hashes == both
    destination.refresh_from_db()
    assert destination.api_key_hashes == both
    found = ApiKey.objects.get(digest=body["data"]["hash"])
    assert guardrails_of(found).key == guardrail
    path = f"guardrails/{guardrail.pk}/assignments/keys"
    rows = management.get(f"/api/v1/{path}").json()["data"]
    assert [row["key_hash"] for row in rows] == [body["data"]["hash"]]
    assert send(management, "POST", path, {"key_hashes": [key.digest]}).status_code == 404


def test_a_list_that_names_a_former_secret_names_its_key(
    management: APIClient, tenant: Tenant
) -> None:
    key = inference_key(tenant)
    credential = factories.make_credential(tenant, factories.make_provider())
    destination = make_destination(tenant.workspace)
    former = key.digest
    both = [former, rotate(management, former).json()["data"]["hash"]]
    for path, name in (
        (f"byok/{credential.pk}", "allowed_api_key_hashes"),
        (f"observability/destinations/{destination.pk}", "api_key_hashes"),
    ):
        for hashes in ([former], both, [former, former]):
            answer = send(management, "PATCH", path, {name: hashes})
            assert (answer.status_code, answer.json()["data"][name]) == (200, both)


def test_a_rotation_drops_the_hashes_of_ended_secrets_from_lists(
    management: APIClient, tenant: Tenant
) -> None:
    key, other = inference_key(tenant), make_key(tenant)
    first = key.digest
    lists = [other.digest, first]
    credential = factories.make_credential(
        tenant, factories.make_provider(), allowed_api_key_hashes=lists
    )
    destination = make_destination(tenant.workspace, api_key_hashes=lists)

    def step(overlap: int) -> str:
        key.refresh_from_db()
        answer = rotate(management, key.digest, {"overlap_seconds": overlap})
        return str(answer.json()["data"]["hash"])

    def named() -> list[str]:
        credential.refresh_from_db()
        destination.refresh_from_db()
        assert credential.allowed_api_key_hashes == destination.api_key_hashes
        return list(credential.allowed_api_key_hashes or ())

    second, third = step(WEEK), step(WEEK)
    assert named() == [other.digest, first, second, third]
    management.delete(f"/api/v1/keys/{first}")
    ApiKey.objects.filter(digest=second).update(expires_at=clock.now())
    fourth = step(WEEK)
    assert named() == [other.digest, third, fourth]
    fifth = step(0)
    assert named() == [other.digest, third, fifth]


def test_a_rotation_finds_room_for_its_overlap_in_the_lists_of_credentials(
    management: APIClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, provider = inference_key(tenant), factories.make_provider()
    for _ in range(2):
        factories.make_credential(tenant, provider, allowed_api_key_hashes=[key.digest])
    monkeypatch.setattr(credentials, "_MOST_ENTRIES", 3)
    with snapshots.unchanged():
        refused = rotate(management, key.digest, {"overlap_seconds": 1})
    why = (
        "The lists of all credentials of an organization can have at most 3 entries, and have 2. "
        "Shorten some, or rotate with overlap_seconds 0, which makes no list longer."
    )
    assert told(refused) == (400, f"overlap_seconds: {why}")
    assert refused.json()["error"]["metadata"]["fields"] == {"overlap_seconds": why}
    # What is stored may be more already.
    monkeypatch.setattr(credentials, "_MOST_ENTRIES", 1)
    answer = rotate(management, key.digest, {"overlap_seconds": 0})
    assert answer.status_code == 201
    present = [answer.json()["data"]["hash"]]
    lists = [row.allowed_api_key_hashes for row in ByokCredential.objects.all()]
    assert lists == [present, present]
    monkeypatch.setattr(credentials, "_MOST_ENTRIES", 4)
    assert rotate(management, present[0], {"overlap_seconds": 1}).status_code == 201


def test_one_of_several_rotations_wins(transactional_db: None) -> None:
    tenant = factories.make_tenant()
    key = inference_key(tenant)

    def ask(_: int) -> Any:
        try:
            return rotate(factories.client(tenant.management_key), key.digest)
        finally:
            close_old_connections()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + 7 * [409]
    [body] = [answer.json() for answer in answers if answer.status_code == 201]
    assert ApiKey.objects.exclude(successor=None).count() == 1
    assert status_of(body["key"]) == 200


def test_a_late_renewal_does_not_outlive_the_former_secret(
    management: APIClient, tenant: Tenant, settings: Any
) -> None:
    """A worker may have found the key before the rotation, and store its digest afterwards."""
    key = inference_key(tenant)
    rotate(management, key.digest, {"overlap_seconds": 0})
    settings.KEY_PEPPERS = ["another-pepper-of-32-characters-0123"]
    digests = KeyDigests(tenant.api_key)
    batch = [RenewedDigest(digests[0], key.digest, digests.pepper_ids[0])]
    with connection.cursor() as cursor:
        text = RENEW_DIGESTS.text.replace("$1", "%s")
        cursor.execute(text, [msgspec.json.encode(batch).decode()])
    assert KeyDigest.objects.get(digest=digests[0]).api_key.digest == key.digest
    assert status_of(tenant.api_key) == 401


def test_twenty_former_secrets_work_at_once(management: APIClient, tenant: Tenant) -> None:
    key = inference_key(tenant)
    for _ in range(20):
        assert rotate(management, key.digest, {"overlap_seconds": WEEK}).status_code == 201
        key.refresh_from_db()
    with snapshots.unchanged():
        refused = rotate(management, key.digest, {"overlap_seconds": 1})
    message = (
        "former_secrets_reached: 20 former secrets of the API key still work. Delete one by its "
        "hash, wait for its end, or rotate with overlap_seconds 0."
    )
    assert told(refused) == (422, message)
    assert refused.json()["error"]["metadata"]["error_type"] == "former_secrets_reached"
    assert rotate(management, key.digest, {"overlap_seconds": 0}).status_code == 201
    key.refresh_from_db()
    assert rotate(management, key.digest).status_code == 422
    former = key.former.filter(expires_at__gt=clock.now())[0]
    assert management.delete(f"/api/v1/keys/{former.digest}").status_code == 200
    assert rotate(management, key.digest).status_code == 201


def test_a_key_learns_its_own_hash(management: APIClient, tenant: Tenant) -> None:
    shown = management.get("/api/v1/key").json()["data"]["hash"]
    assert shown == digest_api_key(tenant.management_key)
    answer = rotate(management, shown).json()
    renewed = factories.client(answer["key"])
    assert renewed.get("/api/v1/key").json()["data"]["hash"] == answer["data"]["hash"]
    assert management.get("/api/v1/key").json()["data"]["hash"] == shown
