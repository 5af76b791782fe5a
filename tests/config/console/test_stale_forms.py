"""A page or a dialog that was opened before another operator's change does not undo it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from accounts.models import Organization, OrganizationLimit
from config.console.forms import ConsoleForm
from tests.support.console import change, dialogs, messages_of, page, read_form
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_key
from tests.support.operators.four_eyes import press

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


def open_dialog(client: Client, row: Any, verb: str) -> dict[str, Any]:
    """Returns what the dialog of an action would send unchanged."""
    form = client.get(page(row, verb)).context["form"]
    return {**read_form(form), "seen": form.seen}


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


def test_a_dialog_of_before_is_refused_by_the_name_of_what_changed(
    operator: Client, tenant: Tenant
) -> None:
    key = make_key(tenant, limit_nano=100 * 10**9)
    opened = open_dialog(operator, key, "limit_spending")
    key.edit(limit_nano=10 * 10**9)
    ticked = {"include_byok_in_limit": "on"}
    with snapshots.unchanged():
        answer = press(operator, key, "limit_spending", **opened, **ticked)
    form = answer.context["form"]
    assert form.non_field_errors() == [
        "Somebody has changed this since you opened the dialog: Limit in USD. Open it again."
    ]
    # The dialog that shows the refusal is still the old one.
    assert form.seen == opened["seen"]
    fresh = open_dialog(operator, key, "limit_spending")
    press(operator, key, "limit_spending", **fresh, **ticked)
    key.refresh_from_db()
    assert (key.limit_nano, key.include_byok_in_limit) == (10 * 10**9, True)


def test_a_dialog_opened_before_the_first_limit_does_not_take_it_away(
    operator: Client, tenant: Tenant
) -> None:
    opened = open_dialog(operator, tenant.organization, "limit_numbers")
    tenant.organization.set_limits({OrganizationLimit.KEYS: 3})
    with snapshots.unchanged():
        answer = press(operator, tenant.organization, "limit_numbers", **opened)
    assert "Somebody has changed this since you opened the dialog" in answer.content.decode()
    fresh = open_dialog(operator, tenant.organization, "limit_numbers")
    said = messages_of(press(operator, tenant.organization, "limit_numbers", **fresh))
    assert said == ["The limits of Acme were like this already."]


def test_each_dialog_that_fills_in_stored_values_remembers_them(
    operator: Client, world: dict[str, Any]
) -> None:
    checked = set()
    for label, verb in dialogs():
        row = world[label]
        answer = operator.get(page(row, verb))
        form = answer.context["form"]
        assert answer.content.decode().count('name="seen"') == bool(form.initial), (label, verb)
        if not form.initial:
            continue
        assert json.loads(form.seen).keys() == form.initial.keys()
        other = json.dumps(dict.fromkeys(form.initial, "0" * 16))
        with snapshots.unchanged():
            answer = press(operator, row, verb, **{**read_form(form), "seen": other})
        assert "Somebody has changed this" in answer.content.decode(), (label, verb)
        checked.add(verb)
    assert checked == {
        "limit_spending", "limit_numbers", "edit", "replace_deployment", "limit_time",
        "limit_fallback", "place_in_pool",
    }  # fmt: skip
