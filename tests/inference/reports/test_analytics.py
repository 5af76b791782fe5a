"""``/analytics``: the query language and its exact answers."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import ApiKey, Member
from inference.models import Generation
from inference.reports import analytics
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_workspace

START = datetime(2026, 3, 2, tzinfo=UTC)  # Monday
RANGE = {"start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z"}


def ask(client: APIClient, body: Any) -> Any:
    text = body if isinstance(body, str) else json.dumps(body)
    return client.generic("POST", "/api/v1/analytics/query", text, content_type="application/json")


def rows(client: APIClient, *metrics: str, **body: Any) -> list[dict[str, Any]]:
    answer = ask(client, {"metrics": metrics or ["request_count"], "time_range": RANGE, **body})
    assert answer.status_code == 200, answer.content
    data: list[dict[str, Any]] = answer.json()["data"]["data"]
    return data


def make(tenant: Tenant, *, after: timedelta = timedelta(), **fields: Any) -> Generation:
    return factories.make_generation(tenant, created_at=START + after, **fields)


def only(field: str, operator: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"filters": [{"field": field, "operator": operator, "value": value, **more}]}


def test_meta_lists_dimensions_granularities_metrics_and_operators(management: APIClient) -> None:
    answer = management.get("/api/v1/analytics/meta")
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert list(data) == ["dimensions", "granularities", "metrics", "operators"]
    assert [item["name"] for item in data["dimensions"]] == [
        "model", "provider", "endpoint", "api_key_id", "workspace", "user", "external_user",
        "data_region", "api_type", "status", "finish_reason", "error_type",
    ]  # fmt: skip
    assert data["granularities"] == [
        {"display_label": name.capitalize(), "name": name}
        for name in ("minute", "hour", "day", "week", "month")
    ]
    assert [
        (item["name"], item["display_format"], item["is_rate"]) for item in data["metrics"]
    ] == [
        ("request_count", "number", False),
        ("tokens_total", "number", False),
        ("tokens_prompt", "number", False),
        ("tokens_completion", "number", False),
        ("tokens_cached", "number", False),
        ("tokens_reasoning", "number", False),
        ("usage", "currency", False),
        ("byok_usage", "currency", False),
        ("latency_p50", "latency", True),
        ("latency_p95", "latency", True),
        ("generation_time_p50", "latency", True),
        ("generation_time_p95", "latency", True),
        ("throughput", "throughput", True),
        ("error_rate", "percent", True),
        ("cache_hit_rate", "percent", True),
    ]
    assert data["operators"] == [
        {"name": "eq", "value_type": "scalar"},
        {"name": "neq", "value_type": "scalar"},
        {"name": "in", "value_type": "array"},
        {"name": "not_in", "value_type": "array"},
        {"name": "gt", "value_type": "scalar"},
        {"name": "gte", "value_type": "scalar"},
        {"name": "lt", "value_type": "scalar"},
        {"name": "lte", "value_type": "scalar"},
    ]


def test_every_metric_is_exact(management: APIClient, tenant: Tenant) -> None:
    for number in range(1, 5):
        make(
            tenant,
            prompt_tokens=100 * number,
            completion_tokens=10 * number,
            cached_tokens=25 * number,
            reasoning_tokens=number,
            cost_nano=1_000_000_001,
            upstream_cost_nano=7,
            is_byok=number == 4,
            latency_ms=100 * number,
            duration_ms=1_000,
        )
    make(tenant, status="failed", latency_ms=None, duration_ms=50)
    make(tenant, status="pending")
    assert rows(management, *analytics.METRICS) == [
        {
            "request_count": 5,
            "tokens_total": 1_100,
            "tokens_prompt": 1_000,
            "tokens_completion": 100,
            "tokens_cached": 250,
            "tokens_reasoning": 10,
            "usage": 4.000000004,
            "byok_usage": 0.000000007,
            "latency_p50": 250.0,
            "latency_p95": 385.0,
            "generation_time_p50": 1_000.0,
            "generation_time_p95": 1_000.0,
            "throughput": 25.0,
            "error_rate": 0.2,
            "cache_hit_rate": 0.25,
        }
    ]


def test_metrics_without_generations_are_zero_or_null(management: APIClient) -> None:
    [row] = rows(management, *analytics.METRICS)
    assert row == {
        name: None if metric.is_rate else 0 for name, metric in analytics.METRICS.items()
    }
    assert rows(management, *analytics.METRICS, dimensions=["model"]) == []


def test_every_dimension_groups_and_filters(management: APIClient, tenant: Tenant) -> None:
    member = Member.objects.create(organization=tenant.organization, email="a@b.example")
    key = make_key(tenant, creator=member)
    workspace = make_workspace(tenant.organization)
    draft = factories.make_draft(
        tenant, factories.make_model("acme/heron"), factories.make_provider()
    )
    wanted = make(
        tenant,
        model="acme/heron",
        provider_name="Beta AI",
        private_endpoint=draft,
        api_key=key,
        workspace=workspace,
        end_user="alice's \"%_\\ ☃",
        region="europe",
        operation="embeddings",
        status="failed",
        finish_reason="error",
        error_type="timeout",
    )
    other = make(tenant, operation="completions", end_user="bob")
    expected = {
        "model": "acme/heron",
        "provider": "Beta AI",
        "endpoint": str(draft.pk),
        "api_key_id": key.digest,
        "workspace": str(workspace.pk),
        "user": str(member.pk),
        "external_user": "alice's \"%_\\ ☃",
        "data_region": "europe",
        "api_type": "embeddings",
        "status": "failed",
        "finish_reason": "error",
        "error_type": "timeout",
    }
    assert list(expected) == list(analytics.DIMENSIONS)
    ordinary = {
        "model": "acme/falcon",
        "provider": "Acme AI",
        "endpoint": str(other.model_endpoint_id),
        "api_key_id": ApiKey.objects.get(name="inference").digest,
        "workspace": str(tenant.workspace.pk),
        "user": None,
        "external_user": "bob",
        "data_region": "global",
        "api_type": "completions",
        "status": "completed",
        "finish_reason": None,
        "error_type": None,
    }
    assert wanted.member_id == member.pk
    for name, value in expected.items():
        for operator, operand in (("eq", value), ("in", [value])):
            found = rows(management, dimensions=list(expected), **only(name, operator, operand))
            assert found == [{**expected, "request_count": 1}], name
        rest = [] if ordinary[name] is None else [{**ordinary, "request_count": 1}]
        for operator, operand in (("neq", value), ("not_in", [value])):
            found = rows(management, dimensions=list(expected), **only(name, operator, operand))
            assert found == rest, name
        found = rows(management, **only(name, "not_in", [value], include_unset=True))
        assert found == [{"request_count": 1}], name
        both = 2 if ordinary[name] is None else 1
        found = rows(management, **only(name, "in", [value], include_unset=True))
        assert found == [{"request_count": both}], name


def test_a_model_is_filtered_by_slug_or_canonical_slug(
    management: APIClient, tenant: Tenant
) -> None:
    factories.make_model("acme/falcon", canonical_slug="acme/falcon-2026")
    make(tenant)
    for name, count in (("acme/falcon", 1), ("acme/falcon-2026", 1), ("acme/falcon-2025", 0)):
        assert rows(management, **only("model", "eq", name)) == [{"request_count": count}]


@pytest.mark.parametrize(
    ("granularity", "dates"),
    [
        ("minute", {"2026-03-02T00:00:00Z": 2, "2026-03-02T00:01:00Z": 1, "2026-03-02T01:00:00Z": 1,
                    "2026-03-03T00:00:00Z": 1, "2026-03-09T00:00:00Z": 1}),
        ("hour", {"2026-03-02T00:00:00Z": 3, "2026-03-02T01:00:00Z": 1, "2026-03-03T00:00:00Z": 1,
                  "2026-03-09T00:00:00Z": 1}),
        ("day", {"2026-03-02T00:00:00Z": 4, "2026-03-03T00:00:00Z": 1, "2026-03-09T00:00:00Z": 1}),
        ("week", {"2026-03-02T00:00:00Z": 5, "2026-03-09T00:00:00Z": 1}),
        ("month", {"2026-03-01T00:00:00Z": 6}),
    ],
)  # fmt: skip
def test_a_granularity_groups_by_time(
    management: APIClient, tenant: Tenant, granularity: str, dates: dict[str, int]
) -> None:
    for after in (
        timedelta(),
        timedelta(seconds=59.999999),
        timedelta(minutes=1),
        timedelta(hours=1),
        timedelta(days=1),
        timedelta(days=7),
    ):
        make(tenant, after=after)
    found = rows(management, granularity=granularity)
    assert found == [{"date": at, "request_count": count} for at, count in dates.items()]
    order = {"field": "date", "direction": "desc"}
    assert rows(management, granularity=granularity, order_by=order) == found[::-1]


def test_a_range_includes_its_start_and_excludes_its_end(
    management: APIClient, tenant: Tenant
) -> None:
    for milliseconds in range(3):
        make(tenant, after=timedelta(milliseconds=milliseconds))
    span = {"start": "2026-03-02T00:00:00.001Z", "end": "2026-03-02T02:00:00.002+02:00"}
    assert rows(management, time_range=span) == [{"request_count": 1}]


def test_the_default_range_is_the_last_thirty_days(management: APIClient, tenant: Tenant) -> None:
    now = timezone.now()
    for age in (timedelta(seconds=1), timedelta(days=30, minutes=-1), timedelta(days=30)):
        factories.make_generation(tenant, created_at=now - age)
    answer = ask(management, {"metrics": ["request_count"]}).json()["data"]
    assert answer["data"] == [{"request_count": 2}]


def test_the_metadata_states_row_count_and_truncation(
    management: APIClient, tenant: Tenant
) -> None:
    for number in range(3):
        make(tenant, end_user=f"user {number}")
    for limit, truncated in ((1, True), (2, True), (3, False), (4, False)):
        asked = {
            "metrics": ["usage"],
            "dimensions": ["external_user"],
            "time_range": RANGE,
            "limit": limit,
        }
        data = ask(management, asked).json()["data"]
        took = data["metadata"].pop("query_time_ms")
        assert isinstance(took, float)
        count = min(limit, 3)
        assert data == {
            "data": [{"external_user": f"user {n}", "usage": 0.0} for n in range(count)],
            "metadata": {"row_count": count, "truncated": truncated},
        }


def test_the_default_limit_is_a_thousand_rows(management: APIClient, tenant: Tenant) -> None:
    made = make(tenant)
    values = {field.attname: getattr(made, field.attname) for field in made._meta.fields}
    copies = [
        Generation(**{**values, "id": f"{made.pk}-{n}", "end_user": f"{n:04}"}) for n in range(1001)
    ]
    Generation.objects.bulk_create(copies)
    for body, count in (({}, 1000), ({"limit": 10_000}, 1002)):
        assert len(rows(management, dimensions=["external_user"], **body)) == count


def test_order_by_sorts_by_dimension_or_metric(management: APIClient, tenant: Tenant) -> None:
    for end_user, count in (("a", 1), ("b", 3), ("c", 3), (None, 2)):
        for _ in range(count):
            make(tenant, end_user=end_user, cost_nano=count)

    def order(field: str, direction: str, **body: Any) -> list[Any]:
        by = {"field": field, "direction": direction}
        found = rows(management, "usage", dimensions=["external_user"], order_by=by, **body)
        return [row["external_user"] for row in found]

    assert order("external_user", "asc") == ["a", "b", "c", None]
    assert order("external_user", "desc") == ["c", "b", "a", None]
    assert order("usage", "asc") == ["a", None, "b", "c"]
    assert order("usage", "desc") == ["b", "c", None, "a"]
    assert order("request_count", "desc", limit=1) == ["b"]


def test_group_limit_limits_the_rows_of_each_group(management: APIClient, tenant: Tenant) -> None:
    for end_user, days in (("a", 3), ("b", 1)):
        for number in range(days):
            for _ in range(number + 1):
                make(tenant, end_user=end_user, after=timedelta(days=number))

    def found(limit: int, **body: Any) -> list[tuple[str, str, int]]:
        return [
            (row["external_user"], row["date"][:10], row["request_count"])
            for row in rows(
                management,
                dimensions=["external_user"],
                granularity="day",
                group_limit=limit,
                **body,
            )
        ]

    assert found(1) == [("a", "2026-03-02", 1), ("b", "2026-03-02", 1)]
    assert found(2) == [
        ("a", "2026-03-02", 1), ("b", "2026-03-02", 1), ("a", "2026-03-03", 2),
    ]  # fmt: skip
    largest = {"field": "request_count", "direction": "desc"}
    assert found(1, order_by=largest) == [("a", "2026-03-04", 3), ("b", "2026-03-02", 1)]
    # Without dimensions the group limit has no effect.
    assert len(rows(management, granularity="day", group_limit=1)) == 3


@pytest.mark.parametrize(
    ("metric", "operator", "value", "users"),
    [
        ("request_count", "gt", "1", ["b", "c"]),
        ("request_count", "gte", "2", ["b", "c"]),
        ("request_count", "gt", "1.5", ["b", "c"]),
        ("request_count", "lt", "2", ["a"]),
        ("request_count", "lte", "2.5", ["a", "b"]),
        ("request_count", "eq", "2", ["b"]),
        ("request_count", "eq", "2.5", []),
        ("request_count", "neq", "2", ["a", "c"]),
        ("usage", "gte", "0.000000002", ["b", "c"]),
        ("usage", "gt", "0.0000000019999", ["b", "c"]),
        ("usage", "lt", "2e-9", ["a"]),
        ("error_rate", "gt", "0.3", ["c"]),
        ("latency_p50", "lte", "20", ["a", "b"]),
        ("request_count", "gt", "-1000000000000000000", ["a", "b", "c"]),
        ("usage", "lt", "1000000000000000000", ["a", "b", "c"]),
    ],
)
def test_a_metric_is_filtered_by_comparison(
    management: APIClient, tenant: Tenant, metric: str, operator: str, value: str, users: list[str]
) -> None:
    for count, end_user in enumerate("abc", 1):
        for number in range(count):
            status = "failed" if number == 2 else "completed"
            make(tenant, end_user=end_user, cost_nano=1, latency_ms=10 * count, status=status)
    answer = ask(
        management,
        '{"metrics": ["tokens_total"], "dimensions": ["external_user"], '
        f'"time_range": {json.dumps(RANGE)}, '
        f'"filters": [{{"field": "{metric}", "operator": "{operator}", "value": {value}}}]}}',
    )
    assert answer.status_code == 200, answer.content
    assert [row["external_user"] for row in answer.json()["data"]["data"]] == users


def test_filters_are_combined_with_and(management: APIClient, tenant: Tenant) -> None:
    for end_user, region in (("a", "us"), ("a", "europe"), ("b", "us")):
        make(tenant, end_user=end_user, region=region)
    filters = [
        {"field": "external_user", "operator": "eq", "value": "a"},
        {"field": "data_region", "operator": "in", "value": ["us", "global"]},
    ]
    assert rows(management, filters=filters) == [{"request_count": 1}]


def test_the_hash_of_a_former_secret_names_its_key(management: APIClient, tenant: Tenant) -> None:
    key, other = ApiKey.objects.get(name="inference"), make_key(tenant)
    make(tenant)
    make(tenant, api_key=other)
    hashes = [key.digest]
    for _ in range(2):
        key.rotate(overlap=60)
        hashes.append(key.digest)
    assert len({*hashes}) == 3
    own = {"api_key_id": key.digest, "request_count": 1}
    rest = {"api_key_id": other.digest, "request_count": 1}
    for each in hashes:
        for operator, value, expected in (
            ("eq", each, own), ("in", [each], own), ("neq", each, rest), ("not_in", [each], rest),
        ):  # fmt: skip
            found = rows(
                management, dimensions=["api_key_id"], **only("api_key_id", operator, value)
            )
            assert found == [expected]
    assert rows(management, **only("api_key_id", "in", [*hashes, other.digest])) == [
        {"request_count": 2}
    ]


def test_a_query_covers_only_the_callers_organization(
    management: APIClient, tenant: Tenant
) -> None:
    other = factories.make_tenant("Other")
    foreign = make(other, cost_nano=10**9)
    make(tenant, cost_nano=5)
    assert rows(management, "request_count", "usage") == [
        {"request_count": 1, "usage": 0.000000005}
    ]
    for field, value in (
        ("workspace", str(other.workspace.pk)),
        ("api_key_id", foreign.api_key.digest),
        ("endpoint", str(foreign.model_endpoint_id)),
    ):
        assert rows(management, **only(field, "eq", value)) == [{"request_count": 0}]


TEXT = {"field": "external_user", "operator": "eq", "value": "a"}
NUMBER = {"field": "usage", "operator": "gt", "value": 1}
SPAN = {"start": "2026-01-01T00:00:00Z", "end": "2027-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 1},
        {"limit": 10_000},
        {"group_limit": 1},
        {"group_limit": 10_000},
        {"dimensions": []},
        {"filters": []},
        {"filters": [TEXT] * 100},
        {"filters": [{**TEXT, "value": "x" * 512}]},
        {"filters": [{**TEXT, "operator": "in", "value": ["x"] * 100}]},
        {"filters": [{**NUMBER, "value": 10**18}]},
        {"filters": [{**TEXT, "include_unset": False}]},
        {"time_range": SPAN},
        {"time_range": {"start": "1970-01-01T00:00:00Z", "end": "1970-01-02T00:00:00Z"}},
        {"time_range": {"start": "2285-12-31T00:00:00Z", "end": "2285-12-31T23:59:59Z"}},
        {"time_range": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:00:00.000001Z"}},
        {"order_by": {"field": "request_count", "direction": "asc"}},
    ],
    ids=str,
)  # fmt: skip
def test_values_at_the_limits_are_accepted(management: APIClient, changes: dict[str, Any]) -> None:
    assert ask(management, {"metrics": ["usage"], **changes}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"metrics": None}, "metrics"),
        ({"metrics": []}, "metrics"),
        ({"metrics": "usage"}, "metrics"),
        ({"metrics": ["cost"]}, "metrics"),
        ({"metrics": ["usage", "usage"]}, "metrics"),
        ({"metrics": ["cost_nano); DROP TABLE x"]}, "metrics"),
        ({"metrics": [["usage"]]}, "metrics"),
        ({"dimensions": ["organization"]}, "dimensions"),
        ({"dimensions": ["model", "model"]}, "dimensions"),
        ({"dimensions": ["model__id"]}, "dimensions"),
        ({"granularity": "year"}, "granularity"),
        ({"granularity": None}, "granularity"),
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"limit": True}, "limit"),
        ({"group_limit": 0}, "group_limit"),
        ({"group_limit": 10_001}, "group_limit"),
        ({"order_by": {"field": "request_count"}}, "order_by"),
        ({"order_by": {"field": "request_count", "direction": "up"}}, "order_by"),
        ({"order_by": {"field": "tokens_total", "direction": "asc"}}, "order_by"),
        ({"order_by": {"field": "model", "direction": "asc"}}, "order_by"),
        ({"order_by": {"field": "date", "direction": "asc"}}, "order_by"),
        ({"time_range": {"start": "2026-01-01T00:00:00Z"}}, "time_range"),
        ({"time_range": {**SPAN, "end": "2027-01-02T00:00:00.000001Z"}}, "time_range"),
        ({"time_range": {**SPAN, "end": SPAN["start"]}}, "time_range"),
        ({"time_range": {**SPAN, "end": "2025-12-31T23:59:59Z"}}, "time_range"),
        ({"time_range": {**SPAN, "start": "2026-01-01T00:00Z"}}, "time_range"),
        ({"time_range": {**SPAN, "start": "2026-01-01T00:00:00"}}, "time_range"),
        ({"time_range": {**SPAN, "start": "2026-02-30T00:00:00Z"}}, "time_range"),
        ({"time_range": {**SPAN, "zone": "UTC"}}, "time_range"),
        ({"filters": [TEXT] * 101}, "filters"),
        ({"filters": [{**TEXT, "field": "id"}]}, "filters"),
        ({"filters": [{**TEXT, "field": "date"}]}, "filters"),
        ({"filters": [{**TEXT, "operator": "like"}]}, "filters"),
        ({"filters": [{**TEXT, "operator": "gt"}]}, "filters"),
        ({"filters": [{**TEXT, "value": ["a"]}]}, "filters"),
        ({"filters": [{**TEXT, "operator": "in"}]}, "filters"),
        ({"filters": [{**TEXT, "operator": "in", "value": []}]}, "filters"),
        ({"filters": [{**TEXT, "operator": "in", "value": ["x"] * 101}]}, "filters"),
        ({"filters": [{**TEXT, "operator": "in", "value": ["x", 5]}]}, "filters"),
        ({"filters": [{**TEXT, "value": 5}]}, "filters"),
        ({"filters": [{**TEXT, "value": None}]}, "filters"),
        ({"filters": [{**TEXT, "value": True}]}, "filters"),
        ({"filters": [{**TEXT, "value": {}}]}, "filters"),
        ({"filters": [{**TEXT, "value": "x" * 513}]}, "filters"),
        ({"filters": [{**TEXT, "value": "a\0"}]}, "filters"),
        ({"filters": [{**TEXT, "include_unset": True}]}, "filters"),
        ({"filters": [{**TEXT, "include_unset": 1}]}, "filters"),
        ({"filters": [{**TEXT, "field": "workspace", "value": "default"}]}, "filters"),
        ({"filters": [{**NUMBER, "value": "1"}]}, "filters"),
        ({"filters": [{**NUMBER, "value": 10**18 + 1}]}, "filters"),
        ({"filters": [{**NUMBER, "value": -(10**18) - 1}]}, "filters"),
        ({"filters": [{**NUMBER, "operator": "in", "value": [1]}]}, "filters"),
        ({"filters": [{"field": "usage", "operator": "gt"}]}, "filters"),
        ({"classifier_dimensions": {"classifier_id": "x"}}, "classifier_dimensions"),
        ({"sql": "SELECT 1"}, "sql"),
    ],
    ids=str,
)
def test_an_invalid_query_is_refused_by_field(
    management: APIClient, changes: dict[str, Any], field: str
) -> None:
    with snapshots.unchanged():
        answer = ask(management, {"metrics": ["usage"], **changes})
    assert answer.status_code == 400
    named = {
        name.partition(".")[0].partition("[")[0]
        for name in answer.json()["error"]["metadata"]["fields"]
    }
    assert named == {field}


@pytest.mark.parametrize(
    ("start", "end", "names"),
    [
        ("9999-12-30T00:00:00Z", "9999-12-31T23:59:59Z", {"start", "end"}),
        ("9999-12-31T23:00:00-01:00", "9999-12-31T23:59:59-01:00", {"start", "end"}),
        ("0001-01-01T00:00:00Z", "0001-01-02T00:00:00Z", {"start", "end"}),
        ("0001-01-01T00:00:00+01:00", "2026-01-01T00:00:00Z", {"start"}),
        ("1969-12-31T23:59:59Z", "1970-01-02T00:00:00Z", {"start"}),
        ("2285-12-31T00:00:00Z", "2286-01-01T00:00:00Z", {"end"}),
    ],
)
def test_a_time_without_generations_is_refused_by_name(
    management: APIClient, start: str, end: str, names: set[str]
) -> None:
    body = {"metrics": ["request_count"], "time_range": {"start": start, "end": end}}
    answer = ask(management, body)
    assert answer.status_code == 400, answer.content
    named = set(answer.json()["error"]["metadata"]["fields"])
    assert named == {f"time_range.{name}" for name in names}


@pytest.mark.parametrize("number", ["0", "0e999999999", "-0e9999999"])
def test_a_zero_may_have_any_exponent(management: APIClient, number: str) -> None:
    answer = ask(
        management,
        '{"metrics": ["usage"], "filters": [{"field": "usage", "operator": "gte", "value": '
        f"{number}}}]}}",
    )
    assert answer.status_code == 200, answer.content


@pytest.mark.parametrize(
    "number",
    [
        "1e999999", "-1e9999999", "1e999999999999999999", "1e-999999", "1e-999999999999999999",
        "1e-31", "0." + "0" * 30 + "1",
    ],
)  # fmt: skip
def test_a_number_of_extreme_size_is_refused(management: APIClient, number: str) -> None:
    answer = ask(
        management,
        '{"metrics": ["usage"], "filters": [{"field": "usage", "operator": "gt", "value": '
        f"{number}}}]}}",
    )
    assert answer.status_code == 400


def test_a_query_that_takes_too_long_is_a_timeout(
    management: APIClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analytics, "TIMEOUT_MS", 50)
    dbname = str(connection.settings_dict["NAME"])
    with psycopg.connect(os.environ["DATABASE_URL"], dbname=dbname) as elsewhere:
        elsewhere.execute("LOCK TABLE inference_generation IN ACCESS EXCLUSIVE MODE")
        answers = [ask(management, {"metrics": ["usage"]}), management.get("/api/v1/activity")]
    for answer in answers:
        assert answer.status_code == 408
        assert answer.json()["error"] == {
            "code": 408,
            "message": "The operation exceeded its time limit.",
            "metadata": {"error_type": "timeout"},
        }
