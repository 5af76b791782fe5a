"""Filters that no index helps with: a page looks at a part of the list, and says which."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing.models import Transfer
from config.console.lists import pages, steps
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.console import open_list
from tests.support.database import snapshots
from tests.support.factories import Tenant

GENERATIONS = "admin:inference_generation_changelist"
TRANSFERS = "admin:billing_transfer_changelist"
FAILED = "?status__exact=failed"


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of three rows looks at two steps of five rows."""
    monkeypatch.setattr(steps, "STEPS", (5, 5))
    monkeypatch.setattr(pages, "STEPS", (5, 5))
    for page in admin.site._registry.values():
        monkeypatch.setattr(page, "list_per_page", 3)


def make_generations(tenant: Tenant, failed: set[int], number: int = 30) -> list[Generation]:
    """Returns generations, newest first, of which those at the places ``failed`` failed."""
    served = factories.make_endpoint(factories.make_model(), factories.make_provider())
    made = [
        factories.make_generation(tenant, cost_nano=5, model_endpoint=served) for _ in range(number)
    ]
    made.sort(key=lambda row: row.pk, reverse=True)
    for place in failed:
        Generation.objects.filter(pk=made[place].pk).update(status="failed")
    return made


def keys_of(changes: Any) -> list[Any]:
    return [row.pk for row in changes.result_list]


def test_a_page_stops_after_its_steps_and_names_the_time(operator: Client, tenant: Tenant) -> None:
    made = make_generations(tenant, {3, 12})
    response = operator.get(reverse(GENERATIONS) + FAILED)
    changes, text = response.context["cl"], response.content.decode()
    assert keys_of(changes) == [made[3].pk]
    assert changes.is_part
    assert changes.count_text == "1+"
    time = Generation.objects.get(pk=made[9].pk).created_at
    assert f"Searched back to {time:%Y-%m-%d %H:%M} UTC." in text
    assert "Search earlier rows" in text

    following = operator.get(reverse(GENERATIONS) + changes.links["next"]).context["cl"]
    assert keys_of(following) == [made[12].pk]
    assert following.links["first"] == FAILED


def walk(model: type[Any], query: str, link: str = "next") -> list[list[Any]]:
    """Returns the primary keys of each page, and looks at no more pages than there are rows."""
    found = []
    for _ in range(40):
        changes = open_list(model, query)
        found.append(keys_of(changes))
        if link not in changes.links:
            return found
        query = changes.links[link]
    raise AssertionError("the pages never end")


@pytest.mark.parametrize(
    "failed", [set(), {29}, {0, 29}, {4, 5, 9, 10, 14}, set(range(30)), set(range(10, 20))]
)
@pytest.mark.usefixtures("operator")
def test_the_pages_hold_every_row_once_in_both_directions(tenant: Tenant, failed: set[int]) -> None:
    make_generations(tenant, failed)
    other = factories.make_tenant("Other")
    for _ in range(7):
        factories.make_generation(other, status="failed", cost_nano=0)
    narrowed = f"{FAILED}&organization__id__exact={tenant.organization.pk}"
    assert_every_row_once(tenant, narrowed, "-created_at", len(failed))
    Generation.objects.exclude(organization=tenant.organization).update(status="completed")
    assert_every_row_once(tenant, FAILED, "-pk", len(failed))


def assert_every_row_once(tenant: Tenant, query: str, order: str, number: int) -> None:
    wanted = list(
        Generation.objects.filter(organization=tenant.organization, status="failed")
        .order_by(order, "-pk")
        .values_list("pk", flat=True)
    )
    assert len(wanted) == number
    forwards = walk(Generation, query)
    assert [pk for page in forwards for pk in page] == wanted

    oldest = Generation.objects.filter(organization=tenant.organization).earliest(order[1:])
    last = f"{query}&before={open_list(Generation, query).keyset.position_of(oldest)}"
    backwards = [pk for page in reversed(walk(Generation, last, "previous")) for pk in page]
    assert backwards == [pk for pk in wanted if pk != oldest.pk]


def test_a_search_without_a_match_says_how_to_go_on(operator: Client, tenant: Tenant) -> None:
    make_generations(tenant, set(), number=28)
    response = operator.get(reverse(GENERATIONS) + FAILED)
    text = response.content.decode()
    assert "No rows match so far" in text
    assert "Search earlier rows" in text
    pages_of = walk(Generation, FAILED)
    assert pages_of == [[]] * 3
    last = operator.get(reverse(GENERATIONS) + FAILED).context["cl"]
    for _ in range(2):
        last = operator.get(reverse(GENERATIONS) + last.links["next"])
        text, last = last.content.decode(), last.context["cl"]
    assert "No rows match" in text
    assert "so far" not in text


def test_a_list_that_ends_within_the_steps_is_counted(operator: Client, tenant: Tenant) -> None:
    make_generations(tenant, {0, 1}, number=8)
    changes = operator.get(reverse(GENERATIONS) + FAILED).context["cl"]
    assert (changes.count_text, changes.is_part, changes.links) == ("2", False, {})


def test_a_count_names_no_more_than_was_looked_at(operator: Client, tenant: Tenant) -> None:
    make_generations(tenant, set(range(20)))
    changes = operator.get(reverse(GENERATIONS) + FAILED).context["cl"]
    assert (changes.count_text, changes.is_part) == ("5+", False)
    assert changes.result_count == 3


def read_statements(client: Client, path: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return [each["sql"] for each in captured]


def make_transfers(tenant: Tenant) -> None:
    make_generations(tenant, set())


def make_end_users(tenant: Tenant) -> None:
    for number in range(30):
        EndUser.objects.register(organization_id=tenant.organization.pk, user=f"user-{number}")


@pytest.mark.parametrize(
    ("name", "make", "query", "column"),
    [
        (TRANSFERS, make_transfers, "status__exact=voided", "status"),
        (GENERATIONS, make_transfers, "status__exact=cancelled", "status"),
        (GENERATIONS, make_transfers, "error_type__exact=timeout", "error_type"),
        (GENERATIONS, make_transfers, "cost_nano__gte=99999", "cost_nano"),
        ("admin:endusers_enduser_changelist", make_end_users, "is_active__exact=0", "is_active"),
    ],
)
def test_each_statement_with_a_rare_value_has_both_bounds(
    operator: Client,
    tenant: Tenant,
    name: str,
    make: Callable[[Tenant], None],
    query: str,
    column: str,
) -> None:
    make(tenant)
    statements = read_statements(operator, f"{reverse(name)}?{query}")
    names = re.compile(rf'"{column}" (=|>=)|NOT "\w+"\."{column}"')
    rare = [text for text in statements if text.endswith(" LIMIT 4") and names.search(text)]
    assert len(rare) == 2
    for text in rare:
        where = text.partition(" WHERE ")[2]
        assert re.search(r'"(id|created_at)" >= ', where), text
    assert re.search(r'"(id|created_at)" <= ', rare[1].partition(" WHERE ")[2])


@pytest.mark.usefixtures("operator")
def test_voided_transfers_are_found_by_steps(tenant: Tenant) -> None:
    make_generations(tenant, set())
    pages_of = walk(Transfer, "?status__exact=posted")
    posted = Transfer.objects.filter(status="posted").order_by("-pk")
    assert [pk for page in pages_of for pk in page] == [row.pk for row in posted]


def test_a_wrong_filter_looks_at_no_row(operator: Client, tenant: Tenant) -> None:
    make_generations(tenant, set())
    query = f"{reverse(GENERATIONS)}?status__exact=nothing"
    with snapshots.unchanged():
        changes = operator.get(query).context["cl"]
        assert (keys_of(changes), changes.is_part) == ([], False)


def test_pending_rows_are_found_through_their_journals(operator: Client, tenant: Tenant) -> None:
    made = make_generations(tenant, set())
    oldest = factories.make_generation(
        tenant, status="pending", created_at=made[-1].created_at.replace(year=2025)
    )
    changes = operator.get(f"{reverse(GENERATIONS)}?status__exact=pending").context["cl"]
    assert keys_of(changes) == [oldest.pk]
    assert not changes.is_part


@pytest.mark.django_db(transaction=True)
def test_a_search_that_is_stopped_keeps_what_it_has_found(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement of the second step takes longer than its limit."""
    made = make_generations(tenant, {2})
    monkeypatch.setattr(pages, "_PAGE_MS", 2_000)
    find = steps.find_edge

    def find_slowly(
        keyset: Any, rows: Any, begin: str, size: int, *, backwards: bool
    ) -> str | None:
        if begin:
            rows = rows.extra(where=["pg_sleep(5) IS NOT NULL"])
        return find(keyset, rows, begin, size, backwards=backwards)

    monkeypatch.setattr(steps, "find_edge", find_slowly)
    changes = operator.get(reverse(GENERATIONS) + FAILED).context["cl"]
    assert keys_of(changes) == [made[2].pk]
    assert (changes.is_cut, changes.is_part, changes.count_text) == (False, True, "1+")
    assert keys_of(operator.get(reverse(GENERATIONS) + changes.links["next"]).context["cl"]) == []
