from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from accounts.models import ByokCredential
from catalog.models import LanguageModel
from config.changes.kinds import ChangeKind
from config.credentials import Secret
from endpoints import rotation
from endpoints.models import PrivateEndpoint, Validation, ValidationStale
from endpoints.rotation import RotationRefused
from tests.support import factories
from tests.support.console import messages_of
from tests.support.database import snapshots
from tests.support.database.locks import waiting
from tests.support.endpoints.validating import held, validate
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import WHY, demand, demote, press, proposed, sign_in
from tests.support.simulator.server import Simulator

pytestmark = pytest.mark.django_db

NEW = Secret("another-credential-0123456789")
# The simulated provider refuses keys with the prefix "bad".
BAD = Secret("bad-credential-0123456789")


def remove(name: str) -> None:
    """Closes the account of an operator."""
    User.objects.filter(username=name).update(is_active=False)


def test_dependants_are_the_endpoints_validated_with_the_credential(
    tenant: Tenant, credential: ByokCredential, active: PrivateEndpoint
) -> None:
    factories.make_draft(tenant, active.model, active.provider)
    other = factories.make_credential(tenant, factories.make_provider())
    assert list(rotation.dependants(credential)) == [active]
    assert list(rotation.dependants(other)) == []


def test_rotation_asks_for_no_pass_of_what_failed_or_is_disabled(
    tenant: Tenant, credential: ByokCredential, active: PrivateEndpoint
) -> None:
    place = {"base_url": active.base_url}
    failing = factories.make_draft(
        tenant, active.model, active.provider, upstream_model_id="sim-status", **place
    )
    assert not validate(failing).passed
    disabled = factories.make_active(tenant, active.model, active.provider, **place)
    disabled.disable()
    PrivateEndpoint.objects.filter(pk=disabled.pk).update(upstream_model_id="sim-status")
    [made] = rotation.rotate(credential, NEW, revalidate=True)
    assert (made.endpoint, made.passed) == (active, True)
    credential.refresh_from_db()
    assert credential.reveal() == NEW


@pytest.mark.parametrize(
    ("way", "leave"), [("dialog", remove), ("dialog", demote), ("approval", remove)]
)
def test_a_rotation_whose_operator_may_not_rotate_any_more_changes_nothing(
    transactional_db: None,
    credential: ByokCredential,
    model: LanguageModel,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
    way: str,
    leave: Callable[[str], None],
) -> None:
    """The operator leaves while the endpoints are validated with the new secret."""
    endpoint = make_draft(model, upstream_model_id="sim-held")
    factories.make_validation(endpoint, credential)
    endpoint.activate()
    clients = {name: sign_in(name) for name in ("ann", "bob")}
    given = {"secret": NEW.reveal(), "revalidate": "on"}
    if way == "dialog":
        name, ask = "ann", partial(press, clients["ann"], credential, "rotate", **given)
    else:
        demand(ChangeKind.CREDENTIALS)
        press(clients["ann"], credential, "rotate", **given, **WHY)
        name, ask = "bob", partial(press, clients["bob"], proposed(), "approve")
    before = snapshots.everything()
    with held(upstream, ask) as pending:
        leave(name)
    assert upstream.total_requests == 2
    assert snapshots.everything() == before
    if leave is demote:
        said = messages_of(pending.result())
        assert said == ["You may not do this any more. Nothing was changed."]
    if way == "approval":
        assert proposed().decided_by == ""


def test_rotation_makes_the_validations_of_dependants_stale(
    tenant: Tenant, credential: ByokCredential, active: PrivateEndpoint
) -> None:
    draft = factories.make_draft(tenant, active.model, active.provider, base_url=active.base_url)
    assert validate(draft).passed
    assert rotation.rotate(credential, NEW) == []
    with pytest.raises(ValidationStale):
        draft.activate()


def test_rotation_with_revalidation_keeps_dependants_current(
    tenant: Tenant, credential: ByokCredential, active: PrivateEndpoint, simulator: Simulator
) -> None:
    draft = factories.make_draft(tenant, active.model, active.provider, base_url=active.base_url)
    assert validate(draft).passed
    simulator.clear()
    made = rotation.rotate(credential, NEW, revalidate=True)
    assert [found.outcome for found in made] == ["passed", "passed"]
    assert {request.headers["authorization"] for request in simulator.requests} == {
        f"Bearer {NEW.reveal()}"
    }
    credential.refresh_from_db()
    assert credential.version == 2
    assert credential.reveal() == NEW
    draft.activate()
    assert draft.status == "active"


@pytest.mark.django_db(transaction=True)
def test_rotation_locks_dependants_in_the_lock_order_of_admission(
    tenant: Tenant,
    credential: ByokCredential,
    active: PrivateEndpoint,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    other = factories.make_active(tenant, active.model, active.provider, base_url=active.base_url)
    low, high = sorted((active.pk, other.pk))
    PrivateEndpoint.objects.filter(pk=low).update(created_at=timezone.now())

    def rotate() -> list[Validation]:
        try:
            return rotation.rotate(credential, NEW, revalidate=True)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            hold = "SELECT id FROM endpoints_privateendpoint WHERE id = %s FOR KEY SHARE"
            cursor.execute(hold, [low])
            rotated = pool.submit(rotate)
            eventually(lambda: waiting() == 1)
            cursor.execute(hold, [high])
        assert [made.outcome for made in rotated.result()] == ["passed", "passed"]


def test_rotation_with_a_secret_that_fails_changes_nothing(
    credential: ByokCredential, active: PrivateEndpoint
) -> None:
    before = credential.reveal()
    count = Validation.objects.count()
    with pytest.raises(RotationRefused) as caught:
        rotation.rotate(credential, BAD, revalidate=True)
    assert caught.value.metadata == {"endpoint_id": str(active.pk), "reason": "upstream_error"}
    credential.refresh_from_db()
    assert (credential.version, credential.reveal()) == (1, before)
    assert Validation.objects.count() == count


def test_rotation_validates_with_the_rotated_credential(
    tenant: Tenant, credential: ByokCredential, active: PrivateEndpoint, simulator: Simulator
) -> None:
    factories.make_credential(tenant, active.provider, "preferred-credential-0123456789")
    credential.is_fallback = True
    credential.save_fields("is_fallback")
    simulator.clear()
    [made] = rotation.rotate(credential, NEW, revalidate=True)
    assert (made.credential_id, made.credential_version) == (credential.pk, 2)
    assert {request.headers["authorization"] for request in simulator.requests} == {
        f"Bearer {NEW.reveal()}"
    }
    active.refresh_from_db()
    assert active.validation == made


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"allowed_hosts": ["other.example"]}, "invalid_base_url"),
        ({"disabled": True}, "no_byok_key"),
    ],
)
def test_rotation_never_sends_the_secret_of_an_unusable_credential(
    tenant: Tenant,
    credential: ByokCredential,
    active: PrivateEndpoint,
    simulator: Simulator,
    limit: dict[str, Any],
    reason: str,
) -> None:
    factories.make_credential(tenant, active.provider, "preferred-credential-0123456789")
    for name, value in {"is_fallback": True, **limit}.items():
        setattr(credential, name, value)
    credential.save_fields("is_fallback", *limit)
    before = credential.reveal()
    count = Validation.objects.count()
    simulator.clear()
    with pytest.raises(RotationRefused) as caught:
        rotation.rotate(credential, NEW, revalidate=True)
    assert caught.value.metadata == {"endpoint_id": str(active.pk), "reason": reason}
    assert simulator.requests == []
    credential.refresh_from_db()
    assert (credential.version, credential.reveal()) == (1, before)
    assert Validation.objects.count() == count
