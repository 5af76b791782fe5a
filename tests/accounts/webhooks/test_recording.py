"""The transitions that store an event, each in its own transaction."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import transaction

from accounts.models import ApiKey
from billing import grants
from config.api.errors import GatewayError
from config.events.outbox import Event
from endpoints.models import Validation
from tests.support import factories
from tests.support.factories import Tenant


@pytest.fixture
def tenant(db: None) -> Tenant:
    made = factories.make_tenant()
    Event.objects.all().delete()
    return made


def taken() -> list[tuple[str, dict[str, Any]]]:
    """Returns the kinds and data of the stored events, by kind, and deletes them.

    Events of one millisecond have no order.
    """
    found = list(Event.objects.order_by("kind", "pk").values_list("kind", "data"))
    Event.objects.all().delete()
    return found


def test_a_key_is_created_and_revoked(tenant: Tenant) -> None:
    key, secret = ApiKey.objects.create_key(workspace=tenant.workspace, name="Production")
    [(kind, data)] = taken()
    assert kind == "key.created"
    assert data == {
        "hash": key.digest, "name": "Production", "label": key.label, "is_management": False,
    }  # fmt: skip
    assert secret.reveal() not in str(data)

    assert key.revoke()
    assert not key.revoke()
    assert [kind for kind, _ in taken()] == ["key.revoked"]


def test_an_endpoint_is_activated_disabled_and_enabled(tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    with pytest.raises(GatewayError):
        endpoint.activate()
    assert taken() == []

    factories.make_validation(endpoint, credential)
    endpoint.activate()
    endpoint.disable(reason="Moved.")
    endpoint.enable()
    found = taken()
    assert [kind for kind, _ in found] == [
        "endpoint.activated", "endpoint.activated", "endpoint.disabled",
    ]  # fmt: skip
    assert found[2][1] == {
        "id": str(endpoint.pk),
        "model": model.canonical_slug,
        "provider": provider.name,
        "upstream_model_id": "sim-echo",
        "reason": "Moved.",
    }


def test_what_is_rolled_back_is_not_told(tenant: Tenant) -> None:
    with transaction.atomic():
        ApiKey.objects.create_key(workspace=tenant.workspace, name="Production")
        transaction.set_rollback(True)
    assert taken() == []


def test_a_grant_waits_for_a_second_operator(tenant: Tenant, settings: Any) -> None:
    settings.GRANT_APPROVAL_NANO = 10**9
    ask = partial(grants.grant_or_request, tenant.organization.pk, by="operator ann", note="")
    assert ask(10**9)
    assert not ask(5_500_000_000)
    data = {"organization": "Acme", "amount_usd": "5.5", "requested_by": "operator ann"}
    assert taken() == [("grant.waiting", data)]


def test_a_lasting_drift_and_a_failure_of_the_watch_are_told_once(tenant: Tenant) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, factories.make_model(), provider)
    factories.make_validation(endpoint, credential)
    endpoint.activate()
    checks = [
        {"name": "base_url", "passed": True},
        {"name": "stream", "passed": False, "reason": "invalid_stream"},
    ]
    for purpose in ("watch", "watch", "activation", "activation"):
        endpoint.record_watch(
            Validation(
                endpoint=endpoint,
                workspace=tenant.workspace,
                credential=credential,
                configuration=endpoint.configuration,
                outcome="failed",
                purpose=purpose,
                checks=checks,
            )
        )
    found = taken()
    assert [kind for kind, _ in found] == [
        "endpoint.activated", "endpoint.drifted", "validation.failed", "validation.failed",
        "validation.failed",
    ]  # fmt: skip
    assert found[2][1]["failed"] == [{"check": "stream", "reason": "invalid_stream"}]
