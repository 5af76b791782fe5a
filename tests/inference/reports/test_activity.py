"""``GET /activity``: sums by day, model and endpoint, with and without rolled-up days."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import Member
from inference.models import DailyUsage, Generation, Journal, UsageDay
from inference.reports import activity as reports
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_workspace, missing

DAY = timedelta(days=1)
SUMS = (
    "requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "usage",
    "byok_usage_inference",
)  # fmt: skip


def day(number: int) -> date:
    """Returns the UTC day ``number`` days before today."""
    return timezone.now().astimezone(UTC).date() - number * DAY


def moment(number: int, at: time = time(12)) -> datetime:
    return datetime.combine(day(number), at, tzinfo=UTC)


def activity(client: APIClient, **query: str) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/activity", query)
    assert answer.status_code == 200, answer.content
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


Report = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["live", "rolled up"])
def report(request: pytest.FixtureRequest, management: APIClient) -> Report:
    """Returns a function that reads the activity; sums of completed days must not change it."""

    def read(**query: str) -> list[dict[str, Any]]:
        if request.param == "rolled up":
            roll_up_usage(moment(0))
        return activity(management, **query)

    return read


def test_a_row_has_every_field(tenant: Tenant, report: Report) -> None:
    endpoint = factories.make_endpoint(
        factories.make_model("acme/falcon"), factories.make_provider()
    )
    shared: dict[str, Any] = {"model_endpoint": endpoint, "created_at": moment(3)}
    factories.make_generation(
        tenant,
        prompt_tokens=100,
        completion_tokens=20,
        cached_tokens=30,
        reasoning_tokens=4,
        cost_nano=1_000_000_007,
        upstream_cost_nano=1_000_000_007,
        **shared,
    )
    factories.make_generation(
        tenant,
        prompt_tokens=1,
        completion_tokens=2,
        is_byok=True,
        cost_nano=5,
        upstream_cost_nano=600,
        **shared,
    )
    factories.make_generation(tenant, status="failed", error_type="timeout", **shared)
    factories.make_generation(tenant, status="cancelled", **shared)
    assert report() == [
        {
            "byok_usage_inference": 0.0000006,
            "cached_tokens": 30,
            "completion_tokens": 22,
            "date": day(3).isoformat(),
            "endpoint_id": str(endpoint.pk),
            "model": "acme/falcon",
            "model_permaslug": "acme/falcon-2026-01-01",
            "prompt_tokens": 101,
            "provider_name": "Acme AI",
            "reasoning_tokens": 4,
            "requests": 4,
            "usage": 1.000000012,
        }
    ]


def test_a_private_endpoint_is_listed_under_its_model(tenant: Tenant, report: Report) -> None:
    draft = factories.make_draft(
        tenant, factories.make_model("acme/falcon"), factories.make_provider()
    )
    factories.make_generation(tenant, private_endpoint=draft, created_at=moment(2))
    [row] = report()
    found = (row["endpoint_id"], row["model_permaslug"])
    assert found == (str(draft.pk), "acme/falcon-2026-01-01")


def test_activity_covers_the_last_thirty_completed_days(tenant: Tenant, report: Report) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    last = time(23, 59, 59, 999_999)
    moments = [
        moment(31, last), moment(30, time()), moment(30, last), moment(29, time()),
        moment(1, last), moment(0, time()),
    ]  # fmt: skip
    for at in moments:
        factories.make_generation(tenant, created_at=at, model_endpoint=endpoint)
    assert [(row["date"], row["requests"]) for row in report()] == [
        (day(1).isoformat(), 1),
        (day(29).isoformat(), 1),
        (day(30).isoformat(), 2),
    ]


@pytest.mark.parametrize(("number", "requests"), [(1, [1]), (2, []), (30, [2])])
def test_the_date_filter_selects_one_day(
    tenant: Tenant, report: Report, number: int, requests: list[int]
) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    for at in (moment(1), moment(30), moment(30)):
        factories.make_generation(tenant, created_at=at, model_endpoint=endpoint)
    rows = report(date=day(number).isoformat())
    assert [row["requests"] for row in rows] == requests


@pytest.mark.parametrize("number", [-1, 0, 31])
def test_a_date_outside_the_last_thirty_days_is_refused(management: APIClient, number: int) -> None:
    answer = management.get("/api/v1/activity", {"date": day(number).isoformat()})
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["fields"] == {
        "date": "Must be one of the last 30 completed days."
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("date", ""),
        ("date", "yesterday"),
        ("date", "2026-1-1"),
        ("date", "2026-13-01"),
        ("date", "2026-01-01T00:00:00Z"),
        ("date", "２０２６-01-01"),
        ("date", "2026-01-01\n"),
        ("user_id", "me"),
        ("user_id", ""),
        ("workspace_id", "default"),
        ("workspace_id", "0" * 32),
        ("group_by", ""),
        ("group_by", "Workspace"),
        ("group_by", "workspace,end_user"),
        ("end_user", "a\0b"),
    ],
)
def test_a_malformed_filter_is_refused(management: APIClient, name: str, value: str) -> None:
    with snapshots.unchanged():
        answer = management.get("/api/v1/activity", {name: value})
    assert answer.status_code == 400
    assert list(answer.json()["error"]["metadata"]["fields"]) == [name]


def test_a_foreign_or_unknown_id_is_not_found(management: APIClient) -> None:
    other = factories.make_tenant("Other")
    member = Member.objects.create(organization=other.organization, email="a@other.example")
    unknown = "00000000-0000-4000-8000-000000000000"
    for name, values, what in (
        ("api_key_hash", [make_key(other).digest, "0" * 64, "x", ""], "API key"),
        ("user_id", [str(member.pk), unknown], "member"),
        ("workspace_id", [str(other.workspace.pk), unknown], "workspace"),
    ):
        for value in values:
            answer = management.get("/api/v1/activity", {name: value})
            assert (answer.status_code, answer.json()) == (404, missing(what))


def test_unknown_parameters_are_ignored(management: APIClient, tenant: Tenant) -> None:
    factories.make_generation(tenant, created_at=moment(1))
    assert activity(management, more="x") == activity(management)


def test_a_generation_counts_only_after_it_has_ended(management: APIClient, tenant: Tenant) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    for status in ("pending", "completed"):
        factories.make_generation(
            tenant, status=status, created_at=moment(2), model_endpoint=endpoint
        )
    assert [row["requests"] for row in activity(management)] == [1]
    # The day has a pending generation and is not rolled up; the following day is.
    assert roll_up_usage(moment(0)) == 1
    assert list(UsageDay.objects.values_list("day", flat=True)) == [day(1)]
    assert [row["requests"] for row in activity(management)] == [1]
    Generation.objects.filter(status="pending").update(status="failed")
    Journal.objects.all().delete()
    assert [row["requests"] for row in activity(management)] == [2]
    assert roll_up_usage(moment(0)) == 1
    assert [row["requests"] for row in activity(management)] == [2]


def test_a_day_is_rolled_up_an_hour_after_its_end(tenant: Tenant) -> None:
    factories.make_generation(tenant, created_at=moment(2, time()))
    end = moment(1, time())
    assert roll_up_usage(end + timedelta(minutes=59, seconds=59)) == 0
    assert not DailyUsage.objects.exists()
    assert roll_up_usage(end + timedelta(hours=1)) == 1
    assert UsageDay.objects.get().day == day(2)


def test_rolling_up_again_changes_nothing(tenant: Tenant) -> None:
    for number in (5, 3, 3):
        factories.make_generation(tenant, created_at=moment(number), end_user="alice")
    assert roll_up_usage(moment(0)) == 5
    with snapshots.unchanged():
        assert roll_up_usage(moment(0)) == 0


def test_a_day_whose_row_is_deleted_is_rolled_up_again(
    management: APIClient, tenant: Tenant
) -> None:
    factories.make_generation(tenant, created_at=moment(3), prompt_tokens=7)
    roll_up_usage(moment(0))
    before = activity(management)
    DailyUsage.objects.update(prompt_tokens=9)
    assert [row["prompt_tokens"] for row in activity(management)] == [9]
    UsageDay.objects.get(day=day(3)).delete()
    assert not DailyUsage.objects.exists()
    assert activity(management) == before
    assert roll_up_usage(moment(0)) == 1
    assert activity(management) == before


def test_nothing_is_rolled_up_before_the_first_generation(tenant: Tenant) -> None:
    assert roll_up_usage() == 0
    assert not UsageDay.objects.exists()


def test_concurrent_runners_roll_a_day_up_once(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    for _ in range(3):
        factories.make_generation(tenant, created_at=moment(2))
    assert sum(together(*[lambda: roll_up_usage(moment(0))] * 4)) == 2
    assert sum(DailyUsage.objects.filter(by_end_user=False).values_list("requests", flat=True)) == 3


def test_a_rolled_up_day_is_read_only_from_its_sums(management: APIClient, tenant: Tenant) -> None:
    for number in range(2, 31):
        factories.make_generation(tenant, created_at=moment(number))
    roll_up_usage(moment(0))
    with CaptureQueriesContext(connection) as captured:
        assert len(activity(management)) == 29
    assert [query for query in captured if "inference_generation" in query["sql"]] == []


def test_rows_are_grouped_by_workspace(tenant: Tenant, report: Report) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    more = make_workspace(tenant.organization)
    for workspace in (tenant.workspace, more, more):
        factories.make_generation(
            tenant, workspace=workspace, created_at=moment(2), model_endpoint=endpoint
        )
    rows = report(group_by="workspace")
    assert {row["workspace_id"]: row["requests"] for row in rows} == {
        str(tenant.workspace.pk): 1,
        str(more.pk): 2,
    }
    assert rows == sorted(rows, key=lambda row: row["workspace_id"])
    assert not any("external_user" in row for row in rows)


def test_rows_are_grouped_by_end_user(tenant: Tenant, report: Report) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    for end_user in ("Bob", None, "alice", "Bob", "bob"):
        factories.make_generation(
            tenant, end_user=end_user, created_at=moment(2), model_endpoint=endpoint
        )
    rows = report(group_by="end_user")
    assert [(row["external_user"], row["requests"]) for row in rows] == [
        (None, 1),
        ("Bob", 2),
        ("alice", 1),
        ("bob", 1),
    ]
    assert not any("workspace_id" in row for row in rows)


@pytest.mark.parametrize("rolled_up", [None, 2, 0])
def test_more_rows_of_end_users_than_the_limit_are_refused(
    tenant: Tenant, management: APIClient, monkeypatch: pytest.MonkeyPatch, rolled_up: int | None
) -> None:
    """Callers make such names up, one for each request."""
    monkeypatch.setattr(reports, "_MOST_ROWS", 2)
    for end_user, number in (("ann", 3), ("bob", 3), ("cid", 2)):
        factories.make_generation(
            tenant, end_user=end_user, created_at=moment(number), model=f"acme/{end_user}"
        )
    if rolled_up is not None:
        roll_up_usage(moment(rolled_up))
    answer = management.get("/api/v1/activity", {"group_by": "end_user"})
    assert answer.status_code == 400
    [(field, text)] = answer.json()["error"]["metadata"]["fields"].items()
    assert (field, text.partition(".")[0]) == ("group_by", "Gives more than 10,000 rows")
    assert "POST /analytics/query" in text
    for query, count in (
        ({"group_by": "end_user", "end_user": "ann"}, 1),
        ({"group_by": "end_user", "date": day(3).isoformat()}, 2),
        ({"group_by": "workspace"}, 3),
    ):
        assert len(activity(management, **query)) == count
    assert len(activity(management)) == 3


def test_a_revoked_key_and_a_closed_workspace_keep_their_activity(
    tenant: Tenant, report: Report
) -> None:
    workspace = make_workspace(tenant.organization)
    key = make_key(tenant, workspace=workspace)
    factories.make_generation(tenant, api_key=key, workspace=workspace, created_at=moment(2))
    key.revoke()
    workspace.close()
    assert len(report(api_key_hash=key.digest)) == 1
    assert len(report(workspace_id=str(workspace.pk))) == 1


def _crowd(random_: random.Random, tenants: Iterable[Tenant]) -> None:
    """Creates generations of every kind over more days than the report covers."""
    endpoints = [
        factories.make_endpoint(factories.make_model(), factories.make_provider()) for _ in range(3)
    ]
    for tenant in tenants:
        member = Member.objects.create(organization=tenant.organization, email="a@b.example")
        workspaces = [tenant.workspace, make_workspace(tenant.organization)]
        keys = [make_key(tenant), make_key(tenant, creator=member)]
        for _ in range(60):
            is_byok = random_.random() < 0.4
            factories.make_generation(
                tenant,
                api_key=random_.choice(keys),
                workspace=random_.choice(workspaces),
                end_user=random_.choice([None, "alice", "bob"]),
                model=random_.choice(["acme/falcon", "acme/heron"]),
                model_endpoint=random_.choice(endpoints),
                is_byok=is_byok,
                status=random_.choice(["completed"] * 4 + ["failed", "cancelled", "pending"]),
                prompt_tokens=random_.choice([None, 0, 7, 1_000]),
                completion_tokens=random_.choice([None, 0, 3, 500]),
                cached_tokens=random_.choice([None, 2]),
                reasoning_tokens=random_.choice([None, 1]),
                cost_nano=random_.randrange(10**6),
                upstream_cost_nano=random_.randrange(10**6),
                created_at=moment(random_.randrange(34)),
            )


def _expected(rows: Iterable[Generation]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for row in rows:
        totals["requests"] += 1
        for name in SUMS[1:5]:
            totals[name] += getattr(row, name) or 0
        totals["usage"] += row.cost_nano
        totals["byok_usage_inference"] += row.upstream_cost_nano if row.is_byok else 0
    return {name: totals[name] for name in SUMS}


def _told(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for row in rows:
        for name in SUMS[:5]:
            totals[name] += row[name]
        for name in SUMS[5:]:
            totals[name] += round(row[name] * 10**9)
    return {name: totals[name] for name in SUMS}


def test_sums_equal_the_generations(db: None) -> None:
    """Nothing is summed first, then every day, then all but some days, then all but more."""
    random_ = random.Random(0)
    tenants = [factories.make_tenant(name) for name in ("Acme", "Other")]
    _crowd(random_, tenants)
    _compare_sums(tenants)
    for days in (0, 3, 6):
        roll_up_usage(moment(0))
        for number in random_.sample(range(2, 31), days):
            UsageDay.objects.filter(day=day(number)).delete()
        _compare_sums(tenants)


def _compare_sums(tenants: Iterable[Tenant]) -> None:
    since, until = moment(30, time()), moment(0, time())
    for tenant in tenants:
        client = factories.client(tenant.management_key)
        settled = list(
            Generation.objects.filter(
                organization=tenant.organization, created_at__gte=since, created_at__lt=until
            )
            .exclude(status="pending")
            .select_related("api_key")
        )
        assert settled
        for query, chosen in _choices(settled):
            rows = activity(client, **query)
            assert _told(rows) == _expected(chosen)
            asked = client.post(
                "/api/v1/analytics/query",
                {
                    "metrics": [
                        "request_count", "tokens_prompt", "tokens_completion", "tokens_cached",
                        "tokens_reasoning", "usage", "byok_usage",
                    ],
                    "filters": _as_filters(query),
                    "time_range": {"start": since.isoformat(), "end": until.isoformat()},
                },
            )  # fmt: skip
            [totals] = asked.json()["data"]["data"]
            exact = _expected(chosen)
            assert list(totals.values()) == [
                *(exact[name] for name in SUMS[:5]),
                exact["usage"] / 10**9,
                exact["byok_usage_inference"] / 10**9,
            ]


def _choices(
    settled: list[Generation],
) -> Iterable[tuple[dict[str, str], list[Generation]]]:
    yield {}, settled
    yield {"group_by": "workspace"}, settled
    yield {"group_by": "end_user"}, settled
    yield {"end_user": "alice"}, [row for row in settled if row.end_user == "alice"]
    yield {"end_user": "carol", "group_by": "workspace"}, []
    key = settled[0].api_key
    yield {"api_key_hash": key.digest}, [row for row in settled if row.api_key_id == key.pk]
    workspace_id = settled[0].workspace_id
    of_workspace = [row for row in settled if row.workspace_id == workspace_id]
    yield {"workspace_id": str(workspace_id)}, of_workspace
    yield (
        {"workspace_id": str(workspace_id), "end_user": "bob"},
        [row for row in of_workspace if row.end_user == "bob"],
    )
    member_id = next(row.member_id for row in settled if row.member_id)
    yield {"user_id": str(member_id)}, [row for row in settled if row.member_id == member_id]


def _as_filters(query: dict[str, str]) -> list[dict[str, str]]:
    names = {
        "end_user": "external_user",
        "api_key_hash": "api_key_id",
        "workspace_id": "workspace",
        "user_id": "user",
    }
    return [
        {"field": names[name], "operator": "eq", "value": value}
        for name, value in query.items()
        if name in names
    ]
