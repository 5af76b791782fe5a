"""An organization's endpoints, credentials, rules and aliases, as a worker keeps them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from django.db import connection, transaction
from django.db.models import F, Q
from msgspec import structs

from accounts.models import ByokCredential, CredentialNotFound, Organization
from accounts.policy import Fallback, find_strictest
from catalog.abilities import NO_POOL, UNSET_SETTINGS, EndpointSettings, read_settings
from catalog.aliases.resolution import NO_ALIASES, AliasTable, make_table
from catalog.aliases.spellings import NO_NAMES, ModelNames, NameIndex, patch_names
from catalog.models import LanguageModel, PriceVersion, hosts_of
from catalog.models.aliases import ModelAlias
from catalog.pricing import Price, UnknownRule
from catalog.tokens import correct_family, find_limits
from catalog.visibility import EndpointFacts
from config.api.text import spell_ids
from config.credentials import NO_SECRET
from config.egress.addresses import NO_REACH, Reach
from config.egress.rules import NO_OWN_LIMITS, TimeLimits
from config.sql import Reading, prepare_reading
from endpoints.models import (
    PrivateEndpoint,
    PrivateProvider,
    Proof,
    Validation,
    offered_parameters,
    proven_names,
)
from inference.admission.copies.catalog import (
    CLOUDS,
    host_of_credential,
    host_of_url,
    operations_of,
    share,
    usable_dialect,
)
from inference.admission.governance import OrganizationRules, make_rules, select_rules
from inference.routing.routes import (
    CatalogModel,
    CatalogProvider,
    CatalogSnapshot,
    Credential,
    FirstUse,
    OrganizationSnapshot,
    PrivateModel,
    Route,
)

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class OwnEndpoint(NamedTuple):
    """A private endpoint without what the catalogue says about its model and its provider."""

    endpoint_id: uuid.UUID
    model_id: uuid.UUID
    provider_id: uuid.UUID
    provider_name: str
    declared_zdr: bool | None
    declared_region: str | None
    base_url: str | None
    upstream_model_id: str
    price_id: int
    price: Price
    attestation_id: int | None
    proofs: Mapping[str, str]
    proven: frozenset[str] | None
    time_limits: TimeLimits = NO_OWN_LIMITS
    reach: Reach = NO_REACH
    settings: EndpointSettings = UNSET_SETTINGS
    declared: tuple[str, ...] = ()
    drifted_at: datetime | None = None

    def address_at(self, provider: CatalogProvider) -> str | None:
        """Returns the base URL of the endpoint: its own, or that of the private provider."""
        if self.base_url is None and provider.is_own:
            return provider.base_url
        return self.base_url


class KeptModel(NamedTuple):
    """A model that private endpoints keep private, without what the catalogue says about it."""

    providers: frozenset[uuid.UUID]
    fallback: Fallback | None


@dataclass(slots=True)
class OrganizationCopy:
    """The endpoints, credentials, rules and aliases of an organization at one version.

    It does not depend on the catalogue: :meth:`resolve` adds what the present one says about the
    models and providers. The credentials have neither hosts nor a provider yet. ``own_models`` has
    deleted ones that endpoints keep private, and ``gone_providers`` those of such endpoints.
    """

    version: int
    endpoints: Sequence[OwnEndpoint]
    credentials: Sequence[Credential]
    rules: OrganizationRules
    aliases: AliasTable = NO_ALIASES
    kept_models: Mapping[uuid.UUID, KeptModel] = field(default_factory=dict)
    own_providers: Mapping[uuid.UUID, CatalogProvider] = field(default_factory=dict)
    gone_providers: Mapping[uuid.UUID, CatalogProvider] = field(default_factory=dict)
    own_models: Mapping[uuid.UUID, CatalogModel] = field(default_factory=dict)
    _resolved: OrganizationSnapshot | None = None
    _models: Mapping[uuid.UUID, CatalogModel] = field(default_factory=dict)
    _providers: Mapping[uuid.UUID, CatalogProvider] = field(default_factory=dict)

    def resolve(self, catalog: CatalogSnapshot) -> OrganizationSnapshot:
        """Returns the routes and credentials with the models and providers of a catalogue.

        The result is kept until a model or a provider changes; prices do not matter to it.
        """
        if (
            self._resolved is None
            or self._models is not catalog.models
            or self._providers is not catalog.providers
        ):
            own = [model for model in self.own_models.values() if model.is_listed]
            gone = dict(self._name_gone(catalog))
            for model in own:
                gone.pop(model.slug, None)
            self._resolved = OrganizationSnapshot(
                version=self.version,
                routes=_group_by_model(self._make_routes(catalog)),
                credentials=self.place_credentials(catalog.providers),
                aliases=self.aliases,
                private_models=dict(self._name_private(catalog)),
                gone_slugs=frozenset(gone.values()),
                slugs={**gone, **{model.slug: model.slug for model in own}},
                names=self._index_names(catalog),
                own_slugs=frozenset(model.slug for model in self.own_models.values()),
                provider_slugs=frozenset(each.slug for each in self.own_providers.values()),
                provider_names=self.provider_names,
                has_pools=any(each.settings.routing != NO_POOL for each in self.endpoints),
            )
            self._models, self._providers = catalog.models, catalog.providers
        return self._resolved

    def _make_routes(self, catalog: CatalogSnapshot) -> Iterable[Route]:
        for endpoint in self.endpoints:
            model = self._find_model(catalog, endpoint.model_id)
            provider = self.find_provider(endpoint.provider_id, catalog.providers)
            # A model that is newer than the copy of the catalogue comes with its next patch. One
            # that is not listed serves nobody.
            if model is not None and model.is_listed and provider is not None:
                yield _make_route(endpoint, model, provider)

    def _find_model(self, catalog: CatalogSnapshot, key: uuid.UUID) -> CatalogModel | None:
        return self.own_models.get(key) or catalog.models.get(key)

    def find_provider(
        self, key: uuid.UUID, providers: Mapping[uuid.UUID, CatalogProvider]
    ) -> CatalogProvider | None:
        """Returns a provider of the organization, or else one of the catalogue."""
        return self.own_providers.get(key) or providers.get(key)

    @property
    def provider_names(self) -> frozenset[str]:
        """The slugs and names of own and of gone providers, in lower case."""
        return frozenset(
            name.lower()
            for provider in (*self.own_providers.values(), *self.gone_providers.values())
            for name in (provider.slug, provider.name)
        )

    def _name_private(self, catalog: CatalogSnapshot) -> Iterable[tuple[str, PrivateModel]]:
        """Yields the models that endpoints keep private, and all own ones."""
        # Of two own models of one name the last counts, which is not deleted.
        for model_id in (*self.kept_models, *self.own_models):
            model = self._find_model(catalog, model_id)
            kept = self.kept_models.get(model_id, _NOTHING_KEPT)
            if model is not None:
                # A snapshot has the names of own providers for all models.
                names = frozenset(
                    name.lower()
                    for provider in map(catalog.providers.get, kept.providers)
                    if provider is not None
                    for name in (provider.slug, provider.name)
                )
                yield model.slug, PrivateModel(names, kept.fallback)

    def _name_gone(self, catalog: CatalogSnapshot) -> Iterable[tuple[str, str]]:
        for model_id in self.kept_models:
            model = self._find_model(catalog, model_id)
            if model is not None and not model.is_listed:
                yield model.permaslug, model.slug
                yield model.slug, model.slug

    def _index_names(self, catalog: CatalogSnapshot) -> NameIndex:
        """Returns the other spellings of own models, and of gone ones, which mean no other model.

        An own model has its names before the catalogue, also when it is gone. A gone model of the
        catalogue leaves a spelling to a listed one that is nearer to it, as it did before. Nothing
        gone is suggested.
        """
        own = self.own_models.values()
        listed = _index(model for model in own if model.is_listed)
        gone = _index(model for model in own if not model.is_listed)
        found = map(catalog.models.get, self.kept_models)
        delisted = _index(model for model in found if model is not None and not model.is_listed)
        public = catalog.names.spellings
        closed = {
            text: meant
            for text, meant in delisted.spellings.items()
            if min(meant)[0] <= min(public.get(text, meant))[0]
        }
        spellings = {**closed, **gone.spellings, **listed.spellings}
        if not spellings:
            return NO_NAMES
        return NameIndex(listed.models, spellings, {**gone.families, **listed.families})

    def place_credentials(
        self, providers: Mapping[uuid.UUID, CatalogProvider]
    ) -> tuple[Credential, ...]:
        """Returns the credentials with the hosts of their providers."""
        if not self.credentials:
            return ()
        named = {
            provider.slug: provider
            for provider in (*providers.values(), *self.own_providers.values())
        }
        return tuple(
            _place_credential(credential, named.get(credential.provider_slug))
            for credential in self.credentials
        )


_NOTHING_KEPT: Final = KeptModel(frozenset(), None)


def load_organization(organization_id: uuid.UUID) -> OrganizationCopy:
    """Reads an organization's copy as :func:`load_organizations` does.

    Raises :class:`Organization.DoesNotExist`.
    """
    found = load_organizations([organization_id]).get(organization_id)
    if found is None:
        raise Organization.DoesNotExist
    return found


def load_organizations(ids: Collection[uuid.UUID]) -> dict[uuid.UUID, OrganizationCopy]:
    """Reads the copies of the organizations that exist, by their ids, with one query.

    It uses this thread's connection. One snapshot shows the version and exactly the rows that have
    it, and the organizations that were read are the owners of all rows.
    """
    marks = [uuid.UUID(int=number) for number in range(len(ids))]
    found = _prepare(len(ids)).read(dict(zip(marks, ids, strict=True)))
    (
        organizations, endpoints, kept, own_models, prices, validations, credentials, aliases,
        providers, *rules,
    ) = found  # fmt: skip
    kept_of = _group_by_owner((row.organization_id, row) for row in (*endpoints, *kept))
    reach_of = {each.pk: each.reach for each in organizations}
    endpoints_of = _group_by_owner(
        (owner, made._replace(reach=reach_of[owner]))
        for owner, made in _make_endpoints(endpoints, prices, validations)
    )
    credentials_of = _group_by_owner(
        (row.organization_id, _make_credential(row)) for row in credentials
    )
    aliases_of = _group_by_owner((row.organization_id, row.alias) for row in aliases)
    providers_of = _group_by_owner((row.organization_id, _make_provider(row)) for row in providers)
    models_of = _group_by_owner((row.organization_id, _make_model(row)) for row in own_models)
    rules_of = make_rules(organizations, *rules)
    return {
        each.pk: OrganizationCopy(
            version=each.routing_version,
            endpoints=endpoints_of.get(each.pk, []),
            credentials=credentials_of.get(each.pk, []),
            rules=rules_of[each.pk],
            aliases=make_table(aliases_of.get(each.pk, ())),
            kept_models=_keep_models(kept_of.get(each.pk, ())),
            own_providers={
                one.provider_id: one for one in providers_of.get(each.pk, ()) if one.is_listed
            },
            gone_providers={
                one.provider_id: one for one in providers_of.get(each.pk, ()) if not one.is_listed
            },
            own_models={one.model_id: one for one in models_of.get(each.pk, ())},
        )
        for each in organizations
    }


@lru_cache
def _prepare(count: int) -> Reading:
    """Returns the statement that reads ``count`` organizations; numbers stand for their ids."""
    ids = [uuid.UUID(int=number) for number in range(count)]
    own = PrivateEndpoint.objects.routable().filter(organization__in=ids)
    usable = ByokCredential.objects.usable().filter(organization__in=ids)
    withdrawn = PrivateEndpoint.objects.withdrawn().filter(organization__in=ids)
    # One row stands for all that say the same; a disabled one comes before a deleted one.
    told = ("organization_id", "model_id", "provider_id", "private_provider_id", "fallback")
    kept_rows = withdrawn.order_by(*told, F("deleted_at").asc(nulls_first=True)).distinct(*told)
    models = LanguageModel.objects.of_everybody().filter(organization__in=ids)
    named = models.filter(Q(is_listed=True) | Q(pk__in=withdrawn.values("model")))
    return prepare_reading(
        Organization.objects.filter(pk__in=ids),
        own,
        kept_rows,
        named.order_by("is_listed", "slug"),
        PriceVersion.objects.filter(pk__in=own.values("price")),
        Validation.objects.filter(pk__in=own.values("validation")),
        usable.order_by("provider_slug", "sort_order", "created_at"),
        ModelAlias.objects.filter(organization__in=ids),
        PrivateProvider.objects.filter(
            Q(deleted_at=None) | Q(pk__in=withdrawn.values("private_provider")),
            organization__in=ids,
        ),
        *select_rules(ids),
    )  # fmt: skip


def _group_by_owner(rows: Iterable[tuple[uuid.UUID, Item]]) -> dict[uuid.UUID, list[Item]]:
    found: dict[uuid.UUID, list[Item]] = {}
    for owner, item in rows:
        found.setdefault(owner, []).append(item)
    return found


def _keep_models(rows: Iterable[PrivateEndpoint]) -> dict[uuid.UUID, KeptModel]:
    """Returns the models that endpoints keep private: active ones, and those withdrawn.

    What is deleted sets no level any more, and what is disabled allows nothing.
    """
    found: dict[uuid.UUID, KeptModel] = {}
    for row in rows:
        level = None if row.fallback is None or row.deleted_at else Fallback(row.fallback)
        if level is Fallback.ANY and row.status != PrivateEndpoint.Status.ACTIVE:
            level = None
        before = found.get(row.model_id, _NOTHING_KEPT)
        found[row.model_id] = KeptModel(
            before.providers | {row.upstream_provider_id},
            find_strictest(before.fallback, level),
        )
    return found


def _make_endpoints(
    rows: Iterable[PrivateEndpoint],
    prices: Iterable[PriceVersion],
    validations: Iterable[Validation],
) -> Iterator[tuple[uuid.UUID, OwnEndpoint]]:
    """Yields the owner of each endpoint that can be used, and the endpoint."""
    price_of = {price.pk: price for price in prices}
    validation_of = {validation.pk: validation for validation in validations}
    for row in rows:
        row.price = price_of[row.price_id]
        # The validation may have left with its partition, which no constraint prevents.
        key = row.validation_id
        row.validation = None if key is None else validation_of.get(key)
        if (made := _make_endpoint(row)) is not None:
            yield row.organization_id, made


def _make_endpoint(endpoint: PrivateEndpoint) -> OwnEndpoint | None:
    """Returns an endpoint; ``None`` if this release cannot apply its price."""
    try:
        price = endpoint.price.price
    except UnknownRule as exc:
        logger.error(
            "the endpoint %s is not used: its price %d: %s", endpoint.pk, endpoint.price_id, exc
        )
        return None
    validation, stated = endpoint.validation, read_settings(endpoint.settings)
    if (
        validation is not None
        and (bound := validation.complete_bound(stated.bound)) != stated.bound
    ):
        stated = structs.replace(stated, bound=bound)
    return OwnEndpoint(
        endpoint.pk,
        endpoint.model_id,
        endpoint.upstream_provider_id,
        endpoint.provider_name,
        endpoint.declared_zdr,
        endpoint.declared_region,
        endpoint.base_url,
        endpoint.upstream_model_id,
        endpoint.price_id,
        price,
        endpoint.attestation_id,
        {} if validation is None else validation.parameters or {},
        None if validation is None else proven_names(validation.operations),
        endpoint.time_limits,
        settings=stated,
        declared=(*endpoint.declared_parameters, *endpoint.tested_parameters),
        drifted_at=endpoint.drifted_at,
    )


def record_first_use(use: FirstUse) -> str | None:
    """Binds a credential to the domain of its first use, on this thread's connection.

    Returns the reason why its secret may not go there from now on, if there is one.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            # A locked row may keep a thread only briefly: all tenants of the worker share them.
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            credential: ByokCredential = ByokCredential.objects.get(pk=use.credential_id)
            return credential.record_use(use.host, own_hosts=use.own_hosts)
    except (ByokCredential.DoesNotExist, CredentialNotFound):
        return CredentialNotFound.message


def _make_provider(row: PrivateProvider) -> CatalogProvider:
    """Returns an organization's own provider, which trains on nothing."""
    return CatalogProvider(
        row.pk,
        row.slug,
        row.name,
        row.dialect,
        row.base_url,
        trains_on_prompts=False,
        is_listed=row.is_listed,
        secret=NO_SECRET if row.is_keyless else None,
        is_own=True,
    )


def _make_model(row: LanguageModel) -> CatalogModel:
    """Returns an organization's own model."""
    return CatalogModel(
        row.pk,
        row.slug,
        row.canonical_slug,
        row.context_length,
        row.input_modalities,
        row.output_modalities,
        row.supported_parameters,
        row.is_listed,
        row.native_format,
        row.thinking,
        row.thinks_between_tools,
        row.combines_sampling,
        row.created,
        row.tokenizer,
        row.base_model,
    )


def _index(models: Iterable[CatalogModel]) -> NameIndex:
    """Returns the other spellings of models, without those of their providers."""
    return patch_names(
        NO_NAMES,
        {
            model.model_id: ModelNames(model.slug, model.permaslug, model.created, frozenset())
            for model in models
        },
    )


def _make_route(endpoint: OwnEndpoint, model: CatalogModel, provider: CatalogProvider) -> Route:
    offered, settings, base_url = None, endpoint.settings, endpoint.address_at(provider)
    if model.supported_parameters:
        offered = share(
            offered_parameters(
                model.supported_parameters,
                endpoint.proofs,
                declared=endpoint.declared,
                excluded=settings.excluded_parameters,
            )
        )
    disproved = [name for name, proof in endpoint.proofs.items() if proof != Proof.PROVEN]
    return Route(
        endpoint_id=endpoint.endpoint_id,
        is_private=True,
        model_slug=model.slug,
        model_permaslug=model.permaslug,
        facts=EndpointFacts(
            provider.slug,
            endpoint.provider_name,
            provider.is_own if endpoint.declared_zdr is None else endpoint.declared_zdr,
            False,
            model.slug,
            model.permaslug,
            endpoint.declared_region,
            is_private=True,
        ),
        dialect=usable_dialect(provider, base_url),
        operations=operations_of(model, provider, settings.completions, endpoint.proven),
        inputs=share(model.input_modalities),
        outputs=share(model.output_modalities),
        base_url=base_url,
        host=host_of_url(base_url),
        secret=NO_SECRET if provider.is_keyless else None,
        upstream_model_id=endpoint.upstream_model_id,
        price_id=endpoint.price_id,
        price=endpoint.price,
        attestation_id=endpoint.attestation_id,
        context_length=settings.context_length or model.context_length,
        max_completion_tokens=settings.max_completion_tokens,
        quantization=settings.quantization,
        offered_parameters=offered,
        disproved_parameters=share(disproved),
        capabilities=model.capabilities,
        abilities=settings,
        pool=settings.routing,
        limits=find_limits(settings.bound),
        family=correct_family(model.family, settings.estimate),
        time_limits=endpoint.time_limits,
        reach=endpoint.reach,
        drifted_at=endpoint.drifted_at,
    )


def _group_by_model(routes: Iterable[Route]) -> dict[str, tuple[Route, ...]]:
    found: dict[str, list[Route]] = {}
    for route in routes:
        found.setdefault(route.model_slug, []).append(route)
    return {slug: tuple(group) for slug, group in found.items()}


def _make_credential(row: ByokCredential) -> Credential:
    members = row.allowed_user_ids
    return Credential(
        credential_id=row.pk,
        provider_slug=row.provider_slug,
        workspace_id=row.workspace_id,
        secret=row.reveal_or_none(),
        is_fallback=row.is_fallback,
        is_required=row.is_required,
        is_byok_only=row.is_byok_only,
        allowed_models=_freeze(row.allowed_models),
        allowed_key_digests=_freeze(row.allowed_api_key_hashes),
        limits=row.host_limits(),
        # Earlier releases stored the ids as they were sent.
        allowed_members=_freeze(None if members is None else spell_ids(members)),
        declared_region=row.declared_region,
        declared_zdr=row.declared_zdr,
        version=row.version,
    )


def _place_credential(credential: Credential, provider: CatalogProvider | None) -> Credential:
    """Returns a credential with the hosts of its provider, which the catalogue may not have."""
    if provider is None:
        return credential
    # A server that takes no key is sent none.
    secret = None if provider.is_keyless else credential.secret
    host = None
    if provider.dialect in CLOUDS:
        host = host_of_credential(provider.dialect, secret)
        secret = None if host is None else secret
    # The address of an organization's own provider is what its owner typed last.
    own_hosts = (
        frozenset()
        if provider.is_own
        else hosts_of(provider.dialect, provider.base_url, host or "")
    )
    limits = replace(credential.limits, own_hosts=own_hosts)
    return replace(credential, secret=secret, host=host, limits=limits)


def _freeze(values: list[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)
