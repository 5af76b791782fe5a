"""What the dialogs of dangerous transitions say before they are confirmed."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import ApiKey, ByokCredential, Guardrail, KeyAssignment
from catalog.dialects.base import Operation
from catalog.models import LanguageModel, ModelAlias, ModelEndpoint, Provider
from config.credentials import Secret
from config.secrets import digest_api_key
from endpoints.models import PrivateEndpoint, PrivateProvider
from inference.models import Generation
from inference.reports.usage import consequences
from tests.support import console, factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key, make_preset
from tests.support.inference.site import Site


def sentences(client: Client, path: str) -> list[str]:
    """Returns what a dialog foresees; opening it changes nothing."""
    with snapshots.unchanged():
        answer = client.get(path)
    return foreseen(answer)


def foreseen(answer: Any) -> list[str]:
    text = answer.content.decode()
    block = re.search(r'aria-label="Consequences">(.*?)</ul>', text, re.DOTALL)
    assert block is not None
    return [html.unescape(each) for each in re.findall(r"<li>(.*?)</li>", block[1], re.DOTALL)]


def serve(site: Site, count: int, **fields: Any) -> None:
    """Stores ``count`` generations of 300 + 100 tokens for the site's model at its provider."""
    facts = {"model": site.model.slug, "provider_name": site.provider.name}
    for _ in range(count):
        factories.make_generation(
            site.tenant, **facts, prompt_tokens=300, completion_tokens=100, **fields
        )


def test_a_key_names_its_organization_and_its_traffic(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
    other = make_key(tenant, "other")
    now = timezone.now()
    for minutes in (1, 30, 90):
        created_at = now - timedelta(minutes=minutes)
        factories.make_generation(tenant, cost_nano=10**9, created_at=created_at)

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
    site.allow_fallback()
    endpoint = site.own(price=factories.make_price())
    serve(site, 2, private_endpoint=endpoint)

    alone = sentences(operator, console.page(endpoint, "disable"))
    assert alone[1:] == [
        "2 requests of the key inference: nothing else may serve them; they will get 404."
    ]

    site.publish(price=factories.make_price("0.000002", "0.000004"))
    shown = sentences(operator, console.page(endpoint, "disable"))
    there = f"{site.provider.name} ({site.model.slug})"
    paid = "paid by a credential of the organization, price +100%."
    assert shown[1:] == [f"2 requests of the key inference: they will go to {there}, {paid}"]


def test_images_are_routed_again_too(operator: Client, site: Site) -> None:
    site.model.output_modalities = ["image"]
    site.model.save_fields("output_modalities")
    endpoint = site.own()
    serve(site, 1, private_endpoint=endpoint, operation=Operation.IMAGES)
    assert sentences(operator, console.page(endpoint, "disable"))[1:] == [
        "1 request of the key inference: nothing else may serve them; they will get 404."
    ]


def off(client: Client, row: Any) -> list[str]:
    return sentences(client, console.page(row, "delist"))


def test_what_leaves_the_catalogue_names_where_its_requests_will_go(
    operator: Client, site: Site
) -> None:
    public = site.publish(price=factories.make_price())
    serve(site, 3, model_endpoint=public)

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


def test_a_model_that_leaves_names_the_private_endpoints_that_need_it(
    operator: Client, site: Site
) -> None:
    endpoint = site.own()
    site.publish()
    for _ in range(2):
        factories.make_generation(
            site.tenant, private_endpoint=endpoint, model=site.model.slug, cost_nano=10**9
        )
    # Without its provider in the catalogue, a private endpoint goes on.
    assert off(operator, site.provider) == [
        "1 endpoint in use, of all organizations.",
        "It had no requests in the last hour.",
    ]
    spent = "2 requests in the last hour, for $2.00. Of 1 organization."
    nowhere = "2 requests of the key inference: nothing else may serve them; they will get 404."
    assert off(operator, site.model) == [
        "1 endpoint in use, of all organizations.",
        "1 private endpoint will get no requests either.",
        f"It had {spent}",
        nowhere,
    ]
    assert selected(operator, LanguageModel, "delist_selected", site.model) == [
        "1 model.",
        "1 endpoint in use, of all organizations.",
        "1 private endpoint will get no requests either.",
        f"They had {spent}",
        nowhere,
    ]
    site.provider.delist()
    assert site.chat().status_code == 200
    site.model.delist()
    assert site.chat().status_code == 404


def test_the_size_of_the_catalogue_costs_no_further_queries(
    operator: Client, public: ModelEndpoint
) -> None:
    served_tenants(public, 1)
    counts = []
    for number in (1, 40):
        for _ in range(number):
            factories.make_endpoint(factories.make_model(), public.provider)
        with CaptureQueriesContext(connection) as captured:
            operator.get(console.page(public.model, "delist"))
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_further_keys_need_no_further_reading_of_the_catalogue(
    operator: Client, site: Site
) -> None:
    public = site.publish()
    counts = []
    for name in ("one", "two", "three"):
        key = make_key(site.tenant, name)
        factories.make_generation(
            site.tenant, api_key=key, model_endpoint=public, model=site.model.slug
        )
        with CaptureQueriesContext(connection) as captured:
            told = off(operator, site.provider)
        assert f"of {len(counts) + 1} key" in told[2] or "of the key one" in told[2]
        counts.append(len(captured))
    assert len(set(counts)) == 1


def served_tenants(public: ModelEndpoint, count: int) -> list[Tenant]:
    """Returns tenants, each with rules of its own and a request of a public endpoint."""
    found = []
    for number in range(count):
        tenant = factories.make_tenant(f"Tenant {number}")
        key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
        guardrail = make_guardrail(tenant.workspace)
        KeyAssignment.objects.create(guardrail=guardrail, api_key=key)
        factories.make_generation(
            tenant, api_key=key, model_endpoint=public, model=public.model.slug
        )
        found.append(tenant)
    return found


@pytest.fixture
def public() -> ModelEndpoint:
    """Returns an endpoint of the catalogue, to which only the operator's credential leads."""
    provider = factories.make_provider()
    provider.set_credential(Secret("a-credential-of-the-operator"))
    return factories.make_endpoint(factories.make_model(), provider)


def test_the_rules_of_many_organizations_are_read_together(
    operator: Client, public: ModelEndpoint
) -> None:
    rows = (public, public.provider, public.model)
    served_tenants(public, 1)
    counts = []
    for number in (5, 9):
        served_tenants(public, 4)
        for row in rows:
            path = console.page(row, "delist")
            with CaptureQueriesContext(connection) as captured:
                text = html.unescape(operator.get(path).content.decode())
            assert f"{number} requests of {number} keys: nothing else may serve them" in text
            counts.append(len(captured))
    # Any number of organizations costs as much as one. Two are of the test's transaction.
    assert counts == [15, 15, 15] * 2


def test_a_dialog_looks_at_the_busiest_ten_keys(operator: Client, public: ModelEndpoint) -> None:
    served_tenants(public, 13)
    told = off(operator, public.provider)
    assert told[1].endswith(" Of 13 organizations.")
    assert told[2:] == [
        "10 requests of 10 keys: nothing else may serve them; they will get 404.",
        "3 more requests of other keys and models were not looked at.",
    ]


def test_each_organization_is_routed_by_its_own_rules(operator: Client, site: Site) -> None:
    public = site.publish(price=factories.make_price())
    strict, private, _ = served_tenants(public, 3)
    other = factories.make_endpoint(site.model, factories.make_provider())
    other.provider.set_credential(Secret("a-credential-of-the-operator"))
    guardrail = Guardrail.objects.get(organization=strict.organization)
    guardrail.edit(allowed_providers=[site.provider.slug])
    own = factories.make_active(
        private, site.model, site.provider, base_url=site.upstream.base_url,
        price=factories.make_price("0.0000001", "0.0000002"),
    )  # fmt: skip
    one = "1 request of the key inference: "
    own_way = "paid by a credential of the organization."
    assert sorted(off(operator, public)[2:]) == sorted(
        [
            f"{one}nothing else may serve them; they will get 404.",
            f"{one}they will go to {own.provider_name} ({site.model.slug}), {own_way}",
            f"{one}they will go to {other.provider.name} ({site.model.slug}), paid by credits.",
        ]
    )


def test_aliases_pinned_keys_and_shares_of_each_organization_are_its_own(
    operator: Client, public: ModelEndpoint
) -> None:
    aliased, unknown, pinned, shared, spoken = served_tenants(public, 5)
    second = factories.make_endpoint(factories.make_model(), public.provider)
    for tenant, model in ((aliased, "house-best"), (unknown, "house-best")):
        Generation.objects.filter(organization=tenant.organization).update(model=model)
    for tenant, name in ((aliased, "house-*"), (spoken, public.model.slug)):
        ModelAlias.objects.create(
            organization=tenant.organization, name=name, targets=[second.model.slug]
        )
    own = factories.make_provider()
    factories.make_endpoint(public.model, own)
    stranger = make_key(pinned, "stranger")
    factories.make_credential(pinned, own, allowed_api_key_hashes=[stranger.digest])
    factories.make_credential(shared, own, workspace=None)
    one = "1 request of the key inference: "
    own_way = "paid by a credential of the organization."
    assert sorted(off(operator, public)[2:]) == sorted(
        [
            # An alias leads to another model, which stays.
            f"{one}they will go to {public.provider.name} ({second.model.slug}), paid by credits.",
            f"{one}they are refused already: There is no model 'house-best'.",
            # A credential of the whole organization is as good as the key's own.
            f"{one}they will go to {own.name} ({public.model.slug}), {own_way}",
            # A model's own name wins, and a credential of another key helps as little.
            "2 requests of 2 keys: nothing else may serve them; they will get 404.",
        ]
    )


def test_an_action_over_rows_reads_the_rules_together_too(
    operator: Client, public: ModelEndpoint
) -> None:
    rows = (public, public.provider, public.model)
    served_tenants(public, 1)
    selected(operator, Provider, "delist_selected", public.provider)
    counts = []
    for number, more in ((2, 1), (6, 4)):
        served_tenants(public, more)
        for row in rows:
            with CaptureQueriesContext(connection) as captured:
                told = selected(operator, type(row), "delist_selected", row)
            assert told[-1].startswith(f"{number} requests of {number} keys: nothing else")
            counts.append(len(captured))
    assert counts[:3] == counts[3:]


def test_rules_that_cannot_be_read_in_time_are_named(
    operator: Client, public: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_tenants(public, 1)
    monkeypatch.setattr(consequences, "_MOST_MILLISECONDS", 1_000)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE catalog_modelalias IN ACCESS EXCLUSIVE MODE")
            answer = operator.get(console.page(public, "delist"))
    finally:
        other.close()
    text = html.unescape(answer.content.decode())
    assert "It had 1 request in the last hour" in text
    assert "the rules of their keys cannot be read in two seconds." in text


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
    return foreseen(client.post(console.listing(model), chosen))


def test_an_action_over_rows_sums_their_traffic(operator: Client, site: Site) -> None:
    site.allow_fallback()
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
    assert told[:2] == ["2 endpoints of Acme.", "They had 2 requests in the last hour, for $2.00."]
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
    byok = {"api_key": key, "is_byok": True, "provider_name": "Acme AI"}
    factories.make_generation(tenant, **byok, cost_nano=10**9, attempts=paid_by(credential))
    factories.make_generation(tenant, api_key=key, preset_id=preset.pk, cost_nano=10**9)

    one = ["It had 1 request in the last hour, for $1.00."]
    for verb in ("remove", "rotate"):
        assert sentences(operator, console.page(credential, verb)) == one
    assert sentences(operator, console.page(guardrail, "remove")) == [
        "It limits 1 key, by assignment or by their creators.",
        "They had 2 requests in the last hour, for $2.00.",
    ]
    assert sentences(operator, console.page(idle, "remove"))[0] == (
        "It limits 0 keys, by assignment or by their creators."
    )
    assert sentences(operator, console.page(preset, "remove")) == one


def paid_by(*credentials: ByokCredential | None) -> list[dict[str, Any]]:
    """Returns attempts with these credentials; ``None`` is one that does not name its own."""
    attempt = {
        "provider": "Acme AI", "endpoint_id": "e", "is_byok": True, "latency_ms": 5, "status": 200,
    }  # fmt: skip
    return [
        attempt if each is None else {**attempt, "credential_id": str(each.pk)}
        for each in credentials
    ]


def test_a_credential_counts_what_it_paid_and_names_what_is_not_known(
    operator: Client, tenant: Tenant
) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI")
    credential = factories.make_credential(tenant, provider)
    second = factories.make_credential(tenant, provider, "another-credential-0123456789")
    byok = {"is_byok": True, "provider_name": "Acme AI", "cost_nano": 10**9}
    for attempts in (
        paid_by(credential), paid_by(second, credential), paid_by(credential, second),
        paid_by(None), paid_by(credential, None),
    ):  # fmt: skip
        factories.make_generation(tenant, **byok, attempts=attempts)
    factories.make_generation(tenant, **{**byok, "is_byok": False}, attempts=[])

    unknown = (
        "2 more requests for Acme AI do not name their credential: they run, or their worker died. "
        "The workspace may have others."
    )
    for each, paid in ((credential, "2 requests"), (second, "1 request")):
        spent = f"It had {paid} in the last hour, for ${paid[0]}.00."
        assert sentences(operator, console.page(each, "remove")) == [spent, unknown]


def test_a_credential_of_an_own_provider_names_what_is_not_known(
    operator: Client, tenant: Tenant
) -> None:
    own: Any = PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk, name="Acme Rack"
    )
    credential = factories.make_credential(tenant, own)
    for _ in range(2):
        factories.make_generation(
            tenant, is_byok=True, provider_name="Acme Rack", attempts=paid_by(None)
        )
    _, unknown = sentences(operator, console.page(credential, "remove"))
    assert unknown.startswith("2 more requests for Acme Rack do not name their credential")
