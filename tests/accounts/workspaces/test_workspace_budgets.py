"""``/workspaces/…/budgets``: the spend limits of a workspace, one for each interval."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from accounts.models import BudgetInterval, LimitReset, Workspace, WorkspaceBudget
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import caller, make_workspace, refusal, refused, send, stamp

PATH = "workspaces/default/budgets"
INTERVALS = ["daily", "weekly", "monthly", "lifetime"]
NO_BUDGET = refusal(404, "not_found", "The workspace has no budget for this interval.")


def put(client: APIClient, interval: str, limit: Any, **more: Any) -> Any:
    return send(client, "PUT", f"{PATH}/{interval}", {"limit_usd": limit, **more})


def shown(budget: WorkspaceBudget, **changes: Any) -> dict[str, Any]:
    return {
        "id": str(budget.pk),
        "workspace_id": str(budget.workspace_id),
        "limit_usd": budget.limit_nano / 10**9,
        "reset_interval": None if budget.interval == "lifetime" else budget.interval,
        "created_at": stamp(budget.created_at),
        "updated_at": stamp(budget.updated_at),
        **changes,
    }


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_budget_is_created_changed_shown_and_deleted(
    management: APIClient, tenant: Tenant, interval: str
) -> None:
    made = put(management, interval, 12.5)
    budget = WorkspaceBudget.objects.get()
    assert made.status_code == 200
    assert made.json() == {"data": shown(budget, limit_usd=12.5), "include_byok_in_budgets": False}
    assert (budget.workspace, budget.limit_nano) == (tenant.workspace, 12_500_000_000)
    changed = put(management, interval, 7).json()
    budget.refresh_from_db()
    assert changed == {"data": shown(budget, limit_usd=7.0), "include_byok_in_budgets": False}
    assert stamp(budget.updated_at) > made.json()["data"]["updated_at"]
    with snapshots.unchanged():
        assert put(management, interval, 7).json() == changed
        assert management.get(f"/api/v1/{PATH}/{interval}").json() == changed
    for _ in range(2):
        gone = management.delete(f"/api/v1/{PATH}/{interval}")
        assert (gone.status_code, gone.json()) == (200, {"deleted": True})
    absent = management.get(f"/api/v1/{PATH}/{interval}")
    assert (absent.status_code, absent.json()) == (404, NO_BUDGET)


def test_the_list_begins_with_the_shortest_interval(management: APIClient, tenant: Tenant) -> None:
    empty = management.get(f"/api/v1/{PATH}").json()
    assert empty == {"data": [], "include_byok_in_budgets": False}
    make_workspace(tenant.organization).set_budget(BudgetInterval.DAILY, limit_nano=1)
    for number, interval in enumerate(reversed(INTERVALS)):
        put(management, interval, 10 - number)
    rows = {row.interval: row for row in tenant.workspace.budgets.all()}
    assert management.get(f"/api/v1/{PATH}").json() == {
        "data": [shown(rows[interval]) for interval in INTERVALS],
        "include_byok_in_budgets": False,
    }


@pytest.mark.parametrize(
    ("text", "nano"), [("0.000000001", 1), ("1e-9", 1), ("0.1", 10**8), ("1000000000", 10**18)]
)
def test_a_limit_is_stored_exactly(management: APIClient, text: str, nano: int) -> None:
    response = send(management, "PUT", f"{PATH}/daily", f'{{"limit_usd": {text}}}')
    assert response.json()["data"]["limit_usd"] == nano / 10**9
    assert WorkspaceBudget.objects.get().limit_nano == nano


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("limit_usd", text) for text in ("0", "0.0", "0.0000000001")),
        ("reset_interval", '"daily"'),
    ],
)  # fmt: skip
def test_put_refuses_invalid_fields_by_name(management: APIClient, field: str, text: str) -> None:
    put(management, "daily", 5)
    start = "{" if field == "limit_usd" else '{"limit_usd": 1, '
    with snapshots.unchanged():
        response = send(management, "PUT", f"{PATH}/daily", f'{start}"{field}": {text}}}')
    assert refused(response) == (400, {field})


def test_put_requires_a_limit(management: APIClient) -> None:
    body = {"include_byok_in_budgets": True}
    assert refused(send(management, "PUT", f"{PATH}/daily", body)) == (400, {"limit_usd"})


@pytest.mark.parametrize("interval", ["hourly", "Daily", "null", "yearly", "daily%0A"])
def test_an_unknown_interval_is_refused(management: APIClient, interval: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        response = send(management, method, f"{PATH}/{interval}", {"limit_usd": 1})
        assert refused(response) == (400, {"interval"})


@pytest.mark.parametrize(("short", "long"), [*itertools.combinations(INTERVALS, 2)])
def test_a_shorter_interval_needs_a_strictly_lower_limit(
    management: APIClient, short: str, long: str
) -> None:
    put(management, long, 5)
    with snapshots.unchanged():
        for limit in (5, 5.000000001):
            response = put(management, short, limit)
            assert refused(response) == (400, {"limit_usd"})
            message = f"limit_usd: Must be below the {long} budget of the workspace."
            assert response.json()["error"]["message"] == message
    assert put(management, short, 4.999999999).status_code == 200
    with snapshots.unchanged():
        for limit in (4.999999999, 1):
            response = put(management, long, limit)
            message = f"limit_usd: Must be above the {short} budget of the workspace."
            assert response.json()["error"]["message"] == message
    assert put(management, long, 6).status_code == 200


def test_include_byok_in_budgets_is_one_setting_of_the_workspace(
    management: APIClient, tenant: Tenant
) -> None:
    first = put(management, "daily", 1, include_byok_in_budgets=True)
    for answer in (first, put(management, "weekly", 2), management.get(f"/api/v1/{PATH}")):
        assert answer.json()["include_byok_in_budgets"]
    assert management.get("/api/v1/workspaces/default").json()["data"]["include_byok_in_budgets"]
    with snapshots.unchanged():
        assert put(management, "daily", 3, include_byok_in_budgets=False).status_code == 400
    put(management, "weekly", 2, include_byok_in_budgets=False)
    tenant.workspace.refresh_from_db()
    assert tenant.workspace.include_byok_in_budgets is False


def test_a_lifetime_budget_has_no_reset() -> None:
    assert [BudgetInterval(name).reset for name in INTERVALS] == [*LimitReset, None]


@pytest.mark.parametrize("limit", [0, -1])
def test_the_database_refuses_a_limit_that_is_not_positive(tenant: Tenant, limit: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        WorkspaceBudget.objects.create(
            workspace=tenant.workspace, interval="daily", limit_nano=limit
        )


def test_concurrent_puts_keep_shorter_intervals_lower(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()

    def setter(workspace: Workspace, interval: str, limit: int) -> Callable[[], int]:
        path = f"workspaces/{workspace.pk}/budgets/{interval}"
        return caller(server, tenant, "PUT", path, {"limit_usd": limit})

    for _ in range(10):
        workspace = make_workspace(tenant.organization)
        answers = together(
            *(setter(workspace, "daily", limit) for limit in (3, 5)),
            *(setter(workspace, "weekly", limit) for limit in (4, 2)),
        )
        assert set(answers) <= {200, 400}
        left = dict(workspace.budgets.values_list("interval", "limit_nano"))
        assert left.get("daily", 0) < left.get("weekly", 10**18)
        assert left
