"""The page of an organization as the place for everything about it: tabs, steps, columns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import ApiKey, Member, Organization
from billing.models import Meter
from config.apps import declarations
from config.clocks.clock import clock
from inference.reports.rollups import roll_up_usage
from tests.support import console, factories
from tests.support.factories import Tenant
from tests.support.governance import make_member
from tests.support.operators.four_eyes import press, sign_in_with

DAY = timedelta(days=1)


def _change_something(operator: Client, tenant: Tenant) -> None:
    """Makes an entry of the audit log, which names the organization."""
    press(operator, tenant.organization, "suspend", reason="Closed.")


def titles(response: Any) -> list[str]:
    bar = response.context["tab_bar"]
    return [title for title, _, _ in (*bar.tabs, *bar.more)]


def test_tabs_lead_to_the_rows_of_the_organization_and_back(
    operator: Client, world: dict[str, Any], tenant: Tenant
) -> None:
    _change_something(operator, tenant)
    shown = operator.get(console.page(tenant.organization))
    bar = shown.context["overview"]["tab_bar"]
    assert bar.name == "Acme"
    assert [title for title, _, _ in bar.tabs] == [
        "Overview", "API keys", "Members", "Workspaces", "End users", "Endpoints", "Guardrails",
        "Requests",
    ]  # fmt: skip
    assert [title for title, _, _ in bar.more] == [
        "Ledger", "Credentials", "Presets", "Grants", "Top-ups", "Under review", "Destinations",
        "Audit", "Webhooks", "Deliveries", "Own models", "Own providers",
    ]  # fmt: skip
    every = [*bar.tabs, *bar.more]
    stranger = factories.make_tenant("Other")
    make_member(stranger.organization)

    for title, url, _ in every[1:]:
        answer = operator.get(url)
        shown = answer.context["tab_bar"]
        assert titles(answer) == [name for name, _, _ in every]
        assert [name for name, _, is_here in (*shown.tabs, *shown.more) if is_here] == [title]
        rows = list(answer.context["cl"].result_list)
        assert rows, title
        assert {row.organization_id for row in rows} == {tenant.organization.pk}


def test_a_page_of_a_row_keeps_the_tabs(
    operator: Client, world: dict[str, Any], tenant: Tenant
) -> None:
    _change_something(operator, tenant)
    for label, declaration in declarations().items():
        if declaration.tab is not None:
            row = world[label]
            if row.organization_id is None:
                row = type(row).objects.exclude(organization_id=None)[0]
            answer = operator.get(console.page(row))
            bar = answer.context["tab_bar"]
            present = [name for name, _, here in (*bar.tabs, *bar.more) if here]
            assert present == [declaration.tab.title]


def test_a_list_of_all_organizations_has_no_tabs(operator: Client, tenant: Tenant) -> None:
    path = reverse("admin:accounts_apikey_changelist")
    assert operator.get(path).context.get("tab_bar") is None
    nobody = {"organization__id__exact": "00000000-0000-4000-8000-000000000000"}
    assert operator.get(path, nobody).context.get("tab_bar") is None


def test_tabs_are_those_that_the_operator_may_view(tenant: Tenant) -> None:
    client = sign_in_with("ann", "view_organization", "view_member")

    shown = client.get(console.page(tenant.organization)).context["overview"]

    assert [title for title, _, _ in shown["tab_bar"].tabs] == ["Overview", "Members"]
    assert shown["cards"] == []


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("member", "organization"),
        ("workspace", "organization"),
        ("byokcredential", "owner"),
        ("apikey", "workspace"),
        ("guardrail", "workspace"),
        ("preset", "workspace"),
        ("broadcastdestination", "workspace"),
    ],
)
def test_a_row_that_is_added_from_a_tab_belongs_to_the_organization(
    operator: Client, tenant: Tenant, model: str, field: str
) -> None:
    narrowed = urlencode({"organization__id__exact": str(tenant.organization.pk)})
    path = reverse(f"admin:accounts_{model}_add")
    answer = operator.get(path, {"_changelist_filters": narrowed})

    form = answer.context["adminform"].form
    owner = tenant.workspace if field == "workspace" else tenant.organization
    assert form.initial[field] == owner.pk
    assert titles(answer)[0] == "Overview"


@pytest.mark.parametrize("model", ["apikey", "guardrail", "preset", "broadcastdestination"])
def test_a_deleted_default_workspace_is_not_chosen_for_a_new_row(
    operator: Client, tenant: Tenant, model: str
) -> None:
    tenant.workspace.close(confirm_default=True)
    narrowed = urlencode({"organization__id__exact": str(tenant.organization.pk)})
    path = reverse(f"admin:accounts_{model}_add")
    answer = operator.get(path, {"_changelist_filters": narrowed})
    assert answer.context["adminform"].form.initial["workspace"] is None


def test_the_list_links_its_add_button_to_the_organization(
    operator: Client, tenant: Tenant
) -> None:
    query = {"organization__id__exact": str(tenant.organization.pk)}
    text = operator.get(reverse("admin:accounts_member_changelist"), query).content.decode()

    narrowed = urlencode({"_changelist_filters": urlencode(query)})
    assert f"{reverse('admin:accounts_member_add')}?{narrowed}" in text


def test_first_steps_show_what_is_done(operator: Client) -> None:
    tenant = factories.make_tenant(credits_usd=0)
    row = tenant.organization

    def steps() -> list[bool]:
        shown = operator.get(console.page(row)).context["overview"]["steps"]
        return [step.is_done for step in shown]

    ApiKey.objects.filter(is_management=False).delete()
    assert steps() == [False, False, False, False]
    make_member(row)
    assert steps() == [True, False, False, False]
    factories.make_credential(tenant, factories.make_provider())
    assert steps() == [True, True, False, False]
    ApiKey.objects.create_key(workspace=tenant.workspace, name="first")
    assert steps() == [True, True, True, False]
    Meter.objects.filter(organization=row).update(requests=1)
    assert steps() == []


def test_first_steps_link_to_forms_of_the_organization(operator: Client, tenant: Tenant) -> None:
    shown = operator.get(console.page(tenant.organization)).context["overview"]["steps"]

    answer = operator.get(shown[0].url)

    assert answer.context["adminform"].form.initial["organization"] == tenant.organization.pk


def test_the_overview_says_how_long_the_credits_last(operator: Client) -> None:
    tenant = factories.make_tenant(credits_usd=100)
    now = timezone.now()
    Organization.objects.update(created_at=now - 60 * DAY)
    # Yesterday may not be summed yet.
    for days in (2, 3, 4, 12):
        factories.make_generation(tenant, created_at=now - days * DAY, cost_nano=7 * 10**9)
    # A day that has just ended is not rolled up yet.
    roll_up_usage(now + timedelta(hours=2))

    shown = operator.get(console.page(tenant.organization)).context["overview"]["cards"]

    assert {card.title: card.value for card in shown} == {
        "Balance": "$72",
        "Available": "$72",
        "Held": "$0",
        "Spent": "$28",
        "Burn rate": "$3.00 a day",
        "Days left": "24",
    }


def test_the_list_shows_money_activity_and_status(operator: Client, tenant: Tenant) -> None:
    other = factories.make_tenant("Low", credits_usd=1)
    factories.make_generation(tenant, cost_nano=2_500_000_000, created_at=timezone.now() - 3 * DAY)
    roll_up_usage()
    other.organization.suspend(reason="Closed.", by="ann")
    path = reverse("admin:accounts_organization_changelist")
    page: Any = admin.site._registry[Organization]

    rows = {row.name: row for row in operator.get(path).context["cl"].result_list}

    columns = ("state", "balance", "spent")
    assert [getattr(page, name)(rows["Acme"]) for name in columns] == [
        "active",
        '<span title="$997.5">$997.50</span>',
        '<span title="$2.5">$2.50</span>',
    ]
    assert page.spent(rows["Low"]) == '<span title="$0">$0.00</span>'
    assert page.last_activity(rows["Acme"]) is not None
    assert page.last_activity(rows["Low"]) is None


def test_the_list_is_sorted_by_what_was_spent(operator: Client, tenant: Tenant) -> None:
    for name, days in (("Low", 3), ("Most", 4)):
        at = clock.now() - days * DAY
        factories.make_generation(factories.make_tenant(name), cost_nano=days, created_at=at)
    roll_up_usage()
    path = reverse("admin:accounts_organization_changelist")

    def names(client: Client, order: str) -> list[str]:
        return [row.name for row in client.get(path, {"o": order}).context["cl"].result_list]

    assert names(operator, "-4") == ["Most", "Low", "Acme"]
    assert names(operator, "4") == ["Acme", "Low", "Most"]
    client = sign_in_with("viewer", "view_organization")
    assert names(client, "-4") == names(client, "4")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"status": "suspended"}, {"Closed"}),
        ({"status": "active"}, {"Acme", "Low"}),
        ({"balance": "low"}, {"Low"}),
        ({"activity": "none"}, {"Closed", "Low"}),
        ({"activity": "recent"}, {"Acme"}),
    ],
)
def test_filters_find_the_organizations_that_need_attention(
    operator: Client, tenant: Tenant, query: dict[str, str], expected: set[str]
) -> None:
    factories.make_generation(tenant, cost_nano=1)
    factories.make_tenant("Low", credits_usd=1)
    closed = factories.make_tenant("Closed")
    closed.organization.suspend(reason="Closed.", by="ann")
    path = reverse("admin:accounts_organization_changelist")

    rows = operator.get(path, query).context["cl"].result_list

    assert {row.name for row in rows} == expected
    assert Member.objects.count() == 0


@pytest.mark.parametrize("query", ["balance=low", "activity=none", "activity=recent"])
def test_no_filter_tells_what_the_list_hides(tenant: Tenant, query: str) -> None:
    factories.make_generation(tenant, cost_nano=1)
    factories.make_tenant("Low", credits_usd=1)
    path = reverse("admin:accounts_organization_changelist")
    client = sign_in_with("viewer", "view_organization")
    shown = client.get(f"{path}?{query}", follow=True).context["cl"]
    assert {row.name for row in shown.result_list} == {"Acme", "Low"}
    assert [spec.title for spec in shown.filter_specs] == ["status"]
    assert client.get(f"{path}export-csv/?{query}")["Location"] == f"{path}?e=1"


@pytest.mark.parametrize(
    ("permission", "title"), [("view_account", "balance"), ("view_generation", "activity")]
)
def test_a_filter_is_shown_with_the_permission_of_its_column(
    tenant: Tenant, permission: str, title: str
) -> None:
    client = sign_in_with("viewer", "view_organization", permission)
    shown = client.get(reverse("admin:accounts_organization_changelist")).context["cl"]
    assert [spec.title for spec in shown.filter_specs] == ["status", title]
