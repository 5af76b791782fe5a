"""``import_gateway --organization``: another gateway's file becomes drafts of an organization."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from accounts.models import ByokCredential
from catalog.models import ModelAlias, Provider
from endpoints.models import PrivateEndpoint, PrivateProvider
from tests.support import factories
from tests.support.database import snapshots
from tests.support.database.locks import at_once
from tests.support.factories import Tenant
from tests.support.operators.gateways import UNTIL, lacking

KINDS = ("private_providers", "private_endpoints", "credentials", "aliases")
CONFIG = """
model_list:
  - model_name: ours
    litellm_params:
      model: openai/falcon-9
      api_key: sk-one-0123456789
      rpm: 5
      timeout: 20
  - model_name: ours
    litellm_params:
      model: openai/falcon-9
      api_key: sk-two-0123456789
      timeout: 30
  - model_name: ours
    litellm_params:
      model: hosted_vllm/own-falcon
      api_base: https://gpu.acme.example/v1
      input_cost_per_token: 0.000003
      output_cost_per_token: 0.000009
    model_info: {base_model: acme/falcon-9}
  - model_name: strange
    litellm_params: {model: openai/strange, api_key: sk-one-0123456789}
"""
NO_LIMITS = (
    "a private endpoint has no limits; those of keys and workspaces are in docs/rate-limits.md"
)
OF_STREAMS = "timeout: it bounds streams, not plain answers, see docs/time-limits.md"
NOT_AGAIN = "its price, lengths, time limits and share: an entry before has the same endpoint"
NO_PRICE = (
    "the catalogue does not have the model, and the file lacks the price of a text model of the "
    "organization's own; add the model and its price to the catalogue, and import again"
)


@pytest.fixture
def falcon(db: None) -> Provider:
    provider = factories.make_provider(
        "openai", base_url="https://api.openai.com/v1", name="OpenAI"
    )
    model = factories.make_model("acme/falcon-9")
    factories.make_endpoint(model, provider, upstream_model_id="falcon-9")
    return provider


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def written(folder: Path, content: Any) -> Path:
    """Writes another gateway's file; JSON is YAML too."""
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


def load(owner: uuid.UUID, file: Path, *options: str, source: str = "litellm") -> dict[str, Any]:
    out = io.StringIO()
    call_command(
        "import_gateway", "--from", source, str(file), "--organization", str(owner), "--json",
        *options, stdout=out,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def counts(*numbers: int) -> dict[str, int]:
    return dict(zip(KINDS, numbers, strict=True))


def test_deployments_become_drafts_with_credentials(
    tenant: Tenant, falcon: Provider, file: Path
) -> None:
    report = load(tenant.organization.pk, file)
    assert report["created"] == counts(1, 2, 2, 1)
    assert [(each["line"], each["name"], each["reason"]) for each in report["left_out"]] == [
        (3, "ours", OF_STREAMS),
        (3, "ours", f"requests_per_minute: {NO_LIMITS}"),
        (3, "ours", f"{UNTIL} openai of the catalogue"),
        (9, "ours", OF_STREAMS),
        (9, "ours", NOT_AGAIN),
        (21, "strange", NO_PRICE),
    ]
    public, own = PrivateEndpoint.objects.order_by("created_at")
    assert (public.status, public.upstream_provider.slug) == ("draft", "openai")
    assert public.base_url == "https://api.openai.com/v1"
    assert (public.headers_timeout, public.price.price.text("prompt")) == (20, "0.000001")
    assert (own.status, own.upstream_provider.slug) == ("draft", "acme")
    assert own.upstream_model_id == "own-falcon"
    assert own.price.price.text("prompt") == "0.000003"
    [provider] = PrivateProvider.objects.all()
    assert (provider.base_url, provider.is_keyless) == ("https://gpu.acme.example/v1", True)
    credentials = ByokCredential.objects.order_by("sort_order")
    assert [(each.provider_slug, each.reveal().reveal()) for each in credentials] == [
        ("openai", "sk-one-0123456789"),
        ("openai", "sk-two-0123456789"),
    ]
    assert ModelAlias.objects.get().targets == ["acme/falcon-9"]
    assert ModelAlias.objects.get().organization_id == tenant.organization.pk
    # The operator's own rows stay.
    assert Provider.objects.get().sealed_credential is None


def test_a_second_run_leaves_the_drafts_as_they_are(
    tenant: Tenant, falcon: Provider, file: Path
) -> None:
    first = load(tenant.organization.pk, file)
    with snapshots.unchanged():
        second = load(tenant.organization.pk, file)
        assert second == first | {"created": first["updated"], "unchanged": first["created"]}


def test_of_two_imports_at_once_the_second_changes_nothing(
    transactional_db: None, falcon: Provider, file: Path
) -> None:
    owner = factories.make_tenant().organization.pk
    found = at_once(
        *[lambda: load(owner, file)] * 2,
        held=f"SELECT 1 FROM accounts_organization WHERE id = '{owner}' FOR UPDATE",
    )
    first, second = sorted(found, key=lambda each: each["unchanged"]["aliases"])
    assert (first["created"], second["unchanged"]) == (counts(1, 2, 2, 1),) * 2
    assert (first["unchanged"], second["created"]) == (counts(0, 0, 0, 0),) * 2


def test_two_organizations_import_at_once(
    transactional_db: None, falcon: Provider, file: Path
) -> None:
    one, other = (factories.make_tenant(name).organization.pk for name in ("One", "Other"))
    found = at_once(
        *(lambda owner=owner: load(owner, file) for owner in (one, other)),
        held=f"SELECT 1 FROM accounts_organization WHERE id IN ('{one}', '{other}') FOR UPDATE",
    )
    assert [each["created"] for each in found] == [counts(1, 2, 2, 1)] * 2
    assert {each.organization_id for each in PrivateProvider.objects.all()} == {one, other}


def test_a_plan_changes_nothing(tenant: Tenant, falcon: Provider, file: Path) -> None:
    with snapshots.unchanged():
        report = load(tenant.organization.pk, file, "--plan")
        assert [row["fate"] for row in report["plan"]] == ["create"] * 6


def test_an_active_endpoint_is_left_alone(
    tenant: Tenant, falcon: Provider, file: Path, tmp_path: Path
) -> None:
    load(tenant.organization.pk, file)
    endpoint = PrivateEndpoint.objects.get(upstream_model_id="falcon-9")
    factories.make_validation(endpoint, ByokCredential.objects.earliest("sort_order"))
    endpoint.activate()
    with snapshots.unchanged():
        dearer = tmp_path / "dearer.yaml"
        dearer.write_text(CONFIG.replace("timeout: 20", "timeout: 21"))
        report = load(tenant.organization.pk, dearer)
        reasons = [each["reason"] for each in report["left_out"]]
        assert "the endpoint is active; only a draft can be changed" in reasons
        assert report["updated"] == counts(0, 0, 0, 0)


def test_each_of_several_accounts_serves_its_own_models(
    tenant: Tenant, falcon: Provider, tmp_path: Path
) -> None:
    model = factories.make_model("acme/hawk")
    factories.make_endpoint(model, falcon, upstream_model_id="hawk")
    entries = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_key": f"sk-{name}-0123"},
        }
        for name in ("falcon-9", "hawk")
    ]
    load(tenant.organization.pk, written(tmp_path, {"model_list": entries}))
    rows = ByokCredential.objects.order_by("sort_order")
    assert [(each.reveal().reveal(), each.allowed_models) for each in rows] == [
        ("sk-falcon-9-0123", ["acme/falcon-9"]),
        ("sk-hawk-0123", ["acme/hawk"]),
    ]


def test_weights_and_priorities_become_those_of_the_pool(
    tenant: Tenant, falcon: Provider, tmp_path: Path
) -> None:
    shares = [{"weight": 3, "order": 1}, {"weight": 0.5, "order": 2}, {"weight": 0, "order": -1}]
    entries = [
        {
            "model_name": "ours",
            "litellm_params": {
                "model": "hosted_vllm/falcon-9",
                "api_base": f"https://gpu{number}.acme.example/v1",
                **share,
            },
        }
        for number, share in enumerate(shares)
    ]
    file = written(tmp_path, {"model_list": entries})
    report = load(tenant.organization.pk, file)
    assert [endpoint.settings["routing"] for endpoint in pool()] == [
        {"priority": 999, "weight": 3},
        {"priority": 998},
    ]
    reason = "endpoints are shared by price and health, see docs/routing.md"
    assert [reason for _, _, reason in lacking(report)] == [
        f"litellm_params.{name}: {reason}" for name in ("weight", "weight", "order")
    ]
    with snapshots.unchanged():
        assert load(tenant.organization.pk, file)["unchanged"]["private_endpoints"] == 3


def test_weights_and_priorities_of_channels_become_those_of_the_pool(
    tenant: Tenant, falcon: Provider, tmp_path: Path
) -> None:
    shares = [{"weight": 3, "priority": 10}, {"weight": 0, "priority": 0}, {"priority": -5}]
    channel = {"type": 8, "models": "falcon-9", "key": "sk-0123456789abcdef"}
    channels = [
        {**channel, "base_url": f"https://gpu{number}.acme.example/v1", **share}
        for number, share in enumerate(shares)
    ]
    report = load(tenant.organization.pk, written(tmp_path, channels), source="new-api")
    assert [endpoint.settings["routing"] for endpoint in pool()] == [{"priority": 10, "weight": 3}]
    assert [reason.partition(":")[0] for _, _, reason in lacking(report)] == ["priority"]


def pool() -> list[PrivateEndpoint]:
    found = PrivateEndpoint.objects.order_by("base_url")
    assert found.count() == 3
    return [endpoint for endpoint in found if "routing" in endpoint.settings]


def test_an_unknown_model_with_a_price_becomes_the_organizations_own(
    falcon: Provider, file: Path
) -> None:
    # The catalogue has an author named as the other organization.
    tenant = factories.make_tenant("Own Team")
    prices = "input_cost_per_token: 0.000001, output_cost_per_token: 0.000002"
    file.write_text(CONFIG.replace("openai/strange,", f"openai/strange, {prices},"))
    first = load(tenant.organization.pk, file)
    assert first["created"] == counts(1, 3, 2, 2)
    endpoint = PrivateEndpoint.objects.get(upstream_model_id="strange")
    slug = "own-team/strange"
    assert (endpoint.model.slug, endpoint.model.name) == (slug, "strange")
    assert endpoint.model.organization_id == tenant.organization.pk
    assert ModelAlias.objects.get(name="strange").targets == [slug]
    with snapshots.unchanged():
        assert load(tenant.organization.pk, file)["unchanged"] == first["created"]


def test_nothing_goes_to_another_organization(tenant: Tenant, falcon: Provider, file: Path) -> None:
    other = factories.make_tenant("Other")
    load(tenant.organization.pk, file)
    assert not PrivateEndpoint.objects.for_organization(other.organization.pk).exists()
    assert not ByokCredential.objects.for_organization(other.organization.pk).exists()
    assert not PrivateProvider.objects.for_organization(other.organization.pk).exists()


def test_an_unknown_organization_is_refused(db: None, file: Path) -> None:
    with snapshots.unchanged():
        with pytest.raises(CommandError, match="There is no such organization") as caught:
            load(uuid.uuid4(), file)
        assert caught.value.returncode == 1


def test_more_credentials_than_an_organization_may_have_change_nothing(
    tenant: Tenant, falcon: Provider, file: Path, settings: Any
) -> None:
    settings.ORGANIZATION_MAX_CREDENTIALS = 1
    with snapshots.unchanged():
        with pytest.raises(CommandError) as caught:
            load(tenant.organization.pk, file)
        assert caught.value.returncode == 1
