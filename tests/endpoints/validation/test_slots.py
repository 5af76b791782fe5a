"""At most two validations of an organization run at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from catalog.models import LanguageModel
from endpoints import watch
from endpoints.models import PrivateEndpoint, ValidationsBusy, ValidationSlot
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import KEY, ROUTE
from tests.support.endpoints.validating import validate
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator


def occupy(tenant: Tenant) -> list[ValidationSlot]:
    return [ValidationSlot(organization=tenant.organization).take() for _ in range(2)]


def assert_busy(response: Any) -> None:
    assert response.status_code == 429, response.content
    error = response.json()["error"]
    assert error["metadata"] == {"error_type": "rate_limit_exceeded", "limit": 2}
    seconds = int(response.headers["Retry-After"])
    assert error["message"] == (
        "At most 2 validations of an organization run at a time. Try again when one of them has "
        f"ended, at the latest in {seconds} s. Nothing was changed."
    )
    assert 1 <= seconds <= 60


def test_a_third_validation_waits_for_a_slot_of_its_organization(tenant: Tenant) -> None:
    first, _ = occupy(tenant)
    with pytest.raises(ValidationsBusy):
        ValidationSlot(organization=tenant.organization).take()
    ValidationSlot(organization=factories.make_tenant("Neighbour").organization).take()
    with first:
        pass
    ValidationSlot(organization=tenant.organization).take()


def test_the_slot_of_a_killed_process_ends_by_itself(tenant: Tenant) -> None:
    occupy(tenant)
    ended = timezone.now() - timedelta(seconds=30)
    ValidationSlot.objects.filter(number=1).update(until=ended)
    late = ValidationSlot.objects.get(number=1)
    taken = ValidationSlot(organization=tenant.organization).take()
    assert taken.number == 1
    with late:
        pass  # gives back nothing: the slot has another holder
    with pytest.raises(ValidationsBusy):
        ValidationSlot(organization=tenant.organization).take()


def test_validate_is_refused_before_anything_changes(
    management: APIClient,
    tenant: Tenant,
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
    upstream: Simulator,
) -> None:
    route = f"{ROUTE}/{make_draft(model).pk}/validate"
    body = {"workspace_id": str(tenant.workspace.pk)}
    slots = occupy(tenant)
    with snapshots.unchanged():
        assert_busy(management.post(route, body))
    assert upstream.connections == 0
    with slots[0]:
        pass
    assert management.post(route, body).json()["data"]["passed"] is True
    assert ValidationSlot.objects.count() == 1


def test_create_with_activate_is_refused_before_it_uses_its_key(
    management: APIClient, tenant: Tenant, activating: dict[str, Any], upstream: Simulator
) -> None:
    slots = occupy(tenant)
    with snapshots.unchanged():
        assert_busy(management.post(ROUTE, activating, headers=KEY))
    assert upstream.connections == 0
    for slot in slots:
        with slot:
            pass
    created = management.post(ROUTE, activating, headers=KEY)
    assert (created.status_code, created.json()["data"]["status"]) == (201, "active")
    assert not ValidationSlot.objects.exists()
    occupy(tenant)
    replayed = management.post(ROUTE, activating, headers=KEY)
    assert (replayed.status_code, replayed.json()) == (201, created.json())


@pytest.mark.parametrize("behaviour", ["sim-stall", "sim-500", "sim-echo"])
def test_a_validation_gives_its_slot_back(
    make_draft: Callable[..., PrivateEndpoint], model: LanguageModel, settings: Any, behaviour: str
) -> None:
    settings.VALIDATION_TIMEOUT = 1.0 if behaviour == "sim-stall" else 30.0
    validate(make_draft(model, upstream_model_id=behaviour))
    assert not ValidationSlot.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_concurrent_calls_take_two_slots(together: Callable[..., list[Any]]) -> None:
    organization = factories.make_tenant().organization

    def take() -> bool:
        try:
            ValidationSlot(organization=organization).take()
        except ValidationsBusy:
            return False
        return True

    assert sorted(together(*[take] * 12)) == [False] * 10 + [True] * 2


def test_the_watch_waits_for_a_slot(tenant: Tenant, active: PrivateEndpoint, settings: Any) -> None:
    settings.WATCH_INTERVAL = 60
    long_ago = timezone.now() - timedelta(hours=1)
    PrivateEndpoint.objects.filter(pk=active.pk).update(activated_at=long_ago)
    slots = occupy(tenant)
    assert watch.watch_due() == 0
    active.refresh_from_db()
    assert active.watched_at is None
    with slots[0]:
        pass
    assert watch.watch_due() == 1
    assert ValidationSlot.objects.count() == 1
