from __future__ import annotations

import json
import secrets as random
from contextlib import ExitStack
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from accounts.models import ByokCredential
from catalog.models import Provider
from config.console.sign_in.models import SecondFactor
from config.credentials import Secret
from config.secrets import DecryptionFailed, is_current
from tests.support import factories
from tests.support.database.locks import beside, locked, waiting
from tests.support.factories import Tenant
from tests.support.machine.waiting import wait_until

pytestmark = pytest.mark.django_db


def rotate(**options: Any) -> dict[str, Any]:
    output = StringIO()
    call_command("rotate_credential_keys", json=True, stdout=output, stderr=StringIO(), **options)
    report: dict[str, Any] = json.loads(output.getvalue())
    return report


@pytest.fixture
def stored(tenant: Tenant) -> tuple[ByokCredential, Provider]:
    provider = factories.make_provider()
    provider.set_credential(Secret("operator-credential-0123"))
    return factories.make_credential(tenant, provider, "own-credential-01234567"), provider


def test_every_secret_moves_to_the_first_key_unchanged(
    stored: tuple[ByokCredential, Provider], settings: Any
) -> None:
    credential, provider = stored
    old = settings.CREDENTIAL_KEYS
    settings.CREDENTIAL_KEYS = [random.token_bytes(32), *old]
    assert rotate() == {"rotated": 2, "unchanged": 0, "failed": 0, "dry_run": False}
    assert rotate() == {"rotated": 0, "unchanged": 2, "failed": 0, "dry_run": False}
    settings.CREDENTIAL_KEYS = settings.CREDENTIAL_KEYS[:1]
    credential.refresh_from_db()
    provider.refresh_from_db()
    assert credential.reveal() == Secret("own-credential-01234567")
    assert provider.reveal_credential() == Secret("operator-credential-0123")
    assert credential.version == 1


def test_second_factors_move_to_the_first_key(db: None, settings: Any) -> None:
    user = User.objects.create_superuser("ann")
    key = random.token_bytes(20)
    device = SecondFactor.objects.create(
        user=user, name="app", key=SecondFactor.seal(key, user_id=user.pk), last_t=7
    )
    settings.CREDENTIAL_KEYS = [random.token_bytes(32), *settings.CREDENTIAL_KEYS]
    assert rotate() == {"rotated": 1, "unchanged": 0, "failed": 0, "dry_run": False}
    assert rotate() == {"rotated": 0, "unchanged": 1, "failed": 0, "dry_run": False}
    settings.CREDENTIAL_KEYS = settings.CREDENTIAL_KEYS[:1]
    device.refresh_from_db()
    assert (device.bin_key, device.last_t) == (key, 7)

    settings.CREDENTIAL_KEYS = [random.token_bytes(32)]
    with pytest.raises(CommandError, match="None of CREDENTIAL_KEYS decrypts 1 secrets"):
        rotate()


def test_a_dry_run_changes_nothing(stored: tuple[ByokCredential, Provider], settings: Any) -> None:
    credential, _ = stored
    settings.CREDENTIAL_KEYS = [random.token_bytes(32), *settings.CREDENTIAL_KEYS]
    assert rotate(dry_run=True) == {"rotated": 2, "unchanged": 0, "failed": 0, "dry_run": True}
    credential.refresh_from_db()
    assert not is_current(bytes(credential.sealed))


@pytest.mark.django_db(transaction=True)
def test_what_is_deleted_meanwhile_is_passed_over(
    stored: tuple[ByokCredential, Provider], settings: Any
) -> None:
    credential, provider = stored
    settings.CREDENTIAL_KEYS = [random.token_bytes(32), *settings.CREDENTIAL_KEYS]
    with ExitStack() as threads, locked(ByokCredential.objects.filter(pk=credential.pk)):
        report = threads.enter_context(beside(rotate))
        wait_until(lambda: waiting() == 1, "the command does not wait")
        Provider.objects.filter(pk=provider.pk).delete()
    assert report.result() == {"rotated": 1, "unchanged": 1, "failed": 0, "dry_run": False}


def test_a_lost_key_is_reported_and_other_secrets_are_rotated(
    stored: tuple[ByokCredential, Provider], tenant: Tenant, settings: Any
) -> None:
    credential, provider = stored
    settings.CREDENTIAL_KEYS = [random.token_bytes(32)]
    kept = factories.make_credential(tenant, provider)
    settings.CREDENTIAL_KEYS = [random.token_bytes(32), *settings.CREDENTIAL_KEYS]
    with pytest.raises(CommandError, match="None of CREDENTIAL_KEYS decrypts 2 secrets"):
        rotate()
    kept.refresh_from_db()
    credential.refresh_from_db()
    assert is_current(bytes(kept.sealed))
    with pytest.raises(DecryptionFailed):
        credential.reveal()
