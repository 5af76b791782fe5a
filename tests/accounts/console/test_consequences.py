"""What the dialogs of dangerous transitions say before they are confirmed."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import ApiKey, KeyAssignment
from catalog.models import Provider
from config.credentials import Secret
from config.secrets import digest_api_key
from endpoints.models import PrivateEndpoint
from tests.support import console, factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_preset
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
            "It had 2 requests in the last hour, for $2.00.",
            "Such requests will get 401.",
        ]
    assert sentences(operator, console.page(other, "revoke"))[0] == (
        "It had no requests in the last hour."
    )


def test_an_organization_names_its_keys(operator: Client, tenant: Tenant) -> None:
    factories.make_generation(tenant, cost_nano=0)
    assert sentences(operator, console.page(tenant.organization, "suspend")) == [
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
    assert alone[1:] == [
        "2 requests of the key inference: nothing else may serve them; they will get 404."
    ]

    site.publish(price=factories.make_price("0.000002", "0.000004"))
    shown = sentences(operator, console.page(endpoint, "disable"))
    there = f"{site.provider.name} ({site.model.slug})"
    paid = "paid by a credential of the organization, price +100%."
    assert shown[1:] == [f"2 requests of the key inference: they will go to {there}, {paid}"]


def off(client: Client, row: Any) -> list[str]:
    return sentences(client, console.page(row, "delist"))


def test_what_leaves_the_catalogue_names_where_its_requests_will_go(
    operator: Client, site: Site
) -> None:
    public = site.publish(price=factories.make_price("0.000001", "0.000002"))
    for _ in range(3):
        factories.make_generation(
            site.tenant,
            model_endpoint=public,
            model=site.model.slug,
            provider_name=site.provider.name,
            prompt_tokens=300,
            completion_tokens=100,
        )

    nowhere = "3 requests of the key inference: nothing else may serve them; they will get 404."
    for row in (public, site.provider, site.model):
        told = off(operator, row)
        assert told[0] == "1 endpoint in use, of all organizations."
        assert told[1].startswith("It had 3 requests in the last hour, for ")
        assert told[1].endswith(" Of 1 organization.")
        assert told[2:] == [nowhere]

    other = factories.make_endpoint(
        site.model, factories.make_provider(), price=factories.make_price("0.000002", "0.000004")
    )
    other.provider.set_credential(Secret("a-credential-of-the-operator"))
    there = f"{other.provider.name} ({site.model.slug})"
    assert off(operator, site.provider)[2:] == [
        f"3 requests of the key inference: they will go to {there}, paid by credits, price +100%."
    ]
    # Without the model, the other provider serves it as little.
    assert off(operator, site.model)[2:] == [nowhere]


def test_further_keys_need_no_further_reading_of_the_catalogue(
    operator: Client, site: Site
) -> None:
    public = site.publish()
    counts = []
    for name in ("one", "two", "three"):
        key, _ = ApiKey.objects.create_key(workspace=site.tenant.workspace, name=name)
        factories.make_generation(
            site.tenant, api_key=key, model_endpoint=public, model=site.model.slug
        )
        with CaptureQueriesContext(connection) as captured:
            told = off(operator, site.provider)
        assert f"of {len(counts) + 1} key" in told[2] or "of the key one" in told[2]
        counts.append(len(captured))
    # The guardrails of a key are read with the key.
    assert counts[2] - counts[1] <= 1


def test_a_row_leaves_the_catalogue_and_returns(operator: Client, site: Site) -> None:
    public = site.publish()
    for row in (public, site.provider, site.model):
        for verb, is_listed in (("delist", False), ("relist", True)):
            answer = operator.post(console.page(row, verb), console.SUBMIT, follow=True)
            row.refresh_from_db()
            assert row.is_listed is is_listed
            assert console.messages_of(answer)[-1].endswith(
                "is in the catalogue again." if is_listed else "is out of the catalogue."
            )
            before = console.fingerprint()
            operator.post(console.page(row, verb), console.SUBMIT)
            assert console.fingerprint() == before


def selected(client: Client, model: type[Any], action: str, *rows: Any) -> list[str]:
    """Returns what the confirmation of an action over rows foresees."""
    chosen = {"action": action, "_selected_action": [str(row.pk) for row in rows]}
    text = client.post(console.listing(model), chosen).content.decode()
    block = re.search(r'aria-label="Consequences">(.*?)</ul>', text, re.DOTALL)
    assert block is not None
    return [html.unescape(each) for each in re.findall(r"<li>(.*?)</li>", block[1], re.DOTALL)]


def test_an_action_over_rows_sums_their_traffic(operator: Client, site: Site) -> None:
    endpoint = site.own()
    second = factories.make_draft(site.tenant, factories.make_model(), site.provider)
    for row in (endpoint, second):
        factories.make_generation(
            site.tenant, private_endpoint=row, model=row.model.slug, cost_nano=10**9
        )
    keys = list(ApiKey.objects.for_inference())
    assert selected(operator, ApiKey, "pause_selected", *keys) == [
        f"{len(keys)} key{'s'[: len(keys) != 1]} of Acme.",
        "They had 2 requests in the last hour, for $2.00.",
        "Such requests will get 401.",
    ]
    told = selected(operator, PrivateEndpoint, "disable_selected", endpoint, second)
    assert told[:2] == [
        "2 endpoints of Acme.",
        "They had 2 requests in the last hour, for $2.00.",
    ]
    public = site.publish()
    factories.make_generation(site.tenant, model_endpoint=public, cost_nano=10**9)
    told = selected(operator, Provider, "delist_selected", site.provider, public.provider)
    assert told[2] == "They had 1 request in the last hour, for $1.00. Of 1 organization."


def test_what_is_deleted_names_the_requests_that_used_it(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
    provider = factories.make_provider("acme-ai", name="Acme AI")
    credential = factories.make_credential(tenant, provider)
    guardrail, preset = make_guardrail(tenant.workspace), make_preset(tenant.workspace)
    idle = make_guardrail(tenant.workspace, name="Idle")
    KeyAssignment.objects.create(guardrail=guardrail, api_key=key)
    factories.make_generation(
        tenant, api_key=key, is_byok=True, provider_name="Acme AI", cost_nano=10**9
    )
    factories.make_generation(tenant, api_key=key, preset_id=preset.pk, cost_nano=10**9)

    of_credential = [
        "The workspace may have other credentials for Acme AI; their traffic is counted together.",
        "They had 1 request in the last hour, for $1.00.",
    ]
    for verb in ("remove", "rotate"):
        assert sentences(operator, console.page(credential, verb)) == of_credential
    assert sentences(operator, console.page(guardrail, "remove")) == [
        "It limits 1 key, by assignment or by their creators.",
        "They had 2 requests in the last hour, for $2.00.",
    ]
    assert sentences(operator, console.page(idle, "remove"))[0] == (
        "It limits 0 keys, by assignment or by their creators."
    )
    assert sentences(operator, console.page(preset, "remove")) == [
        "It had 1 request in the last hour, for $1.00."
    ]
