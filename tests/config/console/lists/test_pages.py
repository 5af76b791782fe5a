"""The pages of a list, forwards and backwards, its count, and its file."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import ApiKey, Organization
from config.apps import Role
from config.console.lists import pages
from config.console.sign_in import roles
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.console import open_list
from tests.support.database import snapshots
from tests.support.factories import Tenant

GENERATIONS = "admin:inference_generation_changelist"
END_USERS = "admin:endusers_enduser_changelist"


def walk(client: Client, path: str, link: str = "next") -> list[list[Any]]:
    """Returns the primary keys of each page, from the first one that the path names."""
    found, query = [], ""
    while True:
        response = client.get(path + query)
        assert response.status_code == 200, response
        changes = response.context["cl"]
        found.append([row.pk for row in changes.result_list])
        if link not in changes.links:
            return found
        query = changes.links[link]


@pytest.fixture
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for page in admin.site._registry.values():
        monkeypatch.setattr(page, "list_per_page", 7)


@pytest.fixture
def generations(tenant: Tenant) -> list[Generation]:
    served = factories.make_endpoint(factories.make_model(), factories.make_provider())
    made = [factories.make_generation(tenant, model_endpoint=served) for _ in range(20)]
    return sorted(made, key=lambda row: row.pk, reverse=True)


@pytest.mark.usefixtures("_short_pages")
def test_pages_hold_every_row_once_forwards_and_backwards(
    operator: Client, generations: list[Generation]
) -> None:
    path = reverse(GENERATIONS)
    forwards = walk(operator, path)
    assert [len(page) for page in forwards] == [7, 7, 6]
    assert [pk for page in forwards for pk in page] == [row.pk for row in generations]

    last = operator.get(path)
    while "next" in last.context["cl"].links:
        last = operator.get(path + last.context["cl"].links["next"])
    second = operator.get(path + last.context["cl"].links["previous"])
    assert [row.pk for row in second.context["cl"].result_list] == forwards[1]
    assert second.context["cl"].links["first"] == "?"


@pytest.mark.usefixtures("_short_pages")
def test_rows_that_arrive_move_nothing(operator: Client, tenant: Tenant) -> None:
    path = reverse(END_USERS)
    for number in range(20):
        EndUser.objects.register(organization_id=tenant.organization.pk, user=f"customer-{number}")
    link = operator.get(path).context["cl"].links["next"]
    before = [row.pk for row in operator.get(path + link).context["cl"].result_list]
    EndUser.objects.register(organization_id=tenant.organization.pk, user="new")
    assert [row.pk for row in operator.get(path + link).context["cl"].result_list] == before


@pytest.mark.usefixtures("_short_pages")
def test_rows_of_one_moment_are_told_apart_by_their_ids(operator: Client, tenant: Tenant) -> None:
    for number in range(20):
        EndUser.objects.register(organization_id=tenant.organization.pk, user=f"customer-{number}")
    EndUser.objects.update(created_at="2026-01-31T00:00:00Z")
    found = walk(operator, reverse(END_USERS))
    assert len({pk for page in found for pk in page}) == 20
    assert sum(map(len, found)) == 20


@pytest.mark.usefixtures("_short_pages", "operator")
def test_a_sorted_list_holds_every_row_once(tenant: Tenant) -> None:
    for provider in (factories.make_provider(), factories.make_provider()):
        for _ in range(8):
            factories.make_draft(tenant, factories.make_model(), provider)
    wanted = sorted(PrivateEndpoint.objects.values_list("pk", flat=True))
    for column in range(1, 8):
        for sign in ("", "-"):
            found = list(read_sorted(PrivateEndpoint, f"?o={sign}{column}"))
            assert sorted(found) == wanted, (sign, column)


def read_sorted(model: type[Any], query: str) -> Iterator[Any]:
    """Yields the primary keys of all pages: of those that have links, or of numbered ones."""
    changes, number = open_list(model, query), 1
    while True:
        yield from (row.pk for row in changes.result_list)
        number += 1
        if "next" in changes.links:
            changes = open_list(model, changes.links["next"])
        elif changes.keyset is None and number <= changes.paginator.num_pages:
            changes = open_list(model, f"{query}&p={number}")
        else:
            return


@pytest.mark.usefixtures("_short_pages")
@pytest.mark.parametrize("position", ["x", "W10", "WyIxIl0", "WyIxIiwiMiJd", "é", "AAAA" * 99])
def test_a_position_of_no_list_is_refused(
    operator: Client, generations: list[Generation], position: str
) -> None:
    path = reverse(END_USERS)
    assert operator.get(path, {"after": position})["Location"] == f"{path}?e=1"


def test_a_count_beyond_the_limit_is_not_claimed(
    operator: Client, generations: list[Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_COUNT", 10)
    for page in admin.site._registry.values():
        monkeypatch.setattr(page, "list_per_page", 5)
    text = operator.get(reverse(GENERATIONS)).content.decode()
    assert "10+ generations" in text
    assert "Select all" not in text
    monkeypatch.setattr(pages, "MAX_COUNT", 20)
    assert "20 generations" in operator.get(reverse(GENERATIONS)).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_says_so(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.make_generation(tenant)
    monkeypatch.setattr(pages, "_PAGE_MS", 50)
    page = admin.site._registry[Generation]
    monkeypatch.setattr(
        type(page), "get_queryset",
        lambda *_: Generation.objects.extra(where=["pg_sleep(1) IS NOT NULL"]),
    )  # fmt: skip
    response = operator.get(reverse(GENERATIONS))
    assert response.status_code == 200
    assert "This took too long" in response.content.decode()
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() != ("50ms",)


def exported(client: Client, name: str, **query: str) -> list[dict[str, str]]:
    response = client.get(reverse(f"{name.removesuffix('changelist')}export_csv"), query)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/csv"
    assert response["Content-Disposition"].startswith('attachment; filename="')
    text = b"".join(response.streaming_content).decode("utf-8-sig")  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.usefixtures("_short_pages")
def test_an_export_has_all_rows_of_the_filtered_list(
    operator: Client, tenant: Tenant, generations: list[Generation],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    other = factories.make_tenant("Other")
    factories.make_generation(other)
    caplog.set_level(logging.INFO, "causeway.console")

    rows = exported(operator, GENERATIONS, organization__id__exact=str(tenant.organization.pk))
    assert sorted(row["id"] for row in rows) == sorted(row.pk for row in generations)
    assert {row["organization"] for row in rows} == {str(tenant.organization)}
    assert "exported 20 rows of inference.generation (operator 'operator')" in caplog.text
    assert len(exported(operator, GENERATIONS)) == 21


def test_an_export_has_plain_values(operator: Client, tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, cost_nano=234_567_890_123)
    [row] = exported(operator, GENERATIONS)
    assert row["cost"] == "234.567890123"
    assert row["status"] == "completed"
    assert row["created at"] == generation.created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_an_export_has_the_columns_of_other_tables(operator: Client, tenant: Tenant) -> None:
    factories.make_generation(tenant, cost_nano=1_500_000_000)
    [row] = exported(operator, "admin:accounts_organization_changelist")
    assert row["available"] == "998.50"
    keys = exported(operator, "admin:accounts_apikey_changelist")
    assert {key["spent this month"] for key in keys} == {"0", "1.5"}


def test_an_export_reads_no_column_row_by_row(operator: Client, tenant: Tenant) -> None:
    path = reverse("admin:accounts_apikey_export_csv")
    counts = []
    for added in (3, 27):
        for number in range(added):
            ApiKey.objects.create_key(workspace=tenant.workspace, name=f"key {added} {number}")
        with CaptureQueriesContext(connection) as queries:
            b"".join(operator.get(path).streaming_content)  # type: ignore[attr-defined]
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_an_export_holds_no_formula(operator: Client, tenant: Tenant) -> None:
    Organization.objects.filter(pk=tenant.organization.pk).update(name="=HYPERLINK(1)")
    [row] = exported(operator, "admin:accounts_organization_changelist")
    assert row["name"] == "'=HYPERLINK(1)"


def test_every_list_can_be_exported(operator: Client, world: dict[str, Any]) -> None:
    with snapshots.unchanged():
        names = [
            f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
            for model in admin.site._registry
        ]
        for name in names:
            changes = operator.get(reverse(name)).context["cl"]
            assert len(exported(operator, name)) == changes.result_count, name


def test_an_export_needs_the_permission_to_view(tenant: Tenant) -> None:
    roles.update_roles()
    limited = User.objects.create_user("sam", is_staff=True)
    client = Client()
    client.force_login(limited)
    path = reverse("admin:billing_transfer_export_csv")
    assert client.get(path).status_code == 403
    limited.groups.add(Group.objects.get(name=Role.READ_ONLY))
    assert client.get(path).status_code == 200
    assert client.get(reverse("admin:auth_user_export_csv")).status_code == 403


def test_a_wrong_filter_of_an_export_leads_to_the_list(operator: Client, tenant: Tenant) -> None:
    path = reverse("admin:billing_transfer_export_csv")
    response = operator.get(path, {"nothing": "x"})
    assert response["Location"] == f"{reverse('admin:billing_transfer_changelist')}?e=1"
