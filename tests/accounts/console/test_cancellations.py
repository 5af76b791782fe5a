"""The pages of keys show how often their callers leave."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from billing.models import Meter
from inference.reports.cancellations import Cancellations, sum_today, sum_week
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.console import listing, page
from tests.support.factories import Tenant
from tests.support.governance import make_key
from tests.support.operators.four_eyes import sign_in_with


def cancel(tenant: Tenant, days: int, status: str = "cancelled", cost: int = 7) -> None:
    factories.make_generation(
        tenant,
        status=status,
        cost_nano=cost,
        upstream_cost_nano=cost,
        created_at=timezone.now() - timedelta(days=days),
    )


def test_a_key_shows_the_share_and_the_cost_of_its_cancelled_requests(
    operator: Client, tenant: Tenant
) -> None:
    key = ApiKey.objects.get(name="inference")
    for days, status in ((3, "cancelled"), (3, "completed"), (2, "cancelled"), (9, "cancelled")):
        cancel(tenant, days, status)
    cancel(tenant, 0)
    roll_up_usage()

    assert sum_week([key]) == {key.pk: Cancellations(3, 2, 14)}
    assert sum_today(key) == Cancellations(1, 1, 7)
    listed = " ".join(operator.get(listing(ApiKey)).content.decode().split())
    assert "67%" in listed
    shown = " ".join(operator.get(page(key)).content.decode().split())
    for text in ("<td>66.7%</td>", "<td>$0.000000014</td>", "<td>100.0%</td>"):
        assert text in shown


@pytest.mark.parametrize("sees", [False, True])
def test_the_use_of_keys_is_for_those_who_see_requests(tenant: Tenant, sees: bool) -> None:
    key = ApiKey.objects.get(name="inference")
    cancel(tenant, 3)
    roll_up_usage()
    for row, nano in ((key, 5), (make_key(tenant, "other"), 7)):
        now = timezone.now()
        spent = {"cost": nano, "cost_monthly": nano, "day": now.date(), "last_used_at": now}
        Meter.objects.filter(pk=row.pk).update(**spent)
    names = ("view_apikey", "change_apikey", *(["view_generation"] if sees else []))
    client = sign_in_with("ann", *names)

    def listed(query: str) -> list[Any]:
        return list(client.get(f"{listing(ApiKey)}?{query}").context["cl"].result_list)

    [found] = [row for row in listed("") if row == key]
    week = Cancellations(1, 1, 7) if sees else Cancellations()
    assert (found.meter is not None, found.week) == (sees, week)
    by_spending = [[row.name for row in listed(f"o={order}")] for order in ("6", "-6")]
    assert (by_spending[0] != by_spending[1]) is sees
    shown = client.get(page(key)).content.decode()
    assert ("$0.000000005 this month" in shown) is sees
    assert ("Upstream cost of the cancelled" in shown) is sees
    selected = {"action": "pause_selected", "_selected_action": [str(key.pk)]}
    for answer in (client.get(page(key, "pause")), client.post(listing(ApiKey), selected)):
        assert ("requests in the last hour" in answer.content.decode()) is sees


def test_a_key_without_requests_shows_zeros(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    assert (sum_week([key]), sum_today(key)) == ({}, Cancellations())
    assert "<td>0.0%</td>" in operator.get(page(key)).content.decode()
