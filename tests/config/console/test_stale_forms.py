"""A page that was opened before another operator's change does not undo that change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from accounts.models import Organization
from config.console.forms import ConsoleForm
from tests.support.console import change, page, read_form
from tests.support.database import snapshots
from tests.support.factories import Tenant

pytestmark = pytest.mark.django_db


def open_form(client: Client, row: Any) -> Any:
    """Returns the form of a row's page."""
    answer = client.get(page(row))
    form: Any = answer.context["adminform"].form
    if isinstance(form, ConsoleForm):
        assert answer.content.decode().count('<input type="hidden" name="seen" value=') == 1
    return form


def send(client: Client, row: Any, form: Any, **changes: str) -> Any:
    """Sends an opened page as a browser does."""
    return change(client, row, {**read_form(form), "seen": form.seen, **changes})


def test_a_page_of_before_is_refused_by_the_name_of_what_changed(
    operator: Client, tenant: Tenant
) -> None:
    form = open_form(operator, tenant.organization)
    tenant.organization.edit(requires_zdr=True)
    with snapshots.unchanged():
        answer = send(operator, tenant.organization, form, name="Renamed")
    [text] = answer.context["adminform"].form.non_field_errors()
    assert text == (
        "Somebody has changed this since you opened the page: Zero data retention only. Open it "
        "again."
    )
    # The page that shows the refusal is still the old one.
    again = answer.context["adminform"].form
    assert again.seen == form.seen
    fresh = open_form(operator, tenant.organization)
    assert send(operator, tenant.organization, fresh, name="Renamed").status_code == 302
    found = Organization.objects.get(pk=tenant.organization.pk)
    assert (found.name, found.requires_zdr) == ("Renamed", True)


@pytest.mark.parametrize("seen", ["no JSON", "[1]", "{}", json.dumps({"name": "0" * 16})])
def test_a_page_that_says_something_else_is_refused(
    operator: Client, tenant: Tenant, seen: str
) -> None:
    form = open_form(operator, tenant.organization)
    with snapshots.unchanged():
        answer = send(operator, tenant.organization, form, name="Renamed", seen=seen)
    assert "Somebody has changed this" in answer.content.decode()


def test_each_page_shows_the_same_until_something_changes(
    operator: Client, world: dict[str, Any]
) -> None:
    checked = set()
    for model, made in admin.site._registry.items():
        row = world.get(model._meta.label_lower)
        if row is None or not issubclass(made.form, ConsoleForm):
            continue
        first, second = open_form(operator, row), open_form(operator, row)
        assert first.seen == second.seen
        checked.add(model._meta.label_lower)
    assert {"accounts.organization", "accounts.guardrail", "catalog.modelendpoint"} <= checked
