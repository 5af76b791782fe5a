"""What became of a private endpoint, on its page and in the list."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from config.simulator import Simulator
from endpoints.history import events
from endpoints.models import PrivateEndpoint, Validation
from tests import factories, snapshots
from tests.factories import Tenant

SUBMIT = {"_form_submitted": "True"}
LIST = "admin:endpoints_privateendpoint_changelist"


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    return client


def url(endpoint: PrivateEndpoint, verb: str = "change") -> str:
    return reverse(f"admin:endpoints_privateendpoint_{verb}", args=[endpoint.pk])


def titles(endpoint: PrivateEndpoint) -> list[tuple[str, str]]:
    endpoint.refresh_from_db()
    return [(event.title, event.by) for event in events(endpoint)]


def test_the_history_has_what_operators_did_in_order(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(
        tenant, model, provider, base_url=simulator.base_url, declared_region="europe", by="ann"
    )
    form = {**SUBMIT, "workspace": str(tenant.workspace.pk)}
    for verb in ("validate", "activate", "disable", "enable", "disable"):
        operator.post(url(endpoint, verb), form)

    assert titles(endpoint) == [
        ("disabled", "operator operator"),
        ("enabled", "operator operator"),
        ("disabled", "operator operator"),
        ("activated", "operator operator"),
        ("validation passed", ""),
        ("declared", "ann"),
        ("created", ""),
    ]
    before = snapshots.everything()
    text = operator.get(url(endpoint)).content.decode()
    for shown in ("nothing of ZDR, region europe", "for activation", "completion"):
        assert shown in text
    assert snapshots.everything() == before


def test_the_history_has_what_nobody_did_by_name(tenant: Tenant, simulator: Simulator) -> None:
    endpoint = factories.make_active(
        tenant, factories.make_model(), factories.make_provider(), base_url=simulator.base_url
    )
    endpoint.drifted_at = timezone.now()
    endpoint.save_fields("drifted_at")
    endpoint.disable(by="the watch", reason="It drifted.")

    assert titles(endpoint) == [
        ("disabled", "the watch"),
        ("drifted", ""),
        ("activated", ""),
        ("validation passed", ""),
        ("created", ""),
    ]
    assert events(endpoint)[0].text == "It drifted."


def test_the_list_shows_the_last_validation_and_what_is_declared(
    operator: Client, tenant: Tenant
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(
        tenant, model, provider, declared_region="europe", declared_zdr=True
    )
    bare = factories.make_draft(tenant, model, provider)
    validation = factories.make_validation(endpoint, credential)
    three_days_ago = timezone.now() - timedelta(days=3, hours=2)
    Validation.objects.filter(pk=validation.pk).update(created_at=three_days_ago)

    response = operator.get(reverse(LIST))

    admin = response.context["cl"].model_admin
    rows = {row.pk: row for row in response.context["cl"].result_list}
    shown: Any = rows[endpoint.pk]
    assert (admin.validated(shown), admin.validated_ago(shown)) == ("passed", "3\xa0days\xa0ago")
    assert (admin.region(shown), admin.zdr(shown)) == ("europe", "declared")
    assert (admin.validated(rows[bare.pk]), admin.validated_ago(rows[bare.pk])) == ("none", "never")
    assert admin.zdr(rows[bare.pk]) == ""


def test_the_page_makes_as_many_queries_for_10_validations_as_for_1(
    operator: Client, tenant: Tenant
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    counts = []
    for added in (1, 9):
        for _ in range(added):
            factories.make_validation(endpoint, credential)
        operator.get(url(endpoint))
        with CaptureQueriesContext(connection) as queries:
            operator.get(url(endpoint))
        counts.append(len(queries))

    assert counts[0] == counts[1]
    assert len(events(endpoint)) == 11


def test_a_long_history_is_cut(tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    for _ in range(25):
        factories.make_validation(endpoint, credential)

    found = events(endpoint)

    assert len(found) == 21
    assert found[-1].title == "created"


def test_an_empty_list_says_what_to_do(operator: Client) -> None:
    assert "then validate it on its page" in operator.get(reverse(LIST)).content.decode()
