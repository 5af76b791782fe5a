"""What waits for an operator: who sees what, how it is counted, and the alerts beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.models import GrantRequest
from catalog.models import CatalogProposal
from config.apps import Role, declarations
from config.clocks.leases import Lease
from config.console.lists.waiting import Inbox
from config.partitions.declarations import partitionings
from config.partitions.tables import list_partitions, make_ahead
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.catalogue import make_proposal
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import sign_in


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def inbox(client: Client) -> Inbox:
    found: Inbox = client.get("/admin/").context["inbox"]
    return found


def counts(client: Client) -> dict[str, str]:
    return {task.title: task.count for task in inbox(client).tasks}


def badge(client: Client, path: str = "/admin/accounts/organization/") -> str:
    """Returns the number beside the first entry of the sidebar."""
    page = client.get(path)
    [first, *_] = page.context["sidebar_navigation"]
    item, *_ = first["items"]
    if item["badge"]:
        assert re.search(rf"<span[^>]*>\s*{re.escape(item['badge'])}\s*</span>", page.text)
    return str(item["badge"])


def ask_for_a_grant(tenant: Tenant) -> None:
    GrantRequest.objects.create(
        organization=tenant.organization, amount_nano=1, requested_by="operator ann"
    )


@pytest.fixture
def waiting(world: dict[str, Any]) -> dict[str, Any]:
    """Adds to a row of each model what no other fixture leaves waiting."""
    PrivateEndpoint.objects.update(drifted_at=timezone.now())
    return world


MONEY = dict.fromkeys(
    (
        *("Grants to approve", "Excesses in review", "Deposits in review"),
        *("Price proposals", "Change sets to approve"),
    ),
    "1",
)
DRIFTED = {"Drifted endpoints": "1"}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role.READ_ONLY, {}),
        (Role.SUPPORT, DRIFTED),
        (Role.FINANCE, MONEY),
        (Role.ADMINISTRATOR, DRIFTED | MONEY),
    ],
)
def test_each_role_sees_what_it_may_decide(
    waiting: dict[str, Any], role: Role, expected: dict[str, str]
) -> None:
    client = sign_in("somebody else", role)

    assert counts(client) == expected
    assert badge(client) == (str(len(expected)) if expected else "")


def test_each_task_leads_to_the_rows_that_it_counts(
    waiting: dict[str, Any], operator: Client, tenant: Tenant
) -> None:
    drifted = waiting["endpoints.privateendpoint"]
    factories.keep_deleted(tenant, drifted.model, drifted.provider)
    GrantRequest.objects.create(
        organization=waiting["accounts.organization"], amount_nano=1, requested_by="operator ann",
        status="declined", decided_at=timezone.now(),
    )  # fmt: skip
    tasks = inbox(operator).tasks

    assert len(tasks) == 6
    for task in tasks:
        page = operator.get(task.url)
        assert page.status_code == 200, task.url
        assert page.context["cl"].count_text == task.count == "1"


def test_a_claim_that_costs_nothing_waits_for_nobody(tenant: Tenant, operator: Client) -> None:
    factories.make_excess(tenant, 0)
    assert counts(operator) == {}
    factories.make_excess(tenant, 1, "gen-2")
    [task] = inbox(operator).tasks
    assert (task.title, task.count) == ("Excesses in review", "1")
    assert operator.get(task.url).context["cl"].count_text == "1"


def test_every_declaration_leads_to_a_list_that_takes_it(operator: Client) -> None:
    declared = [
        (label, waiting)
        for label, declaration in declarations().items()
        for waiting in declaration.waiting
    ]
    assert len(declared) >= 7
    for label, waiting in declared:
        page = operator.get(f"/admin/{label.replace('.', '/')}/", waiting.query)
        assert page.status_code == 200, (label, waiting.query)
        assert page.context["cl"].count_text == "0"


@pytest.mark.parametrize("reason", CatalogProposal.Reason.values)
def test_a_proposal_of_each_reason_waits_for_somebody(
    operator: Client, tenant: Tenant, reason: str
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    make_proposal(factories.make_endpoint(model, provider), reason=reason)
    assert list(counts(operator).values()) == ["1"]


def test_nobody_is_asked_to_approve_what_they_asked_for(tenant: Tenant) -> None:
    ann, bob = sign_in("ann", Role.FINANCE), sign_in("bob", Role.FINANCE)
    ask_for_a_grant(tenant)

    assert counts(ann) == {}
    assert counts(bob) == {"Grants to approve": "1"}
    assert (badge(ann), badge(bob)) == ("", "1")


def test_counts_are_bounded_and_read_by_one_query(tenant: Tenant, operator: Client) -> None:
    for _ in range(25):
        ask_for_a_grant(tenant)
    model, provider = factories.make_model(), factories.make_provider()
    make_proposal(factories.make_endpoint(model, provider))
    with CaptureQueriesContext(connection) as queries:
        found = inbox(operator)

    assert {task.title: task.count for task in found.tasks} == {
        "Grants to approve": "20+", "Price proposals": "1",
    }  # fmt: skip
    assert found.badge == "21+"
    [asked] = [query["sql"] for query in queries if "billing_grantrequest" in query["sql"]]
    assert "catalog_catalogproposal" in asked
    assert asked.count("LIMIT 21") == 8


def test_the_badge_is_counted_once_for_the_pages_of_half_a_minute(
    tenant: Tenant, operator: Client
) -> None:
    assert badge(operator) == ""
    ask_for_a_grant(tenant)
    assert badge(operator) == ""

    assert badge(operator, "/admin/") == "1"
    assert badge(operator) == "1"


def test_an_empty_inbox_says_so(operator: Client) -> None:
    assert "Nothing waits for you." in operator.get("/admin/").text


def alerts(client: Client) -> list[str]:
    return [alert.text for alert in inbox(client).alerts]


def test_administrators_see_late_duties_and_what_duties_have_found(operator: Client) -> None:
    now = timezone.now()
    Lease.objects.bulk_create(
        Lease(name=name, until=now, every_seconds=every, succeeded_at=now - age, **fields)
        for name, every, age, fields in (
            ("roll_up_hours", 300.0, timedelta(hours=3), {"failures": 4}),
            ("sweep_generations", 15.0, timedelta(minutes=5), {}),
            ("check_ledger", 86_400.0, timedelta(hours=1), {"result": 3}),
            ("watch_chain_1", 5.0, timedelta(days=30), {}),
        )
    )

    [found, late] = alerts(operator)
    assert found == (
        "The duty check_ledger found 3 problems in its last run. They are in the log of "
        "`manage.py work`."
    )
    assert late == (
        "The duty roll_up_hours last succeeded 3 hours ago, and failed 4 times since. Look into "
        "the log of `manage.py work`, and see that it runs."
    )
    assert "check_ledger found 3 problems" in operator.get("/admin/").text
    assert alerts(sign_in("fin", Role.FINANCE)) == []


def test_administrators_see_tables_without_a_partition_ahead(operator: Client) -> None:
    [table] = [each for each in partitionings() if each.table == "config_auditentry"]
    make_ahead(table)
    assert alerts(operator) == []
    with connection.cursor() as cursor:
        for part in list_partitions(table):
            if part.begin is not None and part.begin > timezone.now():
                cursor.execute(f"ALTER TABLE {table.table} DETACH PARTITION {part.name}")

    [alert] = inbox(operator).alerts
    assert alert.text.startswith("config_auditentry has no partition for the next span of time.")
    assert operator.get(alert.url).status_code == 200
