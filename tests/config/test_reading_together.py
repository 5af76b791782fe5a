"""Rows that are read with one statement are those that the querysets read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from accounts.models import (
    ByokCredential,
    Guardrail,
    GuardrailShadow,
    Organization,
    RateLimit,
    Workspace,
    WorkspaceBudget,
)
from accounts.models.terms import LimitReset
from catalog.models import ModelAlias, PriceVersion
from config.sql import prepare_reading
from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key


def describe(rows: Sequence[Any]) -> list[list[tuple[str, type, Any]]]:
    """Returns each column of rows: its name, the type of its value and the value."""
    return [
        [
            (field.attname, type(value), value)
            for field in row._meta.concrete_fields
            for value in [getattr(row, field.attname)]
        ]
        for row in rows
    ]


def fill(tenant: Tenant) -> None:
    """Stores rows with a value of every kind: numbers, arrays, JSON, bytes and nothing."""
    provider, model = factories.make_provider(), factories.make_model()
    credential = factories.make_credential(tenant, provider, allowed_models=["é\n\"'\\x00"])
    price = factories.make_price("0.000000123456789", "1000", image_output="0.1")
    endpoint = factories.make_draft(tenant, model, provider, price=price)
    validation = factories.make_validation(endpoint, credential)
    Validation.objects.filter(pk=validation.pk).update(
        parameters={"tools": "proven", "ratio": 0.1, "whole": 3, "none": None, "deep": [[1.5]]}
    )
    endpoint.activate()
    make_guardrail(
        tenant.workspace, limit_nano=2**62, reset_interval="daily", allowed_models=[],
        content_filters=[{"action": "block", "label": "x", "pattern": "a\\d"}],
    )  # fmt: skip
    guardrail = make_guardrail(tenant.workspace, name="Watched")
    GuardrailShadow.objects.create(
        guardrail=guardrail, limits={"limit_nano": 5, "share": 0.25}, started_by="test"
    )
    WorkspaceBudget.objects.create(
        workspace=tenant.workspace, interval=LimitReset.DAILY, limit_nano=10**12
    )
    key = make_key(tenant, rate_limits={"requests_per_minute": 3})
    Workspace.objects.filter(pk=tenant.workspace.pk).update(
        io_logging_api_key_ids=[key.number], io_logging_sampling_rate=Decimal("0.5")
    )
    ModelAlias.objects.create(
        organization=tenant.organization, name="fast-*", targets=[model.slug, "b"]
    )


def list_querysets(*organizations: Organization) -> list[QuerySet[Any]]:
    owned = {"organization__in": organizations}
    return [
        Organization.objects.filter(pk__in=[each.pk for each in organizations]),
        Workspace.objects.filter(**owned),
        WorkspaceBudget.objects.filter(workspace__organization__in=organizations),
        Guardrail.objects.filter(**owned).order_by("-name"),
        GuardrailShadow.objects.filter(guardrail__organization__in=organizations),
        RateLimit.objects.filter(**owned),
        ByokCredential.objects.filter(**owned),
        PrivateEndpoint.objects.filter(**owned),
        PriceVersion.objects.filter(pk__in=PrivateEndpoint.objects.filter(**owned).values("price")),
        Validation.objects.filter(endpoint__organization__in=organizations),
        ModelAlias.objects.filter(**owned),
    ]


def test_rows_and_their_order_are_those_of_the_querysets(tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    for each in (tenant, other):
        fill(each)
    querysets = list_querysets(tenant.organization, other.organization)
    with CaptureQueriesContext(connection) as captured:
        found = prepare_reading(*querysets).read()
    assert len(captured) == 1
    for queryset, rows in zip(querysets, found, strict=True):
        assert len(rows) >= 2
        assert describe(rows) == describe(list(queryset.all()))
        assert not any(row._state.adding for row in rows)
        assert [row.get_deferred_fields() for row in rows] == [set()] * len(rows)
        # Equal rows are equal objects, which may be saved and locked.
        assert rows == list(queryset.all())


def test_a_queryset_of_nothing_asks_for_nothing(tenant: Tenant) -> None:
    none, some = Organization.objects.filter(pk__in=[]), Organization.objects.all()
    assert prepare_reading(none, some, none).read() == [[], [tenant.organization], []]
