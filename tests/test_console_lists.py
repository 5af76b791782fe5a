"""How the lists of tables that grow are searched and narrowed: by what an index has."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from billing.models import Transfer
from config.models import AuditEntry
from endusers.models import EndUser
from inference.models import Generation
from tests import factories
from tests.factories import Tenant


def listed(client: Client, name: str, **query: Any) -> list[Any]:
    response = client.get(reverse(f"admin:{name}_changelist"), query)
    return list(response.context["cl"].result_list)


def register(tenant: Tenant, *users: str) -> list[EndUser]:
    organization_id = tenant.organization.pk
    return [EndUser.objects.register(organization_id=organization_id, user=user) for user in users]


def plan_of(rows: QuerySet[Any]) -> str:
    """How PostgreSQL finds rows when it may not read a whole table, nor sort what it found."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    return rows.explain()


def test_end_users_are_listed_latest_first(operator: Client, tenant: Tenant) -> None:
    first, second = register(tenant, "a", "b")
    assert listed(operator, "endusers_enduser") == [second, first]


def test_end_users_are_found_by_how_they_begin(operator: Client, tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    whole, longer, upper = register(tenant, "customer-1", "customer-12", "Customer-1")
    [same] = register(other, "customer-1")

    found = listed(operator, "endusers_enduser", q="customer-1")
    assert found == [*sorted((whole, same), key=lambda end_user: end_user.pk), longer]
    assert listed(operator, "endusers_enduser", q="customer-12") == [longer]
    assert listed(operator, "endusers_enduser", q="Customer") == [upper]
    assert listed(operator, "endusers_enduser", q="ustomer") == []
    assert listed(operator, "endusers_enduser", q="customer_1") == []


def test_end_users_are_found_by_ids(operator: Client, tenant: Tenant) -> None:
    text = "0f2b8a54-6c1e-4f3a-9d7b-2e5c8a1b4d60"
    [plain, named] = register(tenant, "plain", text)

    assert listed(operator, "endusers_enduser", q=str(plain.pk)) == [plain]
    assert listed(operator, "endusers_enduser", q=text) == [named]
    organization_id = str(tenant.organization.pk)
    assert listed(operator, "endusers_enduser", q=organization_id) == [named, plain]


def test_a_search_of_end_users_is_a_range_of_an_index(tenant: Tenant) -> None:
    found = EndUser.objects.filter(user__startswith="customer-1").order_by("user", "id")
    plan = plan_of(found[:50])
    assert "Index Scan using end_user_by_beginning" in plan
    assert "Sort" not in plan


def test_transfers_other_than_usage_are_a_range_of_an_index(tenant: Tenant) -> None:
    accounts = {account.kind: account for account in tenant.organization.accounts.all()}
    Transfer.objects.bulk_create(
        Transfer(
            organization=tenant.organization,
            kind="usage",
            debit=accounts["credits"],
            credit=accounts["usage"],
            amount_nano=1,
            status="pending",
            reference=f"gen-{number}",
        )
        for number in range(2_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE billing_transfer")
    for kind in ("deposit", "refund", "write_off"):
        plan = plan_of(Transfer.objects.filter(kind=kind).order_by("-id")[:50])
        assert "Index Scan using transfer_by_kind" in plan
        assert "Sort" not in plan


def test_what_is_under_way_is_found_by_its_journal(operator: Client, tenant: Tenant) -> None:
    factories.make_generation(tenant)
    pending = factories.make_generation(tenant, status="pending")

    found = listed(operator, "inference_generation", status__exact="pending")
    assert found == [pending]
    [completed] = listed(operator, "inference_generation", status__exact="completed")
    assert completed.status == Generation.Status.COMPLETED
    assert listed(operator, "inference_generation", status__exact="nonsense") == []


def test_holds_are_found_by_the_journals_of_their_generations(
    operator: Client, tenant: Tenant
) -> None:
    pending = factories.make_generation(tenant, status="pending", hold_nano=7)
    accounts = {account.kind: account for account in tenant.organization.accounts.all()}
    hold = Transfer.objects.create(
        organization=tenant.organization,
        kind="usage",
        debit=accounts["credits"],
        credit=accounts["usage"],
        amount_nano=7,
        status="pending",
        reference=pending.pk,
    )

    assert listed(operator, "billing_transfer", status__exact="pending") == [hold]
    [grant] = listed(operator, "billing_transfer", status__exact="posted")
    assert grant.kind == Transfer.Kind.GRANT


def test_private_endpoints_are_found_by_their_words(operator: Client, tenant: Tenant) -> None:
    model = factories.make_model("acme/falcon", name="Acme: Falcon")
    provider = factories.make_provider(name="North Cloud")
    found = factories.make_draft(tenant, model, provider, upstream_model_id="deployment-7")
    factories.make_draft(tenant, factories.make_model(), factories.make_provider())

    for term in ("falcon", "ACME/FAL", "north", "ployment-7", "falcon north", str(found.pk)):
        assert listed(operator, "endpoints_privateendpoint", q=term) == [found]
    assert listed(operator, "endpoints_privateendpoint", q="falcon south") == []


def test_the_audit_log_is_found_by_a_part_of_the_actor(operator: Client, db: None) -> None:
    entries = [
        AuditEntry.objects.create(actor=actor, kind="import", action="test", after={})
        for actor in ("operator ada", "command import by ada", "operator ben", "operator ada")
    ]

    found = listed(operator, "config_auditentry", q="ADA")
    assert found == [entries[3], entries[1], entries[0]]
    assert listed(operator, "config_auditentry", q="ben") == [entries[2]]
    assert listed(operator, "config_auditentry", q="%") == []
