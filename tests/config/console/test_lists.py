"""Lists of growing tables: their searches and filters use indexes."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import ApiKey
from billing.models import Transfer
from config.audit.entries import AuditEntry
from config.clocks.leases import Lease
from config.partitions.tables import list_partitions
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.console import listing
from tests.support.factories import Tenant
from tests.support.suite.tiers import draw_examples


def listed(client: Client, name: str, **query: Any) -> list[Any]:
    response = client.get(reverse(f"admin:{name}_changelist"), query)
    return list(response.context["cl"].result_list)


def register(tenant: Tenant, *users: str) -> list[EndUser]:
    organization_id = tenant.organization.pk
    return [EndUser.objects.register(organization_id=organization_id, user=user) for user in users]


def make_holds(tenant: Tenant, *references: str, amount_nano: int = 1) -> list[Transfer]:
    """Returns holds of generations, which are not stored yet."""
    accounts = {account.kind: account for account in tenant.organization.accounts.all()}
    return [
        Transfer(
            organization=tenant.organization,
            kind="usage",
            debit=accounts["credits"],
            credit=accounts["usage"],
            amount_nano=amount_nano,
            status="pending",
            reference=reference,
        )
        for reference in references
    ]


def plan_of(rows: QuerySet[Any]) -> str:
    """Returns the plan that an index allows, whatever the statistics of the tables are now."""
    with connection.cursor() as cursor:
        for other in ("seqscan", "bitmapscan", "sort", "incremental_sort"):
            cursor.execute(f"SET LOCAL enable_{other} = off")
    return rows.explain()


def test_end_users_are_listed_latest_first(operator: Client, tenant: Tenant) -> None:
    first, second = register(tenant, "a", "b")
    assert listed(operator, "endusers_enduser") == [second, first]


def test_end_users_are_found_by_their_beginning(operator: Client, tenant: Tenant) -> None:
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


def test_a_search_of_end_users_is_an_index_range_scan(tenant: Tenant) -> None:
    found = EndUser.objects.filter(user__startswith="customer-1").order_by("user", "id")
    plan = plan_of(found[:50])
    assert "Index Scan using end_user_by_beginning" in plan
    assert "Sort" not in plan


def test_transfers_other_than_usage_are_an_index_range_scan(tenant: Tenant) -> None:
    Transfer.objects.bulk_create(make_holds(tenant, *(f"gen-{number}" for number in range(2_000))))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE billing_transfer")
    for kind in ("deposit", "refund", "write_off"):
        plan = plan_of(Transfer.objects.filter(kind=kind).order_by("-id")[:50])
        partitions = list_partitions(Transfer.partitioning)
        assert plan.count("Index Scan using ") == len(partitions)
        assert plan.count("_kind_id_idx ") + plan.count("_transfer_by_kind ") == len(partitions)
        assert "->  Sort" not in plan


def test_pending_generations_are_found_by_their_journal(operator: Client, tenant: Tenant) -> None:
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
    [hold] = make_holds(tenant, pending.pk, amount_nano=7)
    hold.save(force_insert=True)

    assert listed(operator, "billing_transfer", status__exact="pending") == [hold]
    assert listed(operator, "billing_transfer", status__exact="nonsense") == []
    [grant] = listed(operator, "billing_transfer", status__exact="posted")
    assert grant.kind == Transfer.Kind.GRANT


def test_private_endpoints_are_found_by_words_of_their_names_and_ids(
    operator: Client, tenant: Tenant
) -> None:
    model = factories.make_model("acme/falcon", name="Acme: Falcon")
    provider = factories.make_provider(name="North Cloud")
    found = factories.make_draft(tenant, model, provider, upstream_model_id="deployment-7")
    factories.make_draft(tenant, factories.make_model(), factories.make_provider())

    for term in ("falcon", "ACME/FAL", "north", "ployment-7", "falcon north", str(found.pk)):
        assert listed(operator, "endpoints_privateendpoint", q=term) == [found]
    assert listed(operator, "endpoints_privateendpoint", q="falcon south") == []


def test_audit_entries_are_found_by_a_part_of_the_actor(operator: Client, db: None) -> None:
    entries = [
        AuditEntry.objects.create(actor=actor, kind="import", action="test", after={})
        for actor in ("operator ada", "command import by ada", "operator ben", "operator ada")
    ]

    found = listed(operator, "config_auditentry", q="ADA")
    assert found == [entries[3], entries[1], entries[0]]
    assert listed(operator, "config_auditentry", q="ben") == [entries[2]]
    assert listed(operator, "config_auditentry", q="%") == []


@pytest.mark.parametrize(
    ("name", "lookup", "value"),
    [
        ("endpoints_privateendpoint", "status__exact", "\0"),
        ("inference_generation", "since", "\0"),
        ("inference_generation", "created_at__year", "99999999999"),
        ("accounts_organization", "name__regex", "("),
        ("accounts_organization", "name", "Demo"),
        ("accounts_apikey", "digest__startswith", "0"),
        ("auth_user", "password__startswith", "p"),
        ("accounts_organization", "nothing", "\0"),
    ],
)
def test_a_list_refuses_lookups_that_are_not_filters(
    operator: Client, name: str, lookup: str, value: str
) -> None:
    path = reverse(f"admin:{name}_changelist")
    assert operator.get(path, {lookup: value})["Location"] == f"{path}?e=1"
    assert operator.get(path, {"e": "1"}).status_code == 200


def test_every_filter_of_every_list_works(operator: Client, world: dict[str, Any]) -> None:
    refused = []
    found = 0
    for row in world.values():
        path = listing(type(row))
        text = operator.get(path).content.decode()
        links = set(re.findall(r'<(?:a|option)[^>]+(?:href|value)="(\?[^"]+)"', text))
        found += len(links)
        for link in draw_examples(sorted(map(html.unescape, links))):
            if operator.get(path + link).status_code != 200:
                refused.append(path + link)
    assert refused == []
    assert found > 250


@pytest.mark.django_db(transaction=True)
def test_a_list_refuses_a_value_that_postgresql_refuses(operator: Client) -> None:
    path = reverse("admin:inference_generation_changelist")
    beyond = {"created_at__gte": "0001-01-01T00:00:00+23:59"}
    assert operator.get(path, beyond)["Location"] == f"{path}?e=1"


def test_every_list_accepts_the_lookups_that_the_home_page_links_to(
    operator: Client, tenant: Tenant
) -> None:
    # The first page is cached for a minute, and an earlier test may have opened it.
    cache.clear()
    factories.make_generation(tenant, end_user="ada")
    text = html.unescape(operator.get(reverse("admin:index")).content.decode())
    links = sorted(set(re.findall(r'href="(/admin/[a-z_/]+/\?[^"]+)"', text)))
    assert {part.partition("=")[0] for link in links for part in link.split("?")[1].split("&")} == {
        "amount", "created_at__gte", "credential", "drifted_at__isnull", "end_user__exact",
        "kind__exact", "model__exact", "organization__id__exact", "outcome__in", "status__exact",
        "status__in",
    }  # fmt: skip
    assert [operator.get(link).status_code for link in links] == [200] * len(links)


def test_searches_do_not_pass_nul_to_the_database(operator: Client, tenant: Tenant) -> None:
    field = {"app_label": "accounts", "model_name": "apikey", "field_name": "workspace"}
    answer = operator.get("/admin/autocomplete/", {**field, "term": "a\0"})
    assert answer.status_code == 400
    assert listed(operator, "accounts_workspace", q="a\0") == [tenant.workspace]


def test_encoded_nul_in_a_key_redirects_to_the_index(operator: Client, tenant: Tenant) -> None:
    for name in ("inference_generation", "config_auditentry", "auth_user"):
        path = reverse(f"admin:{name}_changelist")
        for verb in ("change", "history"):
            assert operator.get(f"{path}gen_00/{verb}/")["Location"] == "/admin/"


@pytest.mark.parametrize(
    "name", ["0f2b8a54-6c1e-4f3a-9d7b-2e5c8a1b4d60", "0F2B8A546C1E4F3A9D7B2E5C8A1B4D60", "a1" * 32]
)
def test_generations_are_searched_by_an_end_user_whose_name_is_an_id_or_a_digest(
    operator: Client, tenant: Tenant, name: str
) -> None:
    made = factories.make_generation(tenant, end_user=name)
    factories.make_generation(tenant)
    assert listed(operator, "inference_generation", q=name) == [made]


def test_generations_are_searched_by_ids_and_digests(operator: Client, tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    [known] = register(tenant, "ada")
    made = factories.make_generation(tenant, end_user="ada")
    factories.make_generation(other, end_user="ada")
    for term in (
        str(known.pk),
        str(made.api_key_id),
        ApiKey.objects.get(pk=made.api_key_id).digest,
        str(tenant.organization.pk),
    ):
        assert listed(operator, "inference_generation", q=term) == [made], term


def test_a_list_without_ids_is_searched_for_the_text_of_an_id(operator: Client) -> None:
    leases = [Lease.objects.create(name=name, until=timezone.now()) for name in ("a1" * 16, "one")]
    assert listed(operator, "config_lease", q=leases[0].name) == leases[:1]
    assert listed(operator, "config_lease", q="0f2b8a54-6c1e-4f3a-9d7b-2e5c8a1b4d60") == []


@pytest.mark.parametrize("term", ["9999-12-31", "9999-12-31 23:59:59", "0001-01-01"])
def test_generations_are_searched_by_the_first_and_last_dates(
    operator: Client, tenant: Tenant, term: str
) -> None:
    factories.make_generation(tenant)
    assert listed(operator, "inference_generation", q=term) == []
