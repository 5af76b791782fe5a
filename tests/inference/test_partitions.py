"""Statements execute on the partitions that they ask for, and on no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from catalog.lists import traffic
from catalog.models import Provider
from config import sql
from config.clocks.clock import clock
from config.partitions.tables import list_partitions, make_ahead
from inference.admin.search import find_generations
from inference.admission.admit import ADMIT
from inference.ids import SLACK, id_bound, id_range
from inference.models import Generation, UsageDay
from inference.reports import analytics, endpoint_hours, hours, reconciliation, rollups
from inference.reports.activity import Activity
from inference.reports.rollups import midnight
from inference.settlement.settle import SETTLE, Settlement, settlement_parameters
from tests.support import factories
from tests.support.factories import Tenant

TABLE = Generation.partitioning


@pytest.fixture
def year(db: None) -> None:
    """Partitions for a year and more."""
    moment = clock.now()
    for _ in range(12):
        make_ahead(TABLE, moment)
        moment = TABLE.span.following(TABLE.span.begin(moment))
    assert len(list_partitions(TABLE)) >= 14


@pytest.fixture
def generation(year: None, tenant: Tenant) -> Generation:
    return factories.make_generation(tenant, status="pending")


def home_of(generation: Generation) -> str:
    """Returns the partition of a generation."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tableoid::regclass::text FROM inference_generation WHERE id = %s",
            [generation.pk],
        )
        name: str = cursor.fetchone()[0]
    return name


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def executed(cursor: Any, explained: str, parameters: Any = None) -> set[str]:
    """Returns the partitions of generations that a statement has read or changed."""
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {explained}", parameters)
    [found] = cursor.fetchone()
    plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    return {
        node["Relation Name"]
        for node in nodes(plan)
        if node.get("Relation Name", "").startswith("inference_generation")
        and node["Actual Loops"]
        and node["Node Type"] != "ModifyTable"
    }


def executed_by_plan(statement: sql.Statement, types: str, *values: str) -> set[str]:
    """Returns the partitions that the data plane's plan executes: one for all parameters."""
    arguments = ", ".join(f"'{value}'" for value in values)
    with connection.cursor() as cursor:
        for name in ("enable_seqscan", "enable_bitmapscan"):
            cursor.execute(f"SET LOCAL {name} = off")
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE asked ({types}) AS {statement.text}")
        try:
            return executed(cursor, f"EXECUTE asked ({arguments})")
        finally:
            cursor.execute("DEALLOCATE asked")


def test_settlement_changes_the_partition_of_its_batch_alone(generation: Generation) -> None:
    parameters = settlement_parameters([Settlement(generation.pk, "completed")])
    assert executed_by_plan(SETTLE, "json, text, text", *parameters) == {home_of(generation)}
    generation.refresh_from_db()
    assert generation.status == "completed"


def test_admission_looks_for_earlier_tries_in_the_partition_of_its_batch_alone(
    generation: Generation,
) -> None:
    rows = json.dumps([{"id": generation.pk}])
    ids = id_range([generation.pk])
    types = "json, json, uuid[], text, text"
    assert executed_by_plan(ADMIT, types, rows, "[]", "{}", *ids) == {home_of(generation)}


def far_day() -> date:
    """Returns the tenth of the fifth month from now: all its bounds lie in that month."""
    return list_partitions(TABLE)[5].begin.date() + timedelta(days=9)


READS: dict[str, Callable[[Tenant, date], object]] = {
    "read_activity": lambda tenant, day: Activity(tenant.organization.pk, [day]).rows(),
    "read_range": lambda _, day: list(Generation.objects.created(*bounds_of(day))),
    "search_moment": lambda _, day: list(search(day.isoformat())),
    "search_prefix": lambda _, day: list(search(id_bound(midnight(day)))),
    "reconcile_day": lambda _, day: list(
        reconciliation._find_generations(provider_of_endpoint(), day, day, None)
    ),
    "query_analytics": lambda tenant, day: analytics.Query(
        tenant.organization.pk, *bounds_of(day), ["request_count"]
    ).run(),
    "sum_day": lambda _, day: rollups._roll_up(day),
    "sum_hour": lambda _, day: hours._sum_hours(midnight(day), midnight(day) + hours.HOUR),
    "sum_endpoints": lambda _, day: endpoint_hours.sum_endpoints(midnight(day)),
}


def provider_of_endpoint() -> Provider:
    """Without an endpoint, a plan that asks for endpoints first would read no generation."""
    return factories.make_endpoint(factories.make_model(), factories.make_provider()).provider


def bounds_of(day: date) -> tuple[datetime, datetime]:
    return midnight(day), midnight(day + timedelta(days=1))


def search(text: str) -> Iterable[Generation]:
    return find_generations(Generation.objects.all(), text)


def read_statements(read: Callable[[], object]) -> list[str]:
    """Returns the statements on generations that a call has sent."""
    with CaptureQueriesContext(connection) as captured:
        read()
    asked = [query["sql"] for query in captured if "inference_generation" in query["sql"]]
    assert asked
    UsageDay.objects.all().delete()
    return asked


def all_executed(statements: list[str]) -> set[str]:
    with connection.cursor() as cursor:
        return set().union(*(executed(cursor, statement) for statement in statements))


@pytest.mark.parametrize("read", READS)
def test_a_read_of_a_day_executes_on_the_partition_of_its_month_alone(
    year: None, tenant: Tenant, read: str
) -> None:
    month, day = list_partitions(TABLE)[5].name, far_day()
    for statement in read_statements(lambda: READS[read](tenant, day)):
        with connection.cursor() as cursor:
            assert executed(cursor, statement) == {month}


def partitions_between(begin: datetime, end: datetime) -> set[str]:
    """Returns the partitions that may have rows of a span: a row's id may be an hour off."""
    return {
        each.name
        for each in list_partitions(TABLE)
        if not each.is_default
        and (each.begin is None or each.begin < end + SLACK)
        and (each.end is None or each.end > begin - SLACK)
    }


def test_statistics_of_models_execute_on_the_partitions_of_their_days_alone(year: None) -> None:
    """That is the present partition, but for the last hour of a month and its first week."""
    now = clock.now()
    for read, begin in (
        (traffic._figures, hours.hour_of(now - timedelta(days=1))),
        (traffic._tokens, midnight(now.date() - timedelta(days=6))),
    ):
        executed_on = all_executed(read_statements(read))
        assert executed_on == partitions_between(begin, hours.hour_of(now) + hours.HOUR)


def test_the_list_since_a_time_executes_on_no_earlier_partition(
    year: None, tenant: Tenant, operator: Client
) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    for each in list_partitions(TABLE):
        at = clock.now() if each.begin is None else each.begin + timedelta(days=14)
        factories.make_generation(tenant, model_endpoint=endpoint, created_at=at)
    url = reverse("admin:inference_generation_changelist")
    since = {"created_at__gte": midnight(far_day()).isoformat()}
    answers: list[Any] = []
    asked = read_statements(lambda: answers.append(operator.get(url, since)))
    assert [answer.status_code for answer in answers] == [200]
    assert all_executed(asked) == {each.name for each in list_partitions(TABLE)[5:]}


def test_the_first_day_is_one_lookup_for_each_partition(generation: Generation) -> None:
    [statement] = read_statements(rollups.find_first)
    with connection.cursor() as cursor:
        # What the planner expects of so small tables depends on when they were analyzed.
        for other in ("seqscan", "bitmapscan", "sort"):
            cursor.execute(f"SET LOCAL enable_{other} = off")
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}")
        [found] = cursor.fetchone()
    plan = found if isinstance(found, list) else json.loads(found)
    kinds = {node["Node Type"] for node in nodes(plan[0]["Plan"])}
    assert kinds == {"Limit", "Merge Append", "Index Scan"}
