"""Dialogs and actions of the console: permissions, confirmation and their reports."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey
from config.audit.entries import AuditEntry
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from tests.support import factories
from tests.support.console import (
    SECRET,
    SUBMIT,
    dialogs,
    fingerprint,
    listing,
    messages_of,
    page,
    report_of,
)
from tests.support.factories import Tenant
from tests.support.governance import make_key
from tests.support.simulator.server import Simulator


def test_a_dialog_redirects_the_browser_with_a_header(operator: Client, tenant: Tenant) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())

    response = operator.post(page(endpoint, "activate"), SUBMIT, headers={"HX-Request": "true"})

    assert response["HX-Redirect"] == page(endpoint)
    assert messages_of(operator.get(page(endpoint))) == [
        "The endpoint has no passed validation: call validate first."
    ]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(("label", "verb"), dialogs())
def test_action_on_a_missing_row_changes_nothing(operator: Client, label: str, verb: str) -> None:
    path = reverse(f"admin:{label.replace('.', '_')}_{verb}", args=["no-such-id"])
    before = fingerprint()

    assert operator.get(path).status_code == 200
    response = operator.post(path, SUBMIT)

    if response.status_code == 200:
        # What the dialog asks for is missing.
        assert response.context["form"].errors
    else:
        assert (response.status_code, response["Location"]) == (302, reverse("admin:index"))
    assert fingerprint() == before


@pytest.mark.parametrize("verb", ["validate", "activate", "disable", "enable", "remove"])
def test_action_is_refused_without_permission(viewer: Client, tenant: Tenant, verb: str) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    before = fingerprint()

    response = viewer.post(page(endpoint, verb), {**SUBMIT, "workspace": str(tenant.workspace.pk)})

    assert response.status_code == 403
    assert fingerprint() == before
    assert viewer.get(page(endpoint)).context["actions_detail"] == []


@pytest.mark.parametrize(
    ("label", "verb"),
    [
        ("accounts.apikey", "limit_spending"),
        ("accounts.apikey", "pause"),
        ("accounts.apikey", "resume"),
        ("accounts.apikey", "revoke"),
        ("accounts.apikey", "change"),
        ("accounts.byokcredential", "change"),
        ("accounts.byokcredential", "remove"),
        ("catalog.provider", "change"),
        ("endusers.enduser", "change"),
    ],
)
def test_change_is_refused_without_permission(
    viewer: Client, world: dict[str, Any], label: str, verb: str
) -> None:
    before = fingerprint()

    response = viewer.post(page(world[label], verb), {**SUBMIT, "name": "x", "secret": SECRET})

    assert response.status_code == 403
    assert fingerprint() == before


def test_action_needs_the_token_of_its_page(tenant: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("operator"))
    key = ApiKey.objects.all()[0]

    response = client.post(page(key, "revoke"), SUBMIT)

    assert response.status_code == 403
    assert not ApiKey.objects.filter(disabled=True).exists()


def test_bulk_action_reports_each_row(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    good = factories.make_active(tenant, model, provider, base_url=simulator.base_url)
    draft = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    chosen = {"action": "disable_selected", "_selected_action": [str(good.pk), str(draft.pk)]}

    response = operator.post(listing(PrivateEndpoint), {**chosen, "confirmed": "yes"}, follow=True)

    summary, *lines = report_of(response)
    assert summary == "Disable: 1 done, 1 refused."
    assert lines == sorted(
        [str(good), f"{draft}: The private endpoint is draft; this needs it to be active."]
    )
    good.refresh_from_db()
    assert (good.status, good.disabled_by) == ("disabled", "operator operator")
    assert AuditEntry.objects.get().object_id == str(good.pk)


def _everybody(tenant: Tenant, count: int) -> dict[str, str]:
    EndUser.objects.bulk_create(
        EndUser(organization=tenant.organization, user=f"user-{number:05}")
        for number in range(count)
    )
    selected = str(EndUser.objects.filter(user="user-00000").get().pk)
    return {
        "action": "deactivate_selected", "select_across": "1", "_selected_action": selected,
    }  # fmt: skip


def test_confirmation_for_all_rows_of_a_list_omits_their_keys(
    operator: Client, tenant: Tenant
) -> None:
    form = _everybody(tenant, 1_200)
    other = EndUser.objects.register(organization_id=tenant.organization.pk, user="another")
    address = f"{listing(EndUser)}?q=user-"
    asked = operator.post(address, {**form, "index": "0"})
    assert (len(asked.context["rows"]), asked.context["hidden"]) == (200, 1_000)
    text = asked.content.decode()
    assert "1000 more rows" in text
    assert 'name="select_across" value="1"' in text
    assert text.count('name="_selected_action"') == 1
    assert EndUser.objects.filter(is_active=True).count() == 1_201

    assert f'name="digest" value="{asked.context["digest"]}"' in text
    carried = {
        **form, "_selected_action": "all", "digest": asked.context["digest"], "confirmed": "yes",
    }  # fmt: skip
    done = operator.post(address, carried, follow=True)
    summary, *lines = report_of(done)
    assert summary.endswith(": 1,200 done.")
    assert (len(lines), lines[0]) == (201, "1000 more")
    assert list(EndUser.objects.filter(is_active=True)) == [other]


@pytest.mark.parametrize("change", ["appears", "leaves", "unasked"])
def test_action_on_all_rows_changes_nothing_when_the_list_has_changed(
    operator: Client, tenant: Tenant, change: str
) -> None:
    keys = [make_key(tenant, f"late-{number}") for number in range(3)]
    form = {"action": "revoke_selected", "select_across": "1", "_selected_action": str(keys[0].pk)}
    address = f"{listing(ApiKey)}?q=late-"
    asked = operator.post(address, {**form, "index": "0"})
    carried = {**form, "_selected_action": "all", "confirmed": "yes"}
    if change == "appears":
        keys.append(make_key(tenant, "late-3"))
    elif change == "leaves":
        keys.pop().edit(name="other")
    if change != "unasked":
        carried["digest"] = asked.context["digest"]
    done = operator.post(address, carried, follow=True)
    assert messages_of(done) == [
        "The list has changed since you selected it. Nothing was changed; select again."
    ]
    assert not ApiKey.objects.filter(disabled=True).exists()

    again = operator.post(address, {**form, "index": "0"})
    done = operator.post(address, {**carried, "digest": again.context["digest"]}, follow=True)
    assert report_of(done)[1:] == sorted(map(str, keys))
    assert set(ApiKey.objects.filter(disabled=True)) == set(keys)


@pytest.mark.parametrize("confirmed", ["", "yes"])
def test_action_refuses_too_many_rows_before_it_changes_any(
    operator: Client, tenant: Tenant, confirmed: str
) -> None:
    form = _everybody(tenant, 10_001)
    done = operator.post(listing(EndUser), {**form, "confirmed": confirmed}, follow=True)
    assert messages_of(done) == [
        "At most 10,000 rows at a time. Narrow the list. Nothing was changed."
    ]
    assert EndUser.objects.filter(is_active=True).count() == 10_001
    assert not AuditEntry.objects.exists()
