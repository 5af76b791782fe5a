"""The filters of the console's list of generations."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client, RequestFactory
from django.urls import reverse

from accounts.models import ApiKey
from config.clocks.clock import clock
from inference.ids import id_bound
from inference.models import Generation
from tests.support import factories
from tests.support.factories import Tenant

PATH = "admin:inference_generation_changelist"


def found(client: Client, **query: str) -> set[str]:
    response = client.get(reverse(PATH), query)
    assert response.status_code == 200, response
    return {row.pk for row in response.context["cl"].result_list}


@pytest.fixture
def rows(tenant: Tenant) -> dict[str, Generation]:
    """Two generations that differ in every column of the filters."""
    model, provider = factories.make_model(), factories.make_provider()
    own = factories.make_draft(tenant, model, provider)
    return {
        "a": factories.make_generation(
            tenant, model="acme/a", provider_name="Acme", end_user="ann", status="failed",
            error_type="provider_unavailable", cost_nano=2_000_000_000, latency_ms=1_500,
            streamed=True,
        ),
        "b": factories.make_generation(
            factories.make_tenant("Other"), model="acme/b", provider_name="Beta", end_user="bob",
            cost_nano=1_000, latency_ms=20, is_byok=True, streamed=False, private_endpoint=own,
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        {"status__exact": "failed"},
        {"error_type__exact": "provider_unavailable"},
        {"model__exact": "acme/a"},
        {"provider_name__exact": "Acme"},
        {"end_user__exact": "ann"},
        {"cost_nano__gte": "1.5"},
        {"cost_nano__gte": "2", "cost_nano__lte": "2"},
        {"latency_ms__gte": "1500"},
        {"is_byok__exact": "0"},
        {"streamed__exact": "1", "since": "hour"},
    ],
)
def test_a_filter_finds_the_rows_that_it_names(
    operator: Client, rows: dict[str, Generation], query: dict[str, str]
) -> None:
    assert found(operator, **query) == {rows["a"].pk}
    empty = dict.fromkeys(("model__exact", "since", "cost_nano__lte", "created_at__gte"), "")
    assert found(operator, **{**empty, **query}) == {rows["a"].pk}


def test_pickers_find_the_rows_of_a_key_an_organization_and_an_endpoint(
    operator: Client, rows: dict[str, Generation]
) -> None:
    theirs = rows["b"]
    for query in (
        {"organization__id__exact": str(theirs.organization_id)},
        {"api_key__id__exact": str(theirs.api_key_id)},
        {"private_endpoint__id__exact": str(theirs.private_endpoint_id)},
    ):
        assert found(operator, **query) == {theirs.pk}
    every = {"organization__id__exact": "", "api_key__id__exact": ""}
    assert found(operator, **every) == {row.pk for row in rows.values()}


def test_a_picker_reads_no_list_of_all_keys(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.filter(organization=tenant.organization).first()
    assert key is not None
    text = operator.get(reverse(PATH)).content.decode()
    assert str(key.pk) not in text


def test_a_time_may_have_a_zone(operator: Client, rows: dict[str, Generation]) -> None:
    now = clock.now()
    later = (now + timedelta(minutes=5)).isoformat()
    before = (now - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M")
    everything = {row.pk for row in rows.values()}
    assert found(operator, created_at__gte=before, created_at__lt=later) == everything
    assert found(operator, created_at__gte=later) == set()
    assert found(operator, created_at__lt=before) == set()


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ({"created_at__gte": "2000-01-01", "created_at__lt": "2300-01-01"}, True),
        ({"created_at__gte": "0001-01-01", "created_at__lt": "9999-12-31T23:59:59"}, True),
        ({"created_at__gte": "0001-01-01 00:00:00+14:00"}, True),
        ({"created_at__lt": "9999-12-31 23:59:59-14:00"}, True),
        ({"created_at__gte": "0001-01-01", "since": "hour"}, True),
        ({"created_at__lt": "2001-09-09"}, False),
        ({"created_at__gte": "2286-11-21"}, False),
    ],
)
def test_a_time_may_be_any_of_the_calendar(
    operator: Client, rows: dict[str, Generation], query: dict[str, str], is_found: bool
) -> None:
    assert found(operator, **query) == ({row.pk for row in rows.values()} if is_found else set())


def test_the_first_hours_of_the_calendar_stand_in_the_pickers(operator: Client) -> None:
    """UTC has no such time as those of another zone, so that one stays as it was given."""
    given = {"created_at__gte": "0001-01-01 00:00:00+14:00", "created_at__lt": "0001-01-02"}
    form = operator.get(reverse(PATH), given).context["cl"].filter_specs[0].form

    assert 'value="0001-01-01 00:00:00+14:00"' in str(form["created_at__gte"])
    assert 'value="0001-01-02T00:00:00"' in str(form["created_at__lt"])


def test_a_linked_range_stands_in_the_pickers(operator: Client) -> None:
    """Otherwise the next use of the filters would lose the range."""
    given = {"created_at__gte": "2026-11-23 10:00:05+02:00", "created_at__lt": "2026-11-24"}
    form = operator.get(reverse(PATH), given).context["cl"].filter_specs[0].form

    assert 'value="2026-11-23T08:00:05"' in str(form["created_at__gte"])
    assert 'value="2026-11-24T00:00:00"' in str(form["created_at__lt"])


@pytest.mark.parametrize("name", ["created_at__gte", "created_at__lt"])
@pytest.mark.parametrize(
    "moment",
    [
        "0001-01-01T00:00", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59",
        "9999-12-31T23:59:59-01:00",
    ],
)  # fmt: skip
def test_a_time_at_the_end_of_the_calendar_fails_no_page(
    operator: Client, name: str, moment: str
) -> None:
    assert operator.get(reverse(PATH), {name: moment}).status_code in (200, 302)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"created_at__gte": "yesterday"}, "Enter a valid date/time."),
        ({"cost_nano__gte": "-1"}, "Ensure this value is greater than or equal to 0."),
        ({"latency_ms__gte": "1.5"}, "Ensure that there are no more than 0 decimal places."),
        ({"latency_ms__lte": "1e99"}, "Ensure that there are no more than 9 digits"),
        ({"status__exact": "nonsense"}, "Select a valid choice."),
        ({"cost_nano__gte": "2", "cost_nano__lte": "1"}, "less than the beginning of the range"),
    ],
)
def test_a_wrong_value_is_named_at_its_field(
    operator: Client, rows: dict[str, Generation], query: dict[str, str], message: str
) -> None:
    response = operator.get(reverse(PATH), query)
    assert response.status_code == 200
    assert list(response.context["cl"].result_list) == []
    text = response.content.decode()
    assert message in text
    assert "A filter is wrong" in text


def test_a_range_of_time_reads_its_partitions_alone(tenant: Tenant) -> None:
    factories.make_generation(tenant)
    page = admin.site._registry[Generation]
    request: Any = RequestFactory().get(
        reverse(PATH), {"created_at__gte": "2025-01-01T00:00", "created_at__lt": "2025-01-31T00:00"}
    )
    request.user = type("Operator", (), {"has_perm": lambda *_: True, "is_active": True})()
    changes = page.get_changelist_instance(request)
    sql = str(changes.queryset.query)
    assert id_bound(datetime.fromisoformat("2024-12-31T23:00:00+00:00")) in sql
    assert id_bound(datetime.fromisoformat("2025-01-31T01:00:00+00:00")) in sql
