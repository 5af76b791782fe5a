from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalog.pricing import NANO
from endpoints import watch
from endpoints.models import PrivateEndpoint, Validation, ValidationSlot
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

pytestmark = pytest.mark.django_db


@pytest.fixture
def endpoint(tenant: Tenant, simulator: Simulator, settings: Any) -> PrivateEndpoint:
    """Returns an endpoint that was activated an hour ago; the watch checks it every minute."""
    settings.WATCH_INTERVAL = 60
    price = factories.make_price("0.001", "0.001")
    model, provider = factories.make_model(), factories.make_provider()
    made = factories.make_active(tenant, model, provider, base_url=simulator.base_url, price=price)
    age(made)
    return made


def age(endpoint: PrivateEndpoint) -> None:
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(
        activated_at=timezone.now() - timedelta(hours=1)
    )


def make_due(endpoint: PrivateEndpoint) -> None:
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(watched_at=None)


def pretend_baseline(endpoint: PrivateEndpoint, **evidence: Any) -> None:
    """Changes the stored evidence of the activation, so that the deployment seems to differ."""
    assert endpoint.validation is not None
    endpoint.validation.evidence |= evidence
    endpoint.validation.save_fields("evidence")


def test_activate_stores_the_evidence(endpoint: PrivateEndpoint) -> None:
    assert endpoint.validation is not None
    evidence = endpoint.validation.evidence
    assert set(evidence) == {
        "address",
        "certificate_key",
        "model",
        "system_fingerprint",
        "prompt_tokens",
        "first_event_ms",
        "operations",
    }
    assert evidence["address"] == "127.0.0.1"
    assert evidence["model"] == "sim-echo"
    assert len(evidence["certificate_key"]) == 64


def test_an_interval_of_zero_stops_the_watch(endpoint: PrivateEndpoint, settings: Any) -> None:
    settings.WATCH_INTERVAL = 0
    assert watch.watch_due() == 0
    assert Validation.objects.filter(purpose="watch").count() == 0


def test_an_unchanged_endpoint_shows_no_drift_and_waits_for_its_next_turn(
    endpoint: PrivateEndpoint,
) -> None:
    assert watch.watch_due() == 1
    assert watch.watch_due() == 0
    endpoint.refresh_from_db()
    assert endpoint.drifted_at is None
    assert endpoint.watched_at is not None
    found = Validation.objects.get(purpose="watch")
    assert (found.outcome, found.changes) == ("passed", [])
    assert endpoint.validation_id != found.pk


def test_a_different_model_at_the_same_address_is_drift(endpoint: PrivateEndpoint) -> None:
    pretend_baseline(endpoint, model="sim-echo-large")
    assert watch.watch_due() == 1
    endpoint.refresh_from_db()
    assert endpoint.drifted_at is not None
    assert endpoint.status == "active"
    assert Validation.objects.get(purpose="watch").changes == [
        {"name": "model", "was": "sim-echo-large", "is": "sim-echo"}
    ]


def test_a_new_certificate_is_recorded_but_is_not_drift(endpoint: PrivateEndpoint) -> None:
    pretend_baseline(endpoint, certificate_key="0" * 64)
    watch.watch_due()
    endpoint.refresh_from_db()
    assert endpoint.drifted_at is None
    [change] = Validation.objects.get(purpose="watch").changes
    assert (change["name"], change["was"]) == ("certificate_key", "0" * 64)


def test_drift_ends_when_the_deployment_matches_again(endpoint: PrivateEndpoint) -> None:
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(drifted_at=timezone.now())
    watch.watch_due()
    endpoint.refresh_from_db()
    assert endpoint.drifted_at is None


def test_the_bound_follows_a_vendor_that_adds_more(
    endpoint: PrivateEndpoint, settings: Any
) -> None:
    """What a later validation measures counts where it is more than the activation's."""
    settings.WATCH_SPEND_LIMIT = 100
    found = []
    for behaviour in ("sim-tokens:700,5", "sim-tokens:100,5", "sim-tokens:900,5"):
        PrivateEndpoint.objects.filter(pk=endpoint.pk).update(upstream_model_id=behaviour)
        make_due(endpoint)
        assert watch.watch_due() == 1
        endpoint.refresh_from_db()
        assert endpoint.validation is not None
        found.append(endpoint.validation.evidence.get("added_tokens"))
    assert found == [665, 665, 865]


def test_an_unreachable_deployment_has_not_drifted(
    endpoint: PrivateEndpoint, settings: Any
) -> None:
    settings.WATCH_DISABLES = True
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(base_url="https://127.0.0.1:1025/v1")
    watch.watch_due()
    endpoint.refresh_from_db()
    assert (endpoint.status, endpoint.drifted_at) == ("active", None)
    assert Validation.objects.get(purpose="watch").outcome == "unreachable"


def test_drift_disables_the_endpoint_if_the_setting_is_on(
    endpoint: PrivateEndpoint, settings: Any
) -> None:
    settings.WATCH_DISABLES = True
    pretend_baseline(endpoint, prompt_tokens=1)
    watch.watch_due()
    endpoint.refresh_from_db()
    assert (endpoint.status, endpoint.drifted_at is None) == ("active", False)
    make_due(endpoint)
    watch.watch_due()
    endpoint.refresh_from_db()
    assert endpoint.status == "disabled"
    assert endpoint.disabled_by == "drift watch"
    assert endpoint.disabled_reason == "prompt_tokens was 1, is 6"


@pytest.mark.parametrize(
    ("behaviour", "is_drift"),
    [
        ("sim-status:429", False),
        ("sim-status:401", False),
        ("sim-status:500", False),
        ("sim-connect-reset", False),
        ("sim-reset-body", False),
        ("sim-reset-stream", False),
        ("sim-wrong-model", True),
        ("sim-no-usage", True),
        ("sim-wrong-shape", True),
        ("sim-html", True),
    ],
)
def test_drift_is_another_answer_and_not_an_unavailable_deployment(
    endpoint: PrivateEndpoint, settings: Any, behaviour: str, is_drift: bool
) -> None:
    settings.WATCH_DISABLES = True
    pretend_baseline(endpoint, model=behaviour)
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(upstream_model_id=behaviour)
    for _ in range(2):
        make_due(endpoint)
        assert watch.watch_due() == 1
    endpoint.refresh_from_db()
    assert (endpoint.drifted_at is not None) == is_drift
    assert endpoint.status == ("disabled" if is_drift else "active")


def test_an_unavailable_deployment_ends_no_drift(endpoint: PrivateEndpoint) -> None:
    since = timezone.now()
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(
        drifted_at=since, upstream_model_id="sim-status:503"
    )
    watch.watch_due()
    endpoint.refresh_from_db()
    assert endpoint.drifted_at == since


def test_watching_stops_at_the_spend_limit(endpoint: PrivateEndpoint, settings: Any) -> None:
    watch.watch_due()
    spent = watch.spent_today(endpoint.organization_id)
    assert spent > 0
    PrivateEndpoint.objects.update(watched_at=timezone.now() - timedelta(hours=1))
    settings.WATCH_SPEND_LIMIT = spent / NANO
    assert watch.watch_due() == 0
    assert watch.spent_today(endpoint.organization_id) == spent
    settings.WATCH_SPEND_LIMIT = (spent + 1) / NANO
    assert watch.watch_due() == 1


def test_no_organization_keeps_the_endpoints_of_another_from_being_watched(
    endpoint: PrivateEndpoint, simulator: Simulator, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has many endpoints that are older; then it has spent its day, or its slots are taken."""
    many = factories.make_tenant("globex")
    for _ in range(2):
        made = factories.make_active(
            many, endpoint.model, endpoint.provider, base_url=simulator.base_url,
            price=factories.make_price("999", "999"),
        )  # fmt: skip
        age(made)
        PrivateEndpoint.objects.filter(pk=made.pk).update(
            activated_at=timezone.now() - timedelta(hours=2)
        )
    monkeypatch.setattr(watch, "_BATCH", 2)

    def watched() -> list[str]:
        rows = Validation.objects.filter(purpose=Validation.Purpose.WATCH).order_by("created_at")
        return [row.endpoint.organization.name for row in rows]

    first, second = many.organization.name, endpoint.organization.name
    assert watch.watch_due() == 2
    assert watched() == [first, second]
    PrivateEndpoint.objects.update(watched_at=timezone.now() - timedelta(hours=1))
    assert watch.watch_due() == 1
    assert watched() == [first, second, second]
    Validation.objects.filter(endpoint__organization=many.organization).update(cost_nano=0)
    PrivateEndpoint.objects.update(watched_at=timezone.now() - timedelta(hours=1))
    for _ in range(2):
        ValidationSlot(organization_id=many.organization.pk).take()
    assert watch.watch_due() == 1
    assert watched() == [first, second, second, second]


def test_an_organization_whose_turn_ended_a_round_does_not_begin_the_next_one(
    endpoint: PrivateEndpoint, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow one has many endpoints that were never watched; a round has time for one watch."""
    slow, place = factories.make_tenant("globex"), {"base_url": simulator.base_url}
    for _ in range(3):
        made = factories.make_active(slow, endpoint.model, endpoint.provider, **place)
        PrivateEndpoint.objects.filter(pk=made.pk).update(
            activated_at=timezone.now() - timedelta(hours=2)
        )
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(
        watched_at=timezone.now() - timedelta(hours=1)
    )
    monkeypatch.setattr(watch, "_BATCH", 1)
    turns = []
    for _ in range(3):
        assert watch.watch_due() == 1
        found = Validation.objects.filter(purpose="watch").latest("created_at").endpoint
        turns.append(found.organization.name)
        # An organization does not win its turn back by deleting what was watched.
        if found.pk != endpoint.pk:
            found.remove()
    first, second = slow.organization.name, endpoint.organization.name
    assert turns == [first, second, first]


def test_a_disabled_or_deleted_endpoint_is_not_watched(
    tenant: Tenant, endpoint: PrivateEndpoint, simulator: Simulator
) -> None:
    deleted = factories.make_active(
        tenant, endpoint.model, endpoint.provider, base_url=simulator.base_url
    )
    age(deleted)
    deleted.remove()
    endpoint.disable()
    assert watch.watch_due() == 0
