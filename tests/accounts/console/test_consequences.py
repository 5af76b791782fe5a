"""What the dialogs of dangerous transitions say before they are confirmed."""

from __future__ import annotations

import html
import re
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from config.secrets import digest_api_key
from tests.support import console, factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.inference.site import Site


def sentences(client: Client, path: str) -> list[str]:
    """Returns what a dialog foresees; opening it changes nothing."""
    before = snapshots.everything()
    text = client.get(path).content.decode()
    assert snapshots.everything() == before
    block = re.search(r'aria-label="Consequences">(.*?)</ul>', text, re.DOTALL)
    assert block is not None
    return [html.unescape(each) for each in re.findall(r"<li>(.*?)</li>", block[1], re.DOTALL)]


def test_a_key_names_its_organization_and_its_traffic(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
    other = ApiKey.objects.create_key(workspace=tenant.workspace, name="other")[0]
    now = timezone.now()
    for minutes in (1, 30, 90):
        factories.make_generation(
            tenant, cost_nano=10**9, created_at=now - timedelta(minutes=minutes)
        )

    for verb in ("pause", "revoke"):
        assert sentences(operator, console.page(key, verb)) == [
            f"The key {key} of Acme.",
            "It had 2 requests in the last hour, for $2.00.",
            "Such requests will get 401.",
        ]
    assert sentences(operator, console.page(other, "revoke"))[1] == (
        "It had no requests in the last hour."
    )


def test_an_organization_names_its_keys(operator: Client, tenant: Tenant) -> None:
    factories.make_generation(tenant, cost_nano=0)
    assert sentences(operator, console.page(tenant.organization, "suspend")) == [
        "The organization Acme.",
        "It had 1 request in the last hour, for $0.00. 1 key sent them.",
        "Such requests will get 403 and the reason.",
    ]


def test_an_endpoint_names_where_its_requests_will_go(operator: Client, site: Site) -> None:
    endpoint = site.own(price=factories.make_price("0.000001", "0.000002"))
    for _ in range(2):
        factories.make_generation(
            site.tenant,
            private_endpoint=endpoint,
            model=site.model.slug,
            provider_name=site.provider.name,
            prompt_tokens=300,
            completion_tokens=100,
        )

    alone = sentences(operator, console.page(endpoint, "disable"))
    assert alone[0] == f"The endpoint {endpoint} of {site.tenant.organization}."
    assert alone[2:] == [
        "2 requests of the key inference: nothing else may serve them; they will get 404."
    ]

    site.publish(price=factories.make_price("0.000002", "0.000004"))
    shown = sentences(operator, console.page(endpoint, "disable"))
    there = f"{site.provider.name} ({site.model.slug})"
    paid = "paid by a credential of the organization, price +100%."
    assert shown[2:] == [f"2 requests of the key inference: they will go to {there}, {paid}"]
