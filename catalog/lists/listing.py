"""Selects, sorts and renders the models of a list.

A process keeps one copy of the public catalogue (:class:`CatalogueCache`). Its models are indexed
for the filters and rendered in advance, because a list shows thousands of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection

from accounts.models import ApiKey
from accounts.policy import Fallback, Policy
from catalog import dialects
from catalog.abilities import read_settings
from catalog.aliases.resolution import NO_ALIASES, AliasTable, make_table
from catalog.aliases.spellings import NO_NAMES, ModelNames, NameIndex, patch_names, put_first
from catalog.capabilities import Capabilities
from catalog.lists import traffic
from catalog.lists.access import (
    NOWHERE,
    OPERATORS,
    Access,
    EndpointPlace,
    OrganizationCache,
    read_access,
)
from catalog.models import CatalogVersion, LanguageModel, ModelAlias, ModelEndpoint, Provider
from catalog.operations import proven_operations, served_operations, served_outputs
from catalog.pricing import RATES, Price, UnknownRule
from catalog.pricing.contract import render_lines, render_pricing
from catalog.visibility import EndpointFacts, admits_model, admitted_kinds, for_any_model
from endpoints.models import PrivateEndpoint, PrivateProvider, offered_parameters, proven_names
from inference.admission.copies.catalog import host_of_url, make_provider
from inference.routing.routes import CatalogProvider

SORTS: Final = (
    "most-popular", "newest", "top-weekly", "pricing-low-to-high", "pricing-high-to-low",
    "context-high-to-low", "throughput-high-to-low", "latency-low-to-high",
    "intelligence-high-to-low", "coding-high-to-low", "agentic-high-to-low",
    "design-arena-elo-high-to-low",
)  # fmt: skip
_PRICE: Final = tuple(f"price__{name}" for name in (*RATES, "discount", "lines"))
_ENDPOINT_COLUMNS: Final = (
    "model_id", "pk", "provider_id", "zdr", "region", "context_length", "max_completion_tokens",
    "is_moderated", "supported_parameters", "upstream_model_id",
)  # fmt: skip
# The first parameters of ``make_provider``.
_PROVIDER_COLUMNS: Final = (
    "pk", "slug", "name", "dialect", "base_url", "trains_on_prompts", "is_listed",
    "sealed_credential", "is_keyless", "allowed_networks", "ca_certificates",
)  # fmt: skip
_PRICE_DECIMALS: Final = 30
# Two prices of 36 digits must not be rounded when they are added.
_EXACT: Final = Context(prec=80)


class _EndpointRow(NamedTuple):
    """The columns of a public endpoint that a list needs, in their order, and its price."""

    model_id: UUID
    pk: UUID
    provider: CatalogProvider
    zdr: bool
    region: str
    context_length: int | None
    max_completion_tokens: int | None
    is_moderated: bool
    supported_parameters: Sequence[str]
    upstream_model_id: str
    price: Price


class OfferKind(NamedTuple):
    """The facts that a policy and the choice of a credential depend on; equal for many offers.

    ``outputs`` are those that are served. The names of the model are empty, unless a credential is
    limited to models.
    """

    facts: EndpointFacts
    outputs: frozenset[str]
    place: EndpointPlace
    is_private: bool = False
    model_slug: str = ""
    model_permaslug: str = ""

    @property
    def host(self) -> str:
        return self.place.host


@dataclass(frozen=True, slots=True)
class Offer:
    """The price and limits of a model at one endpoint, which serves an operation of the model.

    ``kind`` is an index into the kinds of endpoints. ``cost`` is the sum of both prices, which
    sorts like their mean; it is an integer, which compares fast. ``terms`` is the rendered end of a
    model that is listed with this offer.
    """

    endpoint_id: UUID
    kind: int
    prompt: Decimal
    completion: Decimal
    cost: int
    terms: bytes


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model with the attributes that filters compare, and its public offers, cheapest first.

    Texts are case-folded. ``head`` is the rendered part of the model that no endpoint changes: the
    beginning of a JSON object, which the ``terms`` of an :class:`Offer` complete.
    """

    pk: UUID
    slug: str
    permaslug: str
    name: str
    names: frozenset[str]
    folded_slug: str
    folded_texts: str
    folded_tokenizer: str
    created: int
    context_length: int | None
    input_modalities: frozenset[str]
    output_modalities: frozenset[str]
    supported_parameters: frozenset[str]
    capabilities: Capabilities
    head: bytes
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One version of the public catalogue: its models, newest first, and the kinds of offers.

    ``providers`` are all of them, with the operator's credentials. ``slugs`` maps names to slugs,
    ``ids`` slugs to ids. ``aliases`` are those of the operator.
    """

    version: int
    models: Mapping[UUID, CatalogueModel]
    kinds: tuple[OfferKind, ...]
    providers: Mapping[UUID, CatalogProvider]
    slugs: Mapping[str, str]
    ids: Mapping[str, UUID]
    spellings: NameIndex
    aliases: AliasTable


class CatalogueCache:
    """Keeps one copy of the public catalogue for a whole process.

    Every request reads the version in PostgreSQL and reloads an older copy, so a change is visible
    on the next request in every worker.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = _index(-1, {}, (), {}, {}, NO_ALIASES)

    def load(self) -> Catalogue:
        """Returns the current catalogue, with one query; after a change, with six."""
        if connection.in_atomic_block:
            # A transaction sees its own changes, but the version changes only at its commit.
            return _load(-1)
        kept = self._kept
        if kept.version == _version():
            return kept
        # One thread loads while the others wait. They read the version again, because the version
        # from before the wait may be older than the new copy.
        with self._lock:
            if self._kept.version != (version := _version()):
                self._kept = _load(version)
            return self._kept


def _version() -> int:
    return CatalogVersion.objects.values_list("version", flat=True).first() or 0


def _load(version: int) -> Catalogue:
    # The version is read before the rows. Newer rows under an older version are loaded again at
    # the next request; older rows under a newer version cannot occur.
    kinds: dict[OfferKind, int] = {}
    providers = {
        values[0]: make_provider(*values)
        for values in Provider.objects.values_list(*_PROVIDER_COLUMNS)
    }
    rows: dict[UUID, list[_EndpointRow]] = {}
    width = len(_ENDPOINT_COLUMNS)
    for values in (
        ModelEndpoint.objects.routable()
        .order_by("price__prompt", "pk")
        .values_list(*_ENDPOINT_COLUMNS, *_PRICE)
    ):
        model_id, key, provider_id, *rest = values[:width]
        provider, price = providers.get(provider_id), _read_price(*values[width:])
        if provider is not None and price is not None:
            row = _EndpointRow._make((model_id, key, provider, *rest, price))
            rows.setdefault(model_id, []).append(row)
    models = {
        model.pk: _build_model(model, rows.get(model.pk, ()), kinds)
        for model in LanguageModel.objects.listed().order_by("-created", "slug")
    }
    upstream_ids = {key: {row.upstream_model_id for row in group} for key, group in rows.items()}
    aliases = make_table(ModelAlias.objects.of_owner(None).read())
    return _index(version, models, tuple(kinds), providers, upstream_ids, aliases)


def _index(
    version: int,
    models: Mapping[UUID, CatalogueModel],
    kinds: tuple[OfferKind, ...],
    providers: Mapping[UUID, CatalogProvider],
    upstream_ids: Mapping[UUID, Set[str]],
    aliases: AliasTable,
) -> Catalogue:
    """Returns a catalogue with the names of its models."""
    slugs = {model.permaslug: model.slug for model in models.values()}
    spellings = {
        key: ModelNames(
            model.slug, model.permaslug, model.created, frozenset(upstream_ids.get(key, ()))
        )
        for key, model in models.items()
    }
    return Catalogue(
        version=version,
        models=models,
        kinds=kinds,
        providers=providers,
        slugs=slugs | {model.slug: model.slug for model in models.values()},
        ids={model.slug: key for key, model in models.items()},
        spellings=patch_names(NO_NAMES, spellings),
        aliases=aliases,
    )


def add_own_models(catalogue: Catalogue, own: Iterable[LanguageModel]) -> Catalogue:
    """Returns the catalogue with an organization's own models, which hide others of their names."""
    added = {row.pk: _build_model(row, (), {}) for row in own}
    if not added:
        return catalogue
    slugs = {model.slug: model.slug for model in added.values()}
    hidden = {catalogue.ids[slug] for slug in slugs if slug in catalogue.ids}
    models = {key: one for key, one in catalogue.models.items() if key not in hidden} | added
    found = sorted(models.values(), key=lambda model: (-model.created, model.slug))
    spellings = {
        key: ModelNames(model.slug, model.permaslug, model.created, frozenset())
        for key, model in added.items()
    }
    return replace(
        catalogue,
        models={model.pk: model for model in found},
        slugs={**catalogue.slugs, **slugs},
        ids={**catalogue.ids, **{model.slug: key for key, model in added.items()}},
        spellings=put_first(patch_names(NO_NAMES, spellings), catalogue.spellings),
    )


def _build_model(
    model: LanguageModel, rows: Sequence[_EndpointRow], kinds: dict[OfferKind, int]
) -> CatalogueModel:
    """Returns a model with the offers of the endpoints that serve it; adds their kinds."""
    served = [
        (row, outputs)
        for row in rows
        if (
            outputs := find_outputs(
                model.output_modalities, model.capabilities, row.provider.dialect
            )
        )
        is not None
    ]
    parameters = _unite_parameters(model, [row for row, _ in served])
    offers = []
    for row, outputs in served:
        provider = row.provider
        facts = EndpointFacts(
            provider.slug,
            provider.name,
            row.zdr,
            provider.trains_on_prompts,
            model.slug,
            model.canonical_slug,
            row.region,
            row.price.is_free,
        )
        place = EndpointPlace(host_of_url(provider.base_url), provider.secret is not None)
        offers.append(
            _build_offer(
                row.pk,
                kinds.setdefault(OfferKind(facts.kind, outputs, place), len(kinds)),
                row.price,
                parameters,
                row.context_length or model.context_length,
                row.max_completion_tokens,
                is_moderated=row.is_moderated,
            )
        )
    return CatalogueModel(
        pk=model.pk,
        slug=model.slug,
        permaslug=model.canonical_slug,
        name=model.name,
        names=frozenset((model.slug, model.canonical_slug)),
        folded_slug=model.slug.casefold(),
        # A search text contains no control character, so it cannot match across the line break.
        folded_texts=f"{model.name}\n{model.slug}".casefold(),
        folded_tokenizer=(model.tokenizer or "").casefold(),
        created=model.created,
        context_length=model.context_length,
        input_modalities=frozenset(model.input_modalities),
        output_modalities=frozenset(model.output_modalities),
        supported_parameters=frozenset(parameters),
        capabilities=model.capabilities,
        head=_render_head(model),
        offers=tuple(offers),
    )


def _unite_parameters(model: LanguageModel, rows: Sequence[_EndpointRow]) -> list[str]:
    """Returns the parameters that at least one endpoint supports, in the order of the model's list.

    An endpoint without a list of its own is expected to support the model's, and none supports what
    its dialect does not send.
    """
    if not rows:
        return model.supported_parameters
    found: set[str] = set()
    for row in rows:
        listed = row.supported_parameters or model.supported_parameters
        found.update(dialects.keep_sent(row.provider.dialect, model.capabilities, listed))
    own = [name for name in model.supported_parameters if name in found]
    return own + sorted(found.difference(own))


def _render_head(model: LanguageModel) -> bytes:
    """Renders the part of a model that no endpoint changes: a JSON object without its end."""
    rendered = {
        "id": model.slug,
        "canonical_slug": model.canonical_slug,
        "name": model.name,
        "created": model.created,
        "description": model.description,
        "context_length": model.context_length,
        "architecture": {
            "input_modalities": model.input_modalities,
            "output_modalities": model.output_modalities,
            "modality": model.modality,
            # Public clients refuse null here; they call an unknown tokenizer Other.
            "tokenizer": model.tokenizer or "Other",
            "instruct_type": model.instruct_type,
        },
        "links": {"details": f"/api/v1/models/{quote(model.canonical_slug, safe='/:@')}/endpoints"},
        "default_parameters": model.default_parameters,
        "expiration_date": model.expiration_date,
        "knowledge_cutoff": model.knowledge_cutoff,
        "per_request_limits": model.per_request_limits,
        "supported_voices": model.supported_voices,
    }
    return msgspec.json.encode(rendered)[:-1]


def _build_offer(
    endpoint_id: UUID,
    kind: int,
    price: Price,
    parameters: Iterable[str],
    context_length: int | None,
    max_completion_tokens: int | None = None,
    *,
    is_moderated: bool = False,
) -> Offer:
    """Returns an offer; renders the end of a model that is listed with it.

    ``parameters`` are those of the model at all its endpoints.
    """
    rendered = {
        "supported_parameters": list(parameters),
        **public_pricing(price),
        "top_provider": {
            "context_length": context_length,
            "is_moderated": is_moderated,
            "max_completion_tokens": max_completion_tokens,
        },
    }
    return Offer(
        endpoint_id=endpoint_id,
        kind=kind,
        prompt=(prompt := price.net("prompt")),
        completion=(completion := price.net("completion")),
        cost=int(_EXACT.add(prompt, completion).scaleb(_PRICE_DECIMALS, _EXACT)),
        terms=b"," + msgspec.json.encode(rendered)[1:],
    )


def find_outputs(
    outputs: Iterable[str],
    capabilities: Capabilities,
    dialect: str,
    proven: frozenset[str] | None = None,
) -> frozenset[str] | None:
    """Returns the outputs of a model that an endpoint produces; ``None`` if it serves nothing.

    ``outputs`` are those of the model; ``dialect`` is that of the endpoint's provider. ``proven``
    are the operations that a validation has proven, if it tells them.
    """
    return _find_outputs(tuple(outputs), capabilities, dialect, proven)


def is_served(endpoint: ModelEndpoint) -> bool:
    """Returns whether a public endpoint serves an operation of its model."""
    model = endpoint.model
    dialect = endpoint.provider.dialect
    return find_outputs(model.output_modalities, model.capabilities, dialect) is not None


@lru_cache(maxsize=1024)
def _find_outputs(
    outputs: tuple[str, ...],
    capabilities: Capabilities,
    dialect: str,
    proven: frozenset[str] | None,
) -> frozenset[str] | None:
    served = served_operations(outputs, dialects.get(dialect, capabilities))
    served = proven_operations(served, proven)
    return served_outputs(outputs, served) if served else None


def _read_price(*rates: Any) -> Price | None:
    """Returns the price of a row; ``None`` if only a later release can apply it."""
    try:
        return Price.of_row(*rates)
    except UnknownRule:
        return None


def public_pricing(price: Price) -> dict[str, Any]:
    """Returns the members that state a price in the public lists.

    ``lines`` are the rules that the pricing object cannot say, if there are any.
    """
    members: dict[str, Any] = {"pricing": render_pricing(price)}
    if lines := render_lines(price):
        members["lines"] = lines
    return members


@dataclass(frozen=True, slots=True)
class DecimalRange:
    """An interval of decimals that includes its bounds; ``None`` is no bound."""

    minimum: Decimal | None = None
    maximum: Decimal | None = None

    @property
    def is_open(self) -> bool:
        return self.minimum is None and self.maximum is None

    def admits(self, value: Decimal) -> bool:
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )

    def scale(self, exponent: int) -> DecimalRange:
        """Returns the interval with both bounds multiplied by a power of ten, exactly."""
        return DecimalRange(
            *(
                None if bound is None else bound.scaleb(exponent, context=_EXACT)
                for bound in (self.minimum, self.maximum)
            )
        )


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria of a search: conditions on a model, on one of its endpoints, on its price.

    A model must be served with one of ``outputs``. Prices are in USD per token. ``is_unknown``
    marks a criterion that the catalogue does not record, so no model matches.
    """

    models: tuple[Callable[[CatalogueModel], bool], ...] = ()
    outputs: frozenset[str] | None = None
    providers: frozenset[str] | None = None
    zdr: bool = False
    region: str | None = None
    prompt_price: DecimalRange = DecimalRange()
    completion_price: DecimalRange = DecimalRange()
    is_unknown: bool = False

    def is_met_by(self, kind: OfferKind) -> bool:
        """Returns whether offers of this kind meet all criteria that concern endpoints."""
        facts = kind.facts
        names = {facts.provider_slug.lower(), facts.provider_name.lower()}
        return (
            (self.outputs is None or not self.outputs.isdisjoint(kind.outputs))
            and (self.providers is None or not self.providers.isdisjoint(names))
            and (not self.zdr or facts.zdr)
            and (self.region is None or self.region == facts.region)
        )


class ListedModel(NamedTuple):
    """A model and the offer that it is listed with; under an ``alias`` if it has one."""

    model: CatalogueModel
    offer: Offer
    alias: str | None = None


class VisibleCatalogue:
    """The part of the catalogue that a policy admits, with an organization's private endpoints.

    With an ``access`` it is what a key can call. A list shows list prices, so a model is listed
    with its cheapest public offer. A model without a public offer is listed with a private one. An
    organization's own models join those of the catalogue; with ``is_public``, private endpoints
    count for own models alone.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        policy: Policy,
        *,
        organization_id: UUID | None = None,
        is_public: bool = False,
        access: Access | None = None,
    ) -> None:
        own: Sequence[LanguageModel] = ()
        if organization_id is not None and (access is None or access.model_slugs):
            own = LanguageModel.objects.owned_by(organization_id)
        self.catalogue = catalogue = add_own_models(catalogue, own)
        self._models = catalogue.models
        self._policy = policy
        self._access = access
        self._kinds = list(catalogue.kinds)
        self._own: dict[str, list[Offer]] = {}
        has_places = access is None or bool(access.places)
        if organization_id is not None and has_places and (own or not is_public):
            self._read_own(organization_id, {"model__in": own} if is_public else {})
        own_names = (access or OPERATORS).provider_names
        self._allowed = admitted_kinds([kind.facts for kind in self._kinds], policy, own_names)
        self._admitted = self._allowed
        # The kinds that are admitted for models to which a credential is limited, or which are
        # private.
        self._admitted_of: dict[UUID, frozenset[int]] = {}
        if access is not None:
            self._judge(access, for_any_model(policy))

    def find(self, model_id: UUID) -> ListedModel | None:
        """Returns a model with its offer, or ``None`` if none is admitted."""
        model = self._models.get(model_id)
        if model is None or not admits_model(model.names, self._policy):
            return None
        offer = self._choose_offer(model)
        return None if offer is None else ListedModel(model, offer)

    def allows(self, model_id: UUID) -> bool:
        """Returns whether the policy admits a model, whoever has a credential for it.

        A name may mean a private model that nothing serves now, and then means no other.
        """
        model = self._models[model_id]
        if not admits_model(model.names, self._policy):
            return False
        if self._access is not None and model_id in self._access.levels:
            return True
        return _find_offer(self._offers(model), self._allowed) is not None

    def has(self, model_id: UUID, endpoint_id: UUID) -> bool:
        """Returns whether an endpoint of a model is admitted."""
        model = self._models.get(model_id)
        if model is None:
            return False
        kinds = self._admitted_of.get(model_id, self._admitted)
        return any(
            offer.endpoint_id == endpoint_id and offer.kind in kinds
            for offer in self._offers(model)
        )

    def select(self, criteria: Criteria, *, sort: str | None = None) -> list[ListedModel]:
        """Returns the models that are served and meet the criteria, in order.

        Without ``sort``, the newest model is first. Models that cannot be ranked go last, newest
        first: those without traffic or context length, and all models when sorted by a benchmark,
        because the catalogue records no benchmarks. Popularity, throughput and latency are those of
        public endpoints.
        """
        found = [] if criteria.is_unknown else self._find_served(criteria)
        if not (price := criteria.prompt_price).is_open:
            found = [listed for listed in found if price.admits(listed.offer.prompt)]
        if not (price := criteria.completion_price).is_open:
            found = [listed for listed in found if price.admits(listed.offer.completion)]
        if (order := self._make_ranking(sort)) is None:
            return found
        rank, is_descending = order
        ranks = [(rank(listed), listed) for listed in found]
        ranked = [pair for pair in ranks if pair[0] is not None]
        ranked.sort(key=itemgetter(0), reverse=is_descending)
        last = [listed for value, listed in ranks if value is None]
        return [*(listed for _, listed in ranked), *last]

    def _find_served(self, criteria: Criteria) -> list[ListedModel]:
        """Returns the models with an admitted endpoint that meets all criteria for endpoints."""
        models: Iterable[CatalogueModel] = self._models.values()
        if self._policy.models is not None or self._policy.ignored_models:
            models = [model for model in models if admits_model(model.names, self._policy)]
        for condition in criteria.models:
            models = [model for model in models if condition(model)]
        met = frozenset(place for place, kind in enumerate(self._kinds) if criteria.is_met_by(kind))
        is_narrower = len(met) < len(self._kinds)
        matching = self._admitted & met
        found = []
        for model in models:
            offer = self._choose_offer(model)
            if offer is None:
                continue
            if is_narrower:
                own = self._admitted_of.get(model.pk)
                kinds = matching if own is None else own & met
                if _find_offer(self._offers(model), kinds) is None:
                    continue
            found.append(ListedModel(model, offer))
        return found

    def _judge(self, access: Access, policy: Policy) -> None:
        """Finds the kinds that can be called, and those of models for which others can."""
        self._admitted = frozenset(
            place
            for place, kind in enumerate(self._kinds)
            if access.admits(kind, policy, is_served=kind.place.is_served)
        )
        named, levels = access.named_models, access.levels
        for model_id, model in self._models.items() if named or levels else ():
            if model_id not in levels and model.slug in access.model_slugs:
                self._admitted_of[model_id] = frozenset()  # the name means an own model
                continue
            if model_id not in levels and named.isdisjoint(model.names):
                continue
            is_kept = levels.get(model_id, Fallback.ANY) != Fallback.ANY
            self._admitted_of[model_id] = frozenset(
                offer.kind
                for offer in self._offers(model)
                if (kind := self._kinds[offer.kind]).is_private or not is_kept
                if access.admits(
                    kind._replace(model_slug=model.slug, model_permaslug=model.permaslug),
                    policy,
                    is_served=kind.place.is_served,
                )
            )

    def _choose_offer(self, model: CatalogueModel) -> Offer | None:
        """Returns the offer with which a model is listed, or ``None`` if no offer is admitted."""
        offers = self._offers(model)
        offer = _find_offer(offers, self._admitted_of.get(model.pk, self._admitted))
        if offer is not None and self._kinds[offer.kind].is_private:
            return _find_offer(offers, self._allowed) or offer
        return offer

    def _offers(self, model: CatalogueModel) -> Sequence[Offer]:
        """Returns every offer for a model, admitted or not, public ones first."""
        own = self._own.get(model.slug)
        return model.offers if own is None else (*model.offers, *own)

    def _read_own(self, organization_id: UUID, only: Mapping[str, Any]) -> None:
        """Reads the organization's active endpoints; the policy applies to their declarations."""
        rows = (
            PrivateEndpoint.objects.for_organization(organization_id)
            .routable()
            .filter(**only)
            .values_list(
                "model_id", "pk", "provider__slug", "private_provider__slug", "provider_name",
                "provider__dialect", "declared_zdr", "declared_region", "validation__parameters",
                "validation__evidence__operations", "settings", "declared_parameters",
                "tested_parameters", *_PRICE,
            )
        )  # fmt: skip
        for (
            model_id, pk, provider, own, display, dialect, zdr, region, proofs, tried, stated,
            declared, tested, *rates,
        ) in rows:  # fmt: skip
            model = self._models.get(model_id)
            if model is None:
                continue
            spoken = dialect or PrivateProvider.dialect
            outputs = find_outputs(
                model.output_modalities, model.capabilities, spoken, proven_names(tried)
            )
            if outputs is None or (price := _read_price(*rates)) is None:
                continue
            is_zdr = own is not None if zdr is None else zdr
            facts = EndpointFacts(
                own or provider,
                display,
                is_zdr,
                False,
                model.slug,
                model.permaslug,
                region,
                is_private=True,
            )
            settings = read_settings(stated)
            offered = offered_parameters(
                sorted(model.supported_parameters),
                proofs,
                declared=(*declared, *tested),
                excluded=settings.excluded_parameters,
            )
            parameters = dialects.keep_sent(spoken, model.capabilities, offered)
            place = NOWHERE if self._access is None else self._access.places.get(pk)
            if place is None:
                continue  # it is newer than the copy of the organization
            offer = _build_offer(
                pk,
                len(self._kinds),
                price,
                parameters,
                settings.context_length or model.context_length,
                settings.max_completion_tokens,
            )
            self._kinds.append(OfferKind(facts.kind, outputs, place, is_private=True))
            self._own.setdefault(model.slug, []).append(offer)

    def _make_ranking(self, sort: str | None) -> tuple[Callable[[ListedModel], Any], bool] | None:
        """Returns a function that ranks a model, and whether the highest rank is first.

        A rank of ``None`` goes last. Returns ``None`` when the order stays as it is.
        """
        match sort:
            case "pricing-low-to-high":
                return lambda listed: listed.offer.cost, False
            case "pricing-high-to-low":
                return lambda listed: listed.offer.cost, True
            case "context-high-to-low":
                return lambda listed: listed.model.context_length, True
            case "most-popular" | "top-weekly":
                tokens = traffic.tokens_last_week()
                return lambda listed: tokens.get(listed.model.pk), True
            case "throughput-high-to-low":
                medians = self._make_medians("throughput")
                return lambda listed: max(medians(listed), default=None), True
            case "latency-low-to-high":
                medians = self._make_medians("latency")
                return lambda listed: min(medians(listed), default=None), False
            case _:
                return None

    def _make_medians(
        self, measure: Literal["latency", "throughput"]
    ) -> Callable[[ListedModel], list[float]]:
        """Returns a function that collects the medians of a model's admitted endpoints."""
        figures = traffic.figures()

        def medians(listed: ListedModel) -> list[float]:
            return [
                percentiles["p50"]
                for offer in self._offers(listed.model)
                if offer.kind in self._admitted_of.get(listed.model.pk, self._admitted)
                and (found := figures.get(offer.endpoint_id)) is not None
                and (percentiles := getattr(found, measure)) is not None
            ]

        return medians


_CATALOGUE: Final = CatalogueCache()
_ORGANIZATIONS: Final = OrganizationCache()


def open_catalogue(
    policy: Policy,
    *,
    key: ApiKey | None = None,
    policy_of_key: Callable[[], Policy] | None = None,
    shows_all: bool = False,
) -> VisibleCatalogue:
    """Returns the part of the catalogue that a policy admits and that a key can call.

    Without a key, it is what the operator's credentials serve. ``policy_of_key`` returns the policy
    by which requests of the key are judged; without it, that is ``policy``. With ``shows_all``,
    credentials decide nothing.
    """
    catalogue = _CATALOGUE.load()
    access = None if shows_all else OPERATORS
    if key is not None and not shows_all:
        copy = _ORGANIZATIONS.load(key)
        access = read_access(key, copy, catalogue.providers, policy_of_key or (lambda: policy))
    return VisibleCatalogue(
        catalogue,
        policy,
        organization_id=None if key is None else key.organization_id,
        is_public=shows_all and policy_of_key is not None,
        access=access,
    )


def describe_hidden() -> str:
    """Returns which providers have no credential of the operator, and what that hides."""
    catalogue = _CATALOGUE.load()
    lacking = {kind.facts.provider_slug for kind in catalogue.kinds if not kind.place.is_served}
    if not lacking:
        return ""
    text = f"These providers have no credential yet: {', '.join(sorted(lacking))}."
    if settings.MODEL_LISTS == "all":
        return text
    everything, served = (
        len(VisibleCatalogue(catalogue, Policy(), access=access).select(Criteria()))
        for access in (None, OPERATORS)
    )
    return (
        f"{text} The lists leave out {everything - served} of {everything} models until they have "
        "one (set_provider_credential) or an organization brings its own."
    )


def _find_offer(offers: Sequence[Offer], kinds: Set[int]) -> Offer | None:
    for offer in offers:
        if offer.kind in kinds:
            return offer
    return None
