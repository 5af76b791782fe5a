"""A patched copy of the catalogue equals one that was read anew, whatever changed."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from django.db import connection, transaction

from catalog import dialects
from catalog.models import CatalogChange, LanguageModel, ModelAlias, ModelEndpoint, Provider
from config import sql
from config.credentials import Secret
from inference.admission.copies.catalog import (
    READ_SUBJECTS,
    Reading,
    Result,
    host_of_credential,
    read_catalog,
)
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from inference.routing.routes import CatalogSnapshot
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.inference.site import Site

Change = Callable[[Random], object]


@pytest.fixture
def catalogue(transactional_db: None) -> list[ModelEndpoint]:
    """Four models of three providers."""
    providers = [factories.make_provider(f"p{number}") for number in range(3)]
    models = [factories.make_model(f"acme/m{number}") for number in range(4)]
    return [
        factories.make_endpoint(model, provider)
        for number, model in enumerate(models)
        for provider in providers[: number + 1]
    ]


def run_reading_on_orm(reading: Reading[Result]) -> Result:
    """Executes the statements of a reading on this thread's connection of the ORM."""
    try:
        query = next(reading)
        with connection.cursor() as cursor:
            while True:
                sql.execute(cursor, *query)
                query = reading.send(cursor.fetchall())
    except StopIteration as finished:
        result: Result = finished.value
        return result


def read_anew() -> CatalogSnapshot:
    """Reads the catalogue in parts; the same at once must be equal."""
    found = run_reading_on_orm(read_catalog())
    assert read_catalog_on_orm() == found
    return found


def patch(copy: CatalogSnapshot) -> CatalogSnapshot:
    """Patches a copy, and fails if the whole catalogue is read."""

    def watched() -> Reading[CatalogSnapshot]:
        reading = read_catalog(copy)
        rows: list[Sequence[Any]] | None = None
        while True:
            try:
                query = next(reading) if rows is None else reading.send(rows)
            except StopIteration as finished:
                found: CatalogSnapshot = finished.value
                return found
            assert query[0] != READ_SUBJECTS
            rows = yield query

    return run_reading_on_orm(watched())


@pytest.fixture
def served(catalogue: list[ModelEndpoint], tenant: Tenant) -> ModelEndpoint:
    """A public endpoint; the tenant has an active endpoint for its model and provider."""
    public = catalogue[0]
    endpoint = factories.make_draft(tenant, public.model, public.provider)
    factories.make_validation(endpoint, factories.make_credential(tenant, public.provider))
    endpoint.activate()
    return public


def pick(random: Random, model: type[Any]) -> Any:
    rows = list(model.objects.order_by("created_at"))
    return random.choice(rows)


def change_price(random: Random) -> None:
    endpoint = pick(random, ModelEndpoint)
    factories.set_price(endpoint, factories.make_price(f"0.00000{random.randint(0, 9)}"))


def toggle(model: type[Any]) -> Change:
    def change(random: Random) -> None:
        row = pick(random, model)
        row.is_listed = not row.is_listed
        row.save_fields("is_listed")

    return change


def edit(model: type[Any], **values: Sequence[Any]) -> Change:
    def change(random: Random) -> None:
        row, name = pick(random, model), random.choice([*values])
        setattr(row, name, random.choice(values[name]))
        row.save_fields(name)

    return change


def add_endpoint(random: Random) -> None:
    factories.make_endpoint(
        pick(random, LanguageModel), pick(random, Provider), upstream_model_id=uuid.uuid4().hex
    )


def move_endpoint(random: Random) -> None:
    endpoint = pick(random, ModelEndpoint)
    endpoint.model, endpoint.upstream_model_id = pick(random, LanguageModel), uuid.uuid4().hex
    endpoint.save_fields("model", "upstream_model_id")


def delete_endpoint(random: Random) -> None:
    if ModelEndpoint.objects.count() > 3:
        pick(random, ModelEndpoint).delete()


def delete_model(random: Random) -> None:
    model = pick(random, LanguageModel)
    if ModelEndpoint.objects.exclude(model=model).exists():
        model.endpoints.all().delete()
        model.delete()


def delete_provider(random: Random) -> None:
    provider = pick(random, Provider)
    if ModelEndpoint.objects.exclude(provider=provider).exists():
        provider.endpoints.all().delete()
        provider.delete()


def change_aliases(random: Random) -> None:
    for alias in ModelAlias.objects.of_owner(None):
        if random.random() < 0.5:
            alias.delete()
        else:
            alias.targets = [pick(random, LanguageModel).slug]
            alias.save_fields("targets")
    ModelAlias.objects.create(name=uuid.uuid4().hex[:4] + "*", targets=["acme/m1"])


def swap_slugs(random: Random) -> None:
    one, other = pick(random, LanguageModel), pick(random, LanguageModel)
    slugs = one.slug, other.slug
    for model, slug in ((one, uuid.uuid4().hex), (other, slugs[0]), (one, slugs[1])):
        if one.pk != other.pk:
            model.slug = slug
            model.save_fields("slug")


CHANGES: list[Change] = [
    change_aliases,
    change_price,
    toggle(ModelEndpoint),
    toggle(LanguageModel),
    toggle(Provider),
    edit(ModelEndpoint, region=["us", "europe"], zdr=[True, False]),
    edit(ModelEndpoint, supported_parameters=[[], ["tools"]], quantization=[None, "fp8"]),
    edit(LanguageModel, context_length=[None, 9], output_modalities=[["text"], ["embeddings"]]),
    edit(Provider, base_url=[None, "https://a.test/v1"], name=["A", "B"], dialect=["openai", "x"]),
    lambda random: pick(random, Provider).set_credential(Secret(f"s{random.random()}")),
    lambda random: factories.make_model(f"acme/{uuid.uuid4().hex}"),
    lambda random: factories.make_provider(uuid.uuid4().hex),
    add_endpoint,
    move_endpoint,
    delete_endpoint,
    delete_model,
    delete_provider,
    swap_slugs,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_patched_copy_equals_one_read_anew(catalogue: object, seed: int) -> None:
    random = Random(seed)
    copy = read_anew()
    for _ in range(40):
        # Some changes share a transaction, and some patches make up for several transactions.
        with transaction.atomic():
            for change in random.choices(CHANGES, k=random.randint(1, 3)):
                change(random)
        if random.random() < 0.6:
            copy = patch(copy)
            assert copy == read_anew()
    assert patch(copy) == read_anew()


@pytest.mark.usefixtures("catalogue")
def test_a_price_change_replaces_only_the_routes_of_its_model() -> None:
    old = read_anew()
    change_price(Random(1))
    new = patch(old)
    assert new.models is old.models
    assert new.providers is old.providers
    assert new.slugs is old.slugs
    replaced = [slug for slug, routes in new.routes.items() if routes is not old.routes[slug]]
    assert len(replaced) == 1


def test_a_copy_that_the_log_does_not_reach_is_replaced(catalogue: list[ModelEndpoint]) -> None:
    copy = read_anew()
    change_price(Random(1))
    change_price(Random(2))
    CatalogChange.objects.filter(version=copy.version).delete()
    found = run_reading_on_orm(read_catalog(copy))
    assert found == read_anew()
    assert found.version != copy.version


def test_the_log_keeps_its_newest_entries(catalogue: list[ModelEndpoint]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO catalog_catalogchange (version, subject_id) "
            "SELECT -number, gen_random_uuid() FROM generate_series(1, 12000) AS number"
        )
    change_price(Random(1))
    kept = CatalogChange.objects.order_by("-id")
    assert kept.count() == 10_001
    assert kept[0].version > 0
    assert kept[1].version == -12_000


def test_a_rolled_back_change_leaves_no_entry(catalogue: list[ModelEndpoint]) -> None:
    copy = read_anew()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        change_price(Random(1))
        raise ZeroDivisionError
    assert run_reading_on_orm(read_catalog(copy)) is copy


def test_an_organization_keeps_its_routes_while_prices_change(
    served: ModelEndpoint, tenant: Tenant
) -> None:
    organization = load_organization(tenant.organization.pk)
    catalog = read_anew()
    resolved = organization.resolve(catalog)
    assert [*resolved.routes] == [served.model.slug]
    change_price(Random(1))
    catalog = patch(catalog)
    assert organization.resolve(catalog) is resolved


def test_an_organization_follows_the_names_that_a_provider_gives_a_model(
    catalogue: list[ModelEndpoint], served: ModelEndpoint, tenant: Tenant
) -> None:
    """They are nearer than a name without the date of a private model that left."""
    factories.change(served.model, slug="acme/hawk-20250101", is_listed=False)
    organization = load_organization(tenant.organization.pk)
    catalog = read_anew()
    assert "hawk" in organization.resolve(catalog).names.spellings
    factories.change(catalogue[1], upstream_model_id="hawk")
    assert "hawk" not in organization.resolve(patch(catalog)).names.spellings


def test_an_endpoint_whose_validation_left_with_its_partition_is_served(
    served: ModelEndpoint, tenant: Tenant
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM endpoints_validation")
    routes = load_organization(tenant.organization.pk).resolve(read_anew()).routes
    assert [*routes] == [served.model.slug]


def test_an_organization_follows_a_renamed_model_and_a_moved_provider(
    served: ModelEndpoint, tenant: Tenant
) -> None:
    model, provider = served.model, served.provider
    organization = load_organization(tenant.organization.pk)
    catalog = read_anew()
    assert organization.resolve(catalog).routes[model.slug][0].model_slug == model.slug
    model.slug = "acme/renamed"
    model.save_fields("slug")
    provider.base_url = "https://moved.test/v1"
    provider.save_fields("base_url")
    resolved = organization.resolve(patch(catalog))
    assert [*resolved.routes] == ["acme/renamed"]
    assert resolved.credentials[0].limits.own_hosts == {"moved.test"}


def test_the_next_request_pays_the_changed_price(site: Site) -> None:
    endpoint = site.publish(price=factories.make_price("0.001", "0.001"))
    assert site.chat().status_code == 200
    for number in (2, 3, 4):
        price = factories.make_price(f"0.00{number}", "0.001")
        factories.set_price(endpoint, price)
        usage = site.chat().json()["usage"]
        expected = (
            price.prompt * usage["prompt_tokens"] + price.completion * usage["completion_tokens"]
        )
        assert usage["cost"] == pytest.approx(float(expected), abs=1e-12)


def test_a_cloud_without_a_credential_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue names every cloud, and most workers call none; each has a large library."""
    name = "catalog.dialects.bedrock"
    monkeypatch.delitem(sys.modules, name, raising=False)
    dialects._load.cache_clear()
    assert host_of_credential("bedrock", None) is None
    assert name not in sys.modules
