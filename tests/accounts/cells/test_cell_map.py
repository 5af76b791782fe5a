"""The map from routing codes to cells, and the directory that it is made of."""

from __future__ import annotations

import io
import json
import re

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from accounts.models import Cell, CellIdentity, DirectoryEntry, Organization
from accounts.models.cells import number_of_shard


def run_cell_map(*arguments: str) -> str:
    output = io.StringIO()
    call_command("cell_map", *arguments, stdout=output)
    return output.getvalue()


def list_elsewhere(organization: Organization, cell: str, residence: str = "here") -> None:
    """Adds the row that the replication from another cell brings."""
    DirectoryEntry.objects.create(
        id=f"{cell}:{organization.pk}",
        cell=cell,
        organization_id=organization.pk,
        name=organization.name,
        slug=organization.slug,
        code=organization.code,
        residence=residence,
    )


def test_the_map_has_only_shards_while_nobody_has_moved(db: None) -> None:
    Organization.objects.create_organization(name="Acme")
    Cell.objects.create_cell(name="north", base_url="https://north.example.com")
    assert run_cell_map() == "00 home\n01 north\n"
    assert run_cell_map("--prefix", "cell-") == "00 cell-home\n01 cell-north\n"


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ("here", None, {}),
        ("leaving", None, {}),
        ("leaving", "arriving", {}),
        ("left", "arriving", {"code": "north"}),
        ("left", "here", {"code": "north"}),
    ],
)
def test_a_moved_organization_has_a_line(
    db: None, here: str, there: str | None, expected: dict[str, str]
) -> None:
    Organization.objects.create_organization(name="Stays")
    organization = Organization.objects.create_organization(name="Moves")
    Cell.objects.create_cell(name="north", base_url="https://north.example.com")
    organization.residence = here
    organization.save_fields("residence")
    if there is not None:
        list_elsewhere(organization, "north", there)
    assert json.loads(run_cell_map("--json")) == {
        "shards": {"00": "home", "01": "north"},
        "codes": dict.fromkeys([organization.code] * len(expected), "north"),
    }


def test_an_organization_that_came_back_has_no_line(db: None) -> None:
    organization = Organization.objects.create_organization(name="Returned")
    Cell.objects.create_cell(name="north", base_url="https://north.example.com")
    list_elsewhere(organization, "north", "left")
    assert json.loads(run_cell_map("--json"))["codes"] == {}


def test_no_map_is_made_while_two_cells_have_an_organization(db: None) -> None:
    """One of the two databases was restored: the present map leads to the right one, or did so."""
    organization = Organization.objects.create_organization(name="Doubled")
    Cell.objects.create_cell(name="north", base_url="https://north.example.com")
    list_elsewhere(organization, "north")
    with pytest.raises(
        CommandError, match=r"Doubled lives in home and north\. Keep the present map"
    ):
        run_cell_map()


def test_a_code_begins_with_the_shard_of_its_cell(db: None) -> None:
    assert re.fullmatch("00[0-9a-hjkmnp-tv-z]{6}", _code_of_new_organization())
    CellIdentity.objects.create(name="north", shard="1z")
    assert re.fullmatch("1z[0-9a-hjkmnp-tv-z]{6}", _code_of_new_organization())
    assert DirectoryEntry.objects.filter(cell="north").count() == 1


def test_the_directory_follows_its_organizations(db: None) -> None:
    organization = Organization.objects.create_organization(name="Acme")
    organization.edit(name="Acme Ltd")
    [entry] = DirectoryEntry.objects.all()
    assert (entry.pk, entry.name, entry.code) == (
        f"home:{organization.pk}", "Acme Ltd", organization.code,
    )  # fmt: skip
    organization.delete()
    assert not DirectoryEntry.objects.exists()


def test_shards_are_numbered(db: None) -> None:
    assert [number_of_shard(shard) for shard in ("00", "01", "0z", "10", "zz")] == [
        0, 1, 31, 32, 1023,
    ]  # fmt: skip


@override_settings(CELL="north")
def test_only_the_home_cell_makes_the_map(db: None) -> None:
    with pytest.raises(CommandError, match="run cell_map there"):
        run_cell_map()


def _code_of_new_organization() -> str:
    code = Organization.objects.create_organization(name="Acme").code
    assert code is not None
    return code
