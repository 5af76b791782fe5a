"""The operator's page of one end user."""

from __future__ import annotations

from django.test import Client
from django.urls import reverse
from django.utils import timezone

from endusers.models import EndUser
from tests.support import factories
from tests.support.factories import Tenant


def test_the_page_shows_the_usage_of_an_end_user(admin_client: Client, tenant: Tenant) -> None:
    organization = tenant.organization
    known = EndUser.objects.register(organization_id=organization.pk, user="customer-1")
    used = {"end_user": "customer-1", "prompt_tokens": 1_000, "completion_tokens": 234}
    factories.make_generation(tenant, cost_nano=1_500_000_000, **used)
    factories.make_generation(
        tenant, is_byok=True, upstream_cost_nano=250_000_000, cost_nano=0, **used
    )
    factories.make_generation(tenant, end_user="customer-2", cost_nano=10**9, prompt_tokens=1)
    page = admin_client.get(reverse("admin:endusers_enduser_change", args=[known.pk]))
    text = page.content.decode()
    assert page.status_code == 200
    for shown in ("2,468", "$1.5", "$0.25", str(timezone.now().date())):
        assert shown in text


def test_the_page_of_an_unused_end_user_shows_no_usage(
    admin_client: Client, tenant: Tenant
) -> None:
    known = EndUser.objects.register(organization_id=tenant.organization.pk, user="quiet")
    page = admin_client.get(reverse("admin:endusers_enduser_change", args=[known.pk]))
    assert "not in these days" in page.content.decode()
