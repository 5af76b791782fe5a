"""The pages of keys show how often their callers leave."""

from __future__ import annotations

from datetime import timedelta

from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from inference.reports.cancellations import Cancellations, sum_today, sum_week
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.console import listing, page
from tests.support.factories import Tenant


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


def test_a_key_without_requests_shows_zeros(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    assert (sum_week([key]), sum_today(key)) == ({}, Cancellations())
    assert "<td>0.0%</td>" in operator.get(page(key)).content.decode()
