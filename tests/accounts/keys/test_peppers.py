"""Peppers rotate while keys, their public hashes and pseudonyms stay the same."""

from __future__ import annotations

import hmac
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from django.core.management import call_command
from django.db import connection, transaction

from accounts.models import ApiKey, KeyDigest
from config.audit.entries import AuditEntry
from config.peppers import list_peppers
from config.secrets import (
    KeyDigests,
    digest_api_key,
    digest_backup_code,
    generate_api_key,
    hash_cache_key,
    hash_end_user,
)
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import status_of
from tests.support.inference.site import Site

ROUTE = "/api/v1/keys"
ONE, TWO, THREE = (letter * 40 for letter in "abc")


def rotate(settings: Any, secret_key: str = "", *fallbacks: str, peppers: tuple[str, ...]) -> None:
    settings.KEY_PEPPERS = list(peppers)
    if secret_key:
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = secret_key, list(fallbacks)


def is_accepted(key: str) -> bool:
    return status_of(key) == 200


def peppers_of(key: ApiKey) -> set[str | None]:
    return set(key.digests.values_list("pepper", flat=True))


def counted(**options: Any) -> dict[str, Any]:
    output = io.StringIO()
    call_command("list_key_peppers", json=True, stdout=output, **options)
    found: dict[str, Any] = json.loads(output.getvalue())
    return found


def test_without_a_list_the_digest_is_that_of_earlier_releases(settings: Any) -> None:
    pepper = hmac.digest(settings.SECRET_KEY.encode(), b"causeway.api-key", "sha256")
    assert digest_api_key("sk-cw-x") == hmac.digest(pepper, b"sk-cw-x", "sha256").hex()


def test_the_order_is_the_list_then_the_secret_key_then_its_fallbacks(settings: Any) -> None:
    rotate(settings, ONE, TWO, ONE, peppers=(THREE, TWO))
    assert [pepper.name for pepper in list_peppers()] == [
        "KEY_PEPPERS, number 1", "KEY_PEPPERS, number 2", "SECRET_KEY",
    ]  # fmt: skip
    digests = KeyDigests("sk-cw-x")
    assert (len(digests), len(set(digests))) == (3, 3)
    assert digests[0] == digest_api_key("sk-cw-x")
    assert "sk-cw" not in repr(digests)


def test_a_new_secret_key_keeps_every_key_that_is_used_in_time(
    tenant: Tenant, settings: Any
) -> None:
    """The unused key is refused when the old secret is removed, and returns with it."""
    old = settings.SECRET_KEY
    hashes = list(ApiKey.objects.values_list("digest", flat=True))
    rotate(settings, ONE, old, peppers=())
    assert is_accepted(tenant.management_key)
    assert counted() == {
        "peppers": {"SECRET_KEY": 1, "SECRET_KEY_FALLBACKS, number 1": 1},
        "waiting": 1,
    }
    rotate(settings, ONE, peppers=())
    assert is_accepted(tenant.management_key)
    assert not is_accepted(tenant.api_key)
    assert counted() == {"peppers": {"SECRET_KEY": 1, "no longer listed": 1}, "waiting": 1}
    rotate(settings, ONE, old, peppers=())
    assert is_accepted(tenant.api_key)
    assert list(ApiKey.objects.values_list("digest", flat=True)) == hashes
    management = factories.client(tenant.management_key)
    for public in (row["hash"] for row in management.get(ROUTE).json()["data"]):
        assert public in hashes
        assert management.get(f"{ROUTE}/{public}").status_code == 200


def test_a_former_secret_that_has_ended_does_not_wait(tenant: Tenant, settings: Any) -> None:
    _, secret = ApiKey.objects.get(name="inference").rotate(overlap=0)
    rotate(settings, ONE, settings.SECRET_KEY, peppers=())
    assert is_accepted(tenant.management_key)
    peppers = {"SECRET_KEY": 1, "SECRET_KEY_FALLBACKS, number 1": 1}
    assert counted() == {"peppers": peppers, "waiting": 1}
    assert is_accepted(secret.reveal())
    assert counted()["waiting"] == 0


def test_a_list_of_peppers_is_introduced_without_losing_a_key(
    tenant: Tenant, settings: Any
) -> None:
    rotate(settings, peppers=(ONE,))
    assert is_accepted(tenant.management_key)
    rotate(settings, TWO, peppers=(ONE,))
    assert is_accepted(tenant.management_key)
    assert not is_accepted(tenant.api_key)


def test_an_earlier_secret_key_can_be_listed_as_a_pepper(tenant: Tenant, settings: Any) -> None:
    rotate(settings, TWO, peppers=(ONE, settings.SECRET_KEY))
    assert is_accepted(tenant.management_key)
    assert is_accepted(tenant.api_key)


def test_a_worker_with_the_earlier_list_finds_old_and_new_keys(
    tenant: Tenant, settings: Any
) -> None:
    """Workers restart one after the other; neither list may refuse what the other one stored."""
    earlier, later = (ONE,), (TWO, ONE)
    rotate(settings, peppers=earlier)
    assert is_accepted(tenant.management_key)
    rotate(settings, peppers=later)
    assert is_accepted(tenant.management_key)
    _, made = ApiKey.objects.create_key(workspace=tenant.workspace, name="made by the later one")
    rotate(settings, peppers=earlier)
    assert is_accepted(tenant.management_key)
    assert is_accepted(made.reveal())


def test_digests_by_removed_peppers_are_deleted_on_request(tenant: Tenant, settings: Any) -> None:
    old = settings.SECRET_KEY
    rotate(settings, ONE, old, peppers=())
    assert is_accepted(tenant.management_key)
    assert counted(clear=True)["cleared"] == 0
    rotate(settings, ONE, peppers=())
    # Only the used key has another digest.
    assert counted(clear=True)["cleared"] == 1
    assert is_accepted(tenant.management_key)
    rotate(settings, ONE, old, peppers=())
    assert is_accepted(tenant.api_key)


def test_a_key_that_an_earlier_release_inserts_is_found(tenant: Tenant, settings: Any) -> None:
    """An earlier release knows no digests apart from the hash; its first use names the pepper."""
    secret = generate_api_key(is_management=True).reveal()
    key = ApiKey.objects.create(
        organization=tenant.organization,
        workspace=tenant.workspace,
        is_management=True,
        digest=digest_api_key(secret),
    )
    assert peppers_of(key) == {None}
    assert counted()["peppers"] == {"SECRET_KEY": 2, "not known before the next use": 1}
    assert is_accepted(secret)
    assert peppers_of(key) == {list_peppers()[0].id}
    assert counted() == {"peppers": {"SECRET_KEY": 3}, "waiting": 0}


def test_renewing_a_digest_changes_no_key_and_writes_no_audit_entry(
    tenant: Tenant, settings: Any
) -> None:
    def read_versions() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, xmin::text, updated_at FROM accounts_apikey ORDER BY id")
            return cursor.fetchall()

    versions, entries = read_versions(), AuditEntry.objects.count()
    rotate(settings, peppers=(ONE,))
    assert is_accepted(tenant.management_key)
    assert KeyDigest.objects.filter(pepper=list_peppers()[0].id).count() == 1
    assert (read_versions(), AuditEntry.objects.count()) == (versions, entries)


def test_inference_renews_the_digest_after_the_answer(
    site: Site, settings: Any, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    site.publish()
    key = ApiKey.objects.get(digest=digest_api_key(site.tenant.api_key))
    rotate(settings, peppers=(ONE,))
    assert site.chat().status_code == 200
    eventually(lambda: list_peppers()[0].id in peppers_of(key))
    rotate(settings, TWO, peppers=(ONE,))
    assert site.chat().status_code == 200


def test_a_locked_key_delays_neither_kind_of_request(site: Site, settings: Any) -> None:
    """Its digest is renewed by a later request."""
    key = ApiKey.objects.get(digest=digest_api_key(site.tenant.management_key))
    rotate(settings, peppers=(ONE,))
    headers = {"Authorization": f"Bearer {site.tenant.management_key}"}
    address = f"{site.server}/api/v1/key"
    with transaction.atomic():
        ApiKey.objects.select_for_update().get(pk=key.pk)
        assert requests.get(address, headers=headers, timeout=60).status_code == 200
        assert peppers_of(key) == {pepper.id for pepper in list_peppers()[1:]}
    assert requests.get(address, headers=headers, timeout=60).status_code == 200
    assert peppers_of(key) == {pepper.id for pepper in list_peppers()}


def test_a_stored_restriction_to_keys_outlives_the_pepper(site: Site, settings: Any) -> None:
    """`allowed_api_key_hashes` names public hashes, which stay."""
    key = ApiKey.objects.get(digest=digest_api_key(site.tenant.api_key))
    factories.make_credential(site.tenant, site.provider, allowed_api_key_hashes=[key.digest])
    site.publish()
    rotate(settings, peppers=(ONE,))
    answer = site.chat()
    assert (answer.status_code, answer.json()["usage"]["is_byok"]) == (200, True)


@pytest.mark.parametrize("hash_text", [hash_end_user, hash_cache_key])
def test_a_pseudonym_stays_while_the_oldest_pepper_is_listed(
    settings: Any, hash_text: Callable[[str, str], str]
) -> None:
    old = settings.SECRET_KEY
    before = hash_text("org", "ann")
    for secret_key, fallbacks, peppers in (
        (ONE, (old,), ()),
        (old, (), (TWO, old)),
        (THREE, (), (ONE, TWO, old)),
    ):
        rotate(settings, secret_key, *fallbacks, peppers=peppers)
        assert hash_text("org", "ann") == before
    rotate(settings, THREE, peppers=(ONE, TWO))
    assert hash_text("org", "ann") != before


def test_backup_codes_are_read_by_all_peppers(settings: Any) -> None:
    old = digest_backup_code(7, "abcdefgh")
    rotate(settings, ONE, settings.SECRET_KEY, peppers=(TWO,))
    new = digest_backup_code(7, "abcdefgh")
    assert (len(new), new[2]) == (3, old[0])
    assert new[0] != old[0]
