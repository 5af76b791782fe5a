"""Plain functions that make the rows which tests start from."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import (
    ApiKey,
    ByokCredential,
    LimitReset,
    Organization,
    Workspace,
    workspace_for,
)
from billing import ledger
from billing.models import Account, Excess, Meter, Transfer
from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider, associated_data
from catalog.pricing import NANO, Price
from config import sql
from config.credentials import Secret
from config.secrets import digest_api_key, seal
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation
from inference.ids import id_bound, new_generation_id
from inference.models import Generation, Journal
from inference.settlement.settle import SETTLE
from tests.support.copying import copy_tenant, remember_tenant

# What a settlement writes, which is also what it must be told.
_OUTCOME: Final = (
    "id", "status", "prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens",
    "reasoning_tokens", "is_estimated", "cost_nano", "upstream_cost_nano", "finish_reason",
    "native_finish_reason", "upstream_id", "upstream_model", "error_type", "attempts",
    "latency_ms", "duration_ms",
)  # fmt: skip
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Tenant:
    """An organization, its default workspace, and one key of each type in plain text."""

    organization: Organization
    workspace: Workspace
    management_key: str
    api_key: str


def make_tenant(
    name: str = "Acme", *, endpoint_limit: int | None = None, credits_usd: int = 1_000
) -> Tenant:
    """Makes an organization with credits, or copies the first one that was made like this."""
    wish = (name, endpoint_limit, credits_usd)
    if copied := copy_tenant(wish):
        return Tenant(*copied)
    organization = Organization.objects.create_organization(
        name=name, endpoint_limit=endpoint_limit
    )
    if credits_usd:
        ledger.grant(organization.pk, credits_usd * NANO, actor="factory")
    workspace = workspace_for(organization.pk, None)
    _, management = ApiKey.objects.create_key(
        workspace=workspace, name="management", is_management=True
    )
    _, inference = ApiKey.objects.create_key(workspace=workspace, name="inference")
    remember_tenant(wish, organization.pk)
    return Tenant(organization, workspace, management.reveal(), inference.reveal())


def client(key: str) -> APIClient:
    """An in-process client that sends this key."""
    made = APIClient()
    made.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")
    return made


def make_provider(
    slug: str | None = None, *, secret: Secret | None = None, **fields: Any
) -> Provider:
    """Makes a provider; ``secret`` is the operator's, which needs no second version of the row."""
    slug = slug or f"provider-{next(_numbers)}"
    defaults = {"name": slug.title(), "dialect": "openai", "base_url": "https://api.example.com/v1"}
    provider = Provider(slug=slug, **{**defaults, **fields})
    if secret is not None:
        provider.sealed_credential = seal(secret, associated=associated_data(provider.pk))
        provider.credential_label = secret.label
    provider.save(force_insert=True)
    return provider


def make_model(slug: str | None = None, **fields: Any) -> LanguageModel:
    slug = slug or f"author/model-{next(_numbers)}b"
    defaults = {
        "canonical_slug": f"{slug}-2026-01-01",
        "name": f"Model {slug}",
        "created": 1_767_225_600,
        "description": "A model for tests.",
        "context_length": 131_072,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "modality": "text->text",
        "tokenizer": "Other",
    }
    return LanguageModel.objects.create(slug=slug, **{**defaults, **fields})


def make_price(prompt: str = "0.000001", completion: str = "0.000002", **rates: str) -> Price:
    return Price(
        prompt=Decimal(prompt),
        completion=Decimal(completion),
        **{name: Decimal(text) for name, text in rates.items()},
    )


def make_endpoint(
    model: LanguageModel, provider: Provider, *, price: Price | None = None, **fields: Any
) -> ModelEndpoint:
    """A public endpoint of the catalogue."""
    defaults = {"upstream_model_id": "sim-echo"}
    endpoint = ModelEndpoint(model=model, provider=provider, **{**defaults, **fields})
    endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price or make_price())
    endpoint.price.save()
    endpoint.save(force_insert=True)
    return endpoint


def set_price(endpoint: ModelEndpoint, price: Price) -> None:
    """Gives an endpoint another version of its price."""
    version = PriceVersion.of(subject_id=endpoint.pk, price=price)
    version.save()
    # Callers in several threads share the endpoint: it never has a price that is not stored.
    endpoint.price = version
    endpoint.save_fields("price")


def change(row: Any, **fields: Any) -> None:
    """Saves these fields of a row alone."""
    for name, value in fields.items():
        setattr(row, name, value)
    row.save_fields(*fields)


def make_credential(
    tenant: Tenant, provider: Provider, secret: str = "test-credential-0123456789", **fields: Any
) -> ByokCredential:
    fields.setdefault("workspace", tenant.workspace)
    return ByokCredential.objects.create_credential(
        organization=tenant.organization,
        provider_slug=provider.slug,
        secret=Secret(secret),
        **fields,
    )


def make_draft(
    tenant: Tenant, model: LanguageModel, provider: Provider, **fields: Any
) -> PrivateEndpoint:
    defaults = {"upstream_model_id": "sim-echo", "base_url": "https://llm.example.com/v1"}
    endpoint, _ = PrivateEndpoint.objects.create_draft(
        organization_id=tenant.organization.pk,
        model_permaslug=model.canonical_slug,
        provider_slug=provider.slug,
        **{**defaults, **fields},
    )
    return endpoint


def make_validation(endpoint: PrivateEndpoint, credential: ByokCredential) -> Validation:
    """A passed validation of the endpoint as it is, without its calls."""
    passed = Validation(
        endpoint=endpoint,
        workspace=workspace_for(endpoint.organization.pk, None),
        credential=credential,
        credential_version=credential.version,
        configuration=endpoint.configuration,
        outcome=Validation.Outcome.PASSED,
        checks=[],
    )
    endpoint.record_validation(passed)
    return passed


def make_generation(tenant: Tenant, **fields: Any) -> Generation:
    """A generation of the tenant's inference key, settled from a hold of its cost unless pending.

    The ledger and the meters have it too; a period that began after it does not count it.
    """
    key = fields.setdefault("api_key", ApiKey.objects.get(digest=digest_api_key(tenant.api_key)))
    defaults: dict[str, Any] = {
        "organization": tenant.organization,
        "workspace": tenant.workspace,
        "member_id": key.creator_id,
        "operation": "chat/completions",
        "streamed": False,
        "model": "acme/falcon",
        "provider_name": "Acme AI",
        "is_byok": False,
        "status": Generation.Status.COMPLETED,
        "created_at": timezone.now(),
    }
    if not {"private_endpoint", "model_endpoint"} & fields.keys():
        fields["model_endpoint"] = make_endpoint(make_model(), make_provider())
    made_at = fields.get("created_at", defaults["created_at"])
    number = new_generation_id().rsplit("-", 1)[1]
    fields.setdefault("id", f"{id_bound(made_at)}-{number}")
    served = fields.get("private_endpoint") or fields["model_endpoint"]
    fields.setdefault("price", served.price)
    generation = Generation(**{**defaults, **fields})
    outcome = {name: getattr(generation, name) for name in _OUTCOME}
    generation.status = Generation.Status.PENDING
    generation.save(force_insert=True)
    Journal.objects.create(
        generation=generation, prompt_tokens=0, completion_tokens=0, beat_at=generation.created_at
    )
    Meter.objects.filter(subject_id__in=_subjects(generation)).update(
        requests=F("requests") + 1, last_used_at=Greatest(F("last_used_at"), generation.created_at)
    )
    if outcome["status"] != Generation.Status.PENDING:
        place_hold(generation, outcome["cost_nano"])
        with connection.cursor() as cursor:
            sql.execute(cursor, SETTLE, [json.dumps([outcome]), generation.pk, generation.pk])
        _forget_in_later_periods(generation, outcome)
        generation.refresh_from_db()
    return generation


def place_hold(generation: Generation, hold_nano: int) -> None:
    """Holds credits for a pending generation, as its admission would have done."""
    if not hold_nano:
        return
    accounts = {
        row.kind: row for row in Account.objects.for_organization(generation.organization_id)
    }
    Generation.objects.filter(pk=generation.pk).update(hold_nano=hold_nano)
    Transfer.objects.create(
        organization_id=generation.organization_id,
        kind=Transfer.Kind.USAGE,
        debit=accounts["credits"],
        credit=accounts["usage"],
        amount_nano=hold_nano,
        status=Transfer.Status.PENDING,
        reference=generation.pk,
    )
    Account.objects.filter(pk=accounts["credits"].pk).update(
        pending_debits=F("pending_debits") + hold_nano
    )
    Meter.objects.filter(subject_id__in=_subjects(generation)).update(
        held_cost=F("held_cost") + hold_nano
    )


def make_excess(
    tenant: Tenant, amount_nano: int = 5, reference: str = "gen-1", **fields: Any
) -> Excess:
    """An excess under review; its generation need not exist."""
    defaults: dict[str, Any] = {
        "endpoint_id": tenant.organization.pk,
        "provider_name": "Acme AI",
        "model": "acme/falcon",
        "upstream_nano": amount_nano,
        "claimed_prompt_tokens": 1,
        "claimed_completion_tokens": 600_000,
        "allowed_prompt_tokens": 1,
        "allowed_completion_tokens": 16,
    }
    return Excess.objects.create(
        organization=tenant.organization,
        reference=reference,
        amount_nano=amount_nano,
        **{**defaults, **fields},
    )


def _subjects(generation: Generation) -> list[UUID]:
    found = (generation.api_key_id, generation.workspace_id, generation.member_id)
    return [subject for subject in found if subject is not None]


def _forget_in_later_periods(generation: Generation, outcome: dict[str, Any]) -> None:
    byok_nano = outcome["upstream_cost_nano"] if generation.is_byok else 0
    for reset in LimitReset:
        if generation.created_at < reset.began_at(timezone.now()):
            Meter.objects.filter(subject_id__in=_subjects(generation)).update(
                **{
                    f"cost_{reset}": F(f"cost_{reset}") - outcome["cost_nano"],
                    f"byok_{reset}": F(f"byok_{reset}") - byok_nano,
                }
            )


def turn_back(meter_of: ApiKey | Workspace, day: date) -> None:
    """Makes a day before today the one that a meter was last moved on."""
    assert Meter.objects.filter(subject_id=meter_of.pk).update(day=day) == 1


def keep_deleted(tenant: Tenant, model: LanguageModel, provider: Provider) -> PrivateEndpoint:
    """An endpoint that was active and drifted, and whose deletion keeps its model private."""
    endpoint, now = make_draft(tenant, model, provider, upstream_model_id="gone"), timezone.now()
    change(endpoint, status="active", activated_at=now, drifted_at=now, deleted_at=now)
    return endpoint


def make_active(
    tenant: Tenant, model: LanguageModel, provider: Provider, *, base_url: str, **fields: Any
) -> PrivateEndpoint:
    """An active private endpoint, validated by real calls to ``base_url``.

    Stores a credential first when the tenant has none for the provider.
    """
    if not ByokCredential.objects.usable_in(tenant.workspace, provider.slug).exists():
        make_credential(tenant, provider)
    endpoint = make_draft(tenant, model, provider, base_url=base_url, **fields)
    result = validation.run(endpoint, workspace_id=tenant.workspace.pk)
    assert result.passed, result.checks
    endpoint.activate()
    return endpoint
