"""The console's pages of cells: organizations of all cells, and rows that the home cell keeps."""

from __future__ import annotations

from django.test import Client, override_settings
from django.urls import reverse

from accounts.models import Cell, CellIdentity, DirectoryEntry
from tests.support.factories import Tenant, make_provider

DIRECTORY = reverse("admin:accounts_directoryentry_changelist")


def list_northern() -> DirectoryEntry:
    """Adds the row that the replication from another cell brings."""
    Cell.objects.create_cell(name="north", base_url="https://north.example.com")
    number = "00000000-0000-0000-0000-000000000042"
    return DirectoryEntry.objects.create(
        id=f"north:{number}", cell="north", organization_id=number, name="Northern", slug="n",
        code="01abcdef", residence="here",
    )  # fmt: skip


def test_the_directory_links_into_each_cell(operator: Client, tenant: Tenant) -> None:
    entry = list_northern()
    page = operator.get(DIRECTORY).content.decode()
    here = reverse("admin:accounts_organization_change", args=[tenant.organization.pk])
    there = reverse("admin:accounts_organization_change", args=[entry.organization_id])
    assert f'<a href="{here}">Open</a>' in page
    assert f'<a href="https://north.example.com{there}" rel="noopener">Open in north</a>' in page


def test_the_directory_is_filtered_by_cell_and_hides_what_has_left(
    operator: Client, tenant: Tenant
) -> None:
    entry = list_northern()
    page = operator.get(DIRECTORY, {"cell": "north"}).content.decode()
    assert ("Northern" in page, tenant.organization.name in page) == (True, False)
    entry.residence = "left"
    entry.save(update_fields=["residence"])
    assert "Northern" not in operator.get(DIRECTORY).content.decode()


@override_settings(CELL="north")
def test_rows_of_the_home_cell_are_shown_elsewhere_and_not_changed(
    operator: Client,
) -> None:
    provider = make_provider()
    CellIdentity.objects.create(name="north", shard="01")
    url = reverse("admin:catalog_provider_change", args=[provider.pk])
    assert "The home cell keeps this row" in operator.get(url).content.decode()
    assert operator.post(url, {"name": "Other"}).status_code == 403
    assert operator.get(reverse("admin:catalog_provider_add")).status_code == 403
    provider.refresh_from_db()
    assert provider.name != "Other"
