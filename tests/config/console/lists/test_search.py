"""The search over everything: what a term finds, for whom, and by which index."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, Member, Organization, Workspace
from billing.models import Deposit, TopUp
from config.apps import Role
from config.console.sign_in import roles
from inference.models import Generation
from tests.support import factories
from tests.support.console import listing, page
from tests.support.factories import Tenant
from tests.support.governance import make_member

NOTHING = "Nothing was found."


def search(client: Client, term: str) -> list[tuple[str, str]]:
    """Returns the title and the address of each result."""
    response = client.get(reverse("admin:search"), {"s": term, "extended": "1"})
    assert response.status_code == 200
    return [(found.title, found.link) for found in response.context["results"]]


def test_a_row_is_found_by_what_an_operator_has_at_hand(
    operator: Client, tenant: Tenant, world: dict[str, Any]
) -> None:
    generation = factories.make_generation(tenant)
    member = make_member(tenant.organization, email="Ada@Example.com")
    key = ApiKey.objects.filter(organization=tenant.organization, is_management=False).get()
    terms = {
        generation.pk: generation,
        str(key.pk): key,
        str(tenant.organization.pk): tenant.organization,
        key.label: key,
        key.digest: key,
        key.name[:4].upper(): key,
        "ada@ex": member,
        tenant.organization.name.lower(): tenant.organization,
        tenant.organization.slug: tenant.organization,
    }
    for term, row in terms.items():
        assert page(row) in [link for _, link in search(operator, term)], term


def test_every_kind_of_row_with_a_uuid_is_found_by_it(
    operator: Client, world: dict[str, Any]
) -> None:
    rows = [
        row for row in world.values()
        if row._meta.pk.get_internal_type() == "UUIDField" and listing(type(row))
    ]  # fmt: skip
    assert len(rows) > 10
    for row in rows:
        assert search(operator, f" {row.pk} ") == [(str(row), page(row))]


def test_payments_are_found_by_their_transaction(operator: Client, world: dict[str, Any]) -> None:
    deposit = Deposit.objects.get()
    top_up = TopUp.objects.get()
    TopUp.objects.filter(pk=top_up.pk).update(tx_hash=deposit.tx_hash)

    found = [link for _, link in search(operator, deposit.tx_hash)]
    assert sorted(found) == sorted([page(deposit), page(top_up)])


def test_endpoints_are_found_by_their_host(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    url = "https://llm.acme.example/v1"
    endpoint = factories.make_draft(tenant, model, provider, base_url=url)

    assert page(endpoint) in [link for _, link in search(operator, "llm.acme.example")]
    assert page(endpoint) not in [link for _, link in search(operator, "acme.example")]


def test_pages_are_found_by_their_title(operator: Client) -> None:
    # By the name of the menu, by that of the list, and by other words.
    for name, title, terms in (
        ("inference_generation", "Requests", ("request", "generat", "logs", "cost")),
        ("accounts_subscription", "Webhooks", ("webhook", "subscription")),
        ("config_departure", "Partitions", ("retention",)),
        ("config_lease", "Leases", ("duties",)),
        ("accounts_guardrail", "Guardrails", ("guardrail",)),
    ):
        for term in terms:
            assert (title, reverse(f"admin:{name}_changelist")) in search(operator, term)


@pytest.mark.parametrize(
    "term", ["no such thing", "gen-1-00", "\0", "x" * 256, "%", "0x" + "0" * 64, "sk-cw-a…b", "ä_"]
)
def test_nothing_found_is_said(operator: Client, tenant: Tenant, term: str) -> None:
    response = operator.get(reverse("admin:search"), {"s": term, "extended": "1"})
    assert response.status_code == 200
    assert NOTHING in response.content.decode()


def test_a_whole_key_is_not_searched_for(operator: Client, tenant: Tenant) -> None:
    response = operator.get(reverse("admin:search"), {"s": tenant.api_key, "extended": "1"})
    text = response.content.decode()
    assert "This is a whole API key." in text
    assert tenant.api_key not in text


def test_an_operator_finds_only_what_the_operator_may_see(tenant: Tenant) -> None:
    roles.update_roles()
    limited = User.objects.create_user("sam", is_staff=True)
    client = Client()
    client.force_login(limited)
    assert search(client, tenant.organization.slug) == []

    limited.groups.add(Group.objects.get(name=Role.READ_ONLY))
    assert search(client, tenant.organization.slug) != []
    assert search(client, "sam") == []
    User.objects.filter(pk=limited.pk).update(is_superuser=True)
    assert ("sam", page(limited)) in search(client, "sam")


def test_a_new_row_is_found_at_once(operator: Client, tenant: Tenant) -> None:
    before = search(operator, tenant.organization.name)
    factories.make_tenant(f"{tenant.organization.name} Two")
    assert len(search(operator, tenant.organization.name)) > len(before)


def test_the_beginning_of_a_name_is_an_index_range_scan(tenant: Tenant) -> None:
    asked = {
        "organization_by_name": Organization.objects.filter(name__istartswith="acme"),
        "workspace_by_name": Workspace.objects.filter(name__istartswith="acme"),
        "member_by_email": Member.objects.filter(email__istartswith="acme"),
        "api_key_by_name": ApiKey.objects.filter(name__istartswith="acme"),
        "api_key_by_label": ApiKey.objects.filter(label="acme"),
        "deposit_by_transaction": Deposit.objects.filter(tx_hash="0x"),
        "top_up_by_transaction": TopUp.objects.filter(tx_hash="0x"),
    }
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    for index, rows in asked.items():
        plan = rows.order_by().explain()
        assert f"Index Scan using {index}" in plan, plan
        assert "Index Cond" in plan, plan


def test_a_whole_id_reads_one_partition(tenant: Tenant) -> None:
    generation = factories.make_generation(tenant)
    plan = Generation.objects.filter(id=generation.pk).order_by().explain()
    # The planner may look at a bitmap first, of the same partition.
    assert len(re.findall(r" on \w+ inference_generation\b", plan)) == 1, plan
