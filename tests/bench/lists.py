"""Measures the model lists over a large catalogue, in process: python -m tests.bench.lists

Prints the CPU milliseconds of a request, with all of Django's chain and without PostgreSQL: the
median of the rounds. ``first`` is the first request after a change of the catalogue.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from decimal import Decimal

# The benchmark creates made-up data, so it never uses the database of the caller's environment.
os.environ["DATABASE_URL"] = "embedded"
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - starts a database of its own, before settings are read

django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from rest_framework.test import APIClient

from accounts.models import ApiKey, Guardrail, KeyAssignment
from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider
from tests.support import factories
from tests.support.factories import Tenant

PROVIDERS = 60
MODELS = 5_000
ENDPOINTS_EACH = 4
PRIVATE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    with transaction.atomic():
        _fill()
    plain, governed = factories.make_tenant("Plain"), factories.make_tenant("Governed")
    _govern(governed)
    anonymous = APIClient()
    callers = {
        "anonymous": anonymous,
        "no policy": factories.client(plain.management_key),
        "policy": factories.client(governed.management_key),
    }
    print(
        f"{MODELS:,} models, {MODELS * ENDPOINTS_EACH:,} endpoints, "
        f"{PRIVATE} private ones of the governed organization"
    )
    print(f"{'list':<44}{'caller':<12}{'CPU ms':>10}{'first':>10}{'KiB':>10}")
    for path in (
        "/models",
        "/models?limit=50",
        "/models?limit=50&sort=pricing-low-to-high",
        "/models?limit=50&q=model-12&zdr=true&max_price=5",
        "/models/count",
    ):
        _measure(path, "anonymous", anonymous, options.rounds)
    for caller in ("no policy", "policy"):
        for path in (
            "/models/user",
            "/models/user?limit=50",
            "/models/user?sort=pricing-low-to-high",
            "/models/user?limit=50&sort=pricing-low-to-high",
        ):
            _measure(path, caller, callers[caller], options.rounds)
    connection.close()


def _measure(path: str, caller: str, client: APIClient, rounds: int) -> None:
    # Any write to a model changes the version of the catalogue.
    LanguageModel.objects.filter(slug="author-0/model-0").update(description="Another.")
    first, size = _measure_cpu(lambda: _get(client, path))
    times = [_measure_cpu(lambda: _get(client, path))[0] for _ in range(rounds)]
    print(f"{path:<44}{caller:<12}{statistics.median(times):>10.1f}{first:>10.1f}"
          f"{size / 1024:>10,.0f}")  # fmt: skip


def _get(client: APIClient, path: str) -> int:
    response = client.get(f"/api/v1{path}")
    assert response.status_code == 200, response.content
    return len(response.content)


def _measure_cpu(call: Callable[[], int]) -> tuple[float, int]:
    """Returns the CPU milliseconds of this process for a call, and the result of the call."""
    began = time.process_time()
    result = call()
    return (time.process_time() - began) * 1000, result


def _fill() -> None:
    providers = Provider.objects.bulk_create(
        Provider(
            slug=f"provider-{number}",
            name=f"Provider {number}",
            dialect="openai",
            base_url="https://llm.example/v1",
            trains_on_prompts=number % 5 == 0,
        )
        for number in range(PROVIDERS)
    )
    models = LanguageModel.objects.bulk_create(
        LanguageModel(
            slug=f"author-{number % 97}/model-{number}",
            canonical_slug=f"author-{number % 97}/model-{number}-2026-01-01",
            name=f"Author {number % 97}: Model {number}",
            created=1_767_225_600 + number // 3,
            description="A model of a large catalogue, with a text of ordinary length. " * 5,
            context_length=8192 * (1 + number % 16),
            input_modalities=["text", "image"] if number % 3 else ["text"],
            output_modalities=["text"],
            modality="text->text",
            tokenizer="Other",
            supported_parameters=["temperature", "top_p", "tools", "tool_choice", "max_tokens"],
            default_parameters={"temperature": 0.7},
        )
        for number in range(MODELS)
    )
    endpoints = []
    for number, model in enumerate(models):
        for place in range(ENDPOINTS_EACH):
            rank = number * ENDPOINTS_EACH + place
            provider = providers[(number + 7 * place) % PROVIDERS]
            endpoint = ModelEndpoint(
                model=model,
                provider=provider,
                upstream_model_id="sim-echo",
                region=("global", "europe", "us")[rank % 3],
                zdr=rank % 2 == 0,
                context_length=131_072,
                max_completion_tokens=8192,
            )
            rate = Decimal(1 + (rank * 7919) % 5000) / Decimal(10**9)
            price = factories.make_price(str(rate), str(rate * 3), cache_read=str(rate / 10))
            endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
            endpoints.append(endpoint)
    PriceVersion.objects.bulk_create(endpoint.price for endpoint in endpoints)
    for endpoint in endpoints:
        endpoint.price_id = endpoint.price.pk
    ModelEndpoint.objects.bulk_create(endpoints)


def _govern(tenant: Tenant) -> None:
    """Gives the tenant every kind of restriction, and private endpoints."""
    organization = tenant.organization
    organization.requires_zdr = True
    organization.ignored_providers = [f"provider-{number}" for number in range(0, PROVIDERS, 9)]
    organization.save_fields("requires_zdr", "ignored_providers")
    key = ApiKey.objects.get(organization=organization, is_management=True)
    guardrail = Guardrail.objects.create(
        organization=organization,
        name="Narrow",
        allowed_providers=[f"provider-{number}" for number in range(0, PROVIDERS, 2)],
        ignored_models=[f"author-{number % 97}/model-{number}" for number in range(0, 1000, 4)],
        enable_paid_model_training=False,
        allowed_data_regions=["global"],
    )
    KeyAssignment.objects.create(guardrail=guardrail, api_key=key)
    provider = Provider.objects.get(slug="provider-2")
    credential = factories.make_credential(tenant, provider)
    for model in LanguageModel.objects.order_by("-slug")[:PRIVATE]:
        endpoint = factories.make_draft(tenant, model, provider, declared_zdr=True)
        factories.make_validation(endpoint, credential)
        endpoint.activate()


if __name__ == "__main__":
    main()
