"""Which models a list shows, in which order, and what it says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal
from uuid import UUID

from django.db.models import Q

from accounts.policy import Policy
from catalog import traffic
from catalog.models import LanguageModel, ModelEndpoint
from catalog.pricing import Price
from catalog.visibility import EndpointFacts, exclusions
from config.api import CONTROL_CHARACTERS
from endpoints.models import ModelNotFound, PrivateEndpoint

SORTS: Final = (
    "most-popular", "newest", "top-weekly", "pricing-low-to-high", "pricing-high-to-low",
    "context-high-to-low", "throughput-high-to-low", "latency-low-to-high",
    "intelligence-high-to-low", "coding-high-to-low", "agentic-high-to-low",
    "design-arena-elo-high-to-low",
)  # fmt: skip
# What a request may append to a name; it says how to route, not which model.
VARIANTS: Final = frozenset(
    ("free", "extended", "beta", "thinking", "online", "nitro", "floor", "exacto")
)
_MILLION: Final = 1_000_000
_PRICE: Final = tuple(
    f"price__{name}"
    for name in ("prompt", "completion", "image", "request", "cache_read", "cache_write")
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one endpoint offers for a model."""

    endpoint_id: UUID
    facts: EndpointFacts
    region: str | None
    price: Price
    context_length: int | None
    max_completion_tokens: int | None
    is_moderated: bool


Offers = Mapping[UUID, list[Offer]]


@dataclass(frozen=True, slots=True)
class Range:
    """A closed interval of decimals, open where it has no bound."""

    minimum: Decimal | None = None
    maximum: Decimal | None = None

    def admits(self, value: Decimal) -> bool:
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller looks for: conditions on a model, on one of its endpoints, on its price.

    Prices are in USD per million tokens. ``is_unknown`` asks for what the catalogue does not
    record, so nothing is known to match.
    """

    models: Q = field(default_factory=Q)
    providers: frozenset[str] | None = None
    zdr: bool = False
    region: str | None = None
    prompt_price: Range = Range()
    completion_price: Range = Range()
    is_unknown: bool = False

    def admits(self, offers: list[Offer]) -> bool:
        """Tells whether the price that is shown fits, and one endpoint everything else."""
        shown = offers[0].price
        return (
            not self.is_unknown
            and self.prompt_price.admits(shown.prompt * _MILLION)
            and self.completion_price.admits(shown.completion * _MILLION)
            and any(self._admits(offer) for offer in offers)
        )

    def _admits(self, offer: Offer) -> bool:
        names = {offer.facts.provider_slug.lower(), offer.facts.provider_name.lower()}
        return (
            (self.providers is None or not self.providers.isdisjoint(names))
            and (not self.zdr or offer.facts.zdr)
            and (self.region is None or self.region == offer.region)
        )


def resolve(author: str, slug: str) -> LanguageModel:
    """Returns the model that a public or canonical slug names, with or without a variant suffix.

    A model whose own name ends like a variant comes first. Raises :class:`ModelNotFound`.
    """
    name = f"{author}/{slug}"
    base, _, variant = name.rpartition(":")
    names = [name, base] if variant in VARIANTS else [name]
    # PostgreSQL has no NUL in text, and no name has any other control character.
    if not CONTROL_CHARACTERS.search(name):
        found = LanguageModel.objects.listed().filter(
            Q(slug__in=names) | Q(canonical_slug__in=names)
        )
        models = {key: model for model in found for key in (model.canonical_slug, model.slug)}
        for candidate in names:
            if candidate in models:
                return models[candidate]
    raise ModelNotFound(f"There is no model {name!r} in the catalogue.")


def visible_offers(
    policy: Policy, *, organization_id: UUID | None = None, model: LanguageModel | None = None
) -> dict[UUID, list[Offer]]:
    """Returns, for each model that the policy leaves callable, what its endpoints offer.

    The first offer is the one to show: the cheapest public one, and only without any the
    organization's own active endpoints, because a list shows list prices. Without an organization
    no private endpoint is read. Two queries, whatever the size of the catalogue.
    """
    only = {} if model is None else {"model": model}
    offers: dict[UUID, list[Offer]] = {}
    public = (
        ModelEndpoint.objects.routable()
        .filter(**only)
        .order_by("price__prompt", "pk")
        # Rows, not models: a list of thousands is read for every request.
        .values_list(
            "model_id", "pk", "model__slug", "model__canonical_slug", "provider__slug",
            "provider__name", "zdr", "provider__trains_on_prompts", "region", "context_length",
            "max_completion_tokens", "is_moderated", *_PRICE,
        )
    )  # fmt: skip
    for row in public:
        model_id, pk, name, permaslug, provider, display, zdr, trains, region, *rest = row
        context, limit, moderated, *rates = rest
        price = Price(*rates)
        facts = EndpointFacts(
            provider, display, zdr, trains, name, permaslug, region, price.is_free
        )
        if not exclusions(facts, policy):
            offer = Offer(pk, facts, region, price, context, limit, moderated)
            offers.setdefault(model_id, []).append(offer)
    if organization_id is None:
        return offers
    private = (
        PrivateEndpoint.objects.for_organization(organization_id)
        .routable()
        .filter(**only)
        .select_related("model", "provider", "price")
    )
    for deployment in private:
        facts = EndpointFacts(
            deployment.provider.slug,
            deployment.provider_name,
            bool(deployment.declared_zdr),
            False,
            deployment.model.slug,
            deployment.model.canonical_slug,
            deployment.declared_region,
        )
        if not exclusions(facts, policy):
            offer = Offer(
                endpoint_id=deployment.pk,
                facts=facts,
                region=deployment.declared_region,
                price=deployment.price.price,
                context_length=deployment.model.context_length,
                max_completion_tokens=None,
                is_moderated=False,
            )
            offers.setdefault(deployment.model_id, []).append(offer)
    return offers


def select(wanted: Wanted, offers: Offers, *, sort: str | None = None) -> list[UUID]:
    """Returns the models that are served and wanted, in order.

    Without ``sort``, newest first. What cannot be ranked goes last, in that same order: a model
    without traffic or context length, and, since the catalogue records no benchmarks, every model
    in an order by one. Popularity, throughput and latency are those of public endpoints.
    """
    rows = (
        LanguageModel.objects.listed()
        .filter(wanted.models)
        .order_by("-created", "slug")
        .values_list("pk", "context_length")
    )
    contexts = {pk: context for pk, context in rows if pk in offers and wanted.admits(offers[pk])}
    found = list(contexts)
    if (rank := _ranking(sort, offers, contexts)) is not None:
        ranks = {pk: rank(pk) for pk in found}
        found.sort(key=lambda pk: (ranks[pk] is None, ranks[pk] or 0))
    return found


def _ranking(
    sort: str | None, offers: Offers, contexts: Mapping[UUID, int | None]
) -> Callable[[UUID], Any] | None:
    """Returns a model's rank, lowest first and ``None`` for last; nothing for the order as it is.

    The mean of the two prices ranks as their sum does.
    """

    def price(pk: UUID) -> Decimal:
        return offers[pk][0].price.prompt + offers[pk][0].price.completion

    match sort:
        case "pricing-low-to-high":
            return price
        case "pricing-high-to-low":
            return lambda pk: -price(pk)
        case "context-high-to-low":
            return lambda pk: _negative(contexts[pk])
        case "most-popular" | "top-weekly":
            tokens = traffic.tokens_last_week()
            return lambda pk: _negative(tokens.get(pk))
        case "throughput-high-to-low":
            fast = _medians("throughput", offers)
            return lambda pk: _negative(max(fast[pk], default=None))
        case "latency-low-to-high":
            prompt = _medians("latency", offers)
            return lambda pk: min(prompt[pk], default=None)
        case _:
            return None


def _medians(measure: Literal["latency", "throughput"], offers: Offers) -> dict[UUID, list[float]]:
    """Returns the medians of each model's endpoints, of those that have one."""
    figures = traffic.figures()
    return {
        pk: [
            percentiles["p50"]
            for offer in group
            if (percentiles := getattr(figures.get(offer.endpoint_id), measure, None)) is not None
        ]
        for pk, group in offers.items()
    }


def _negative(value: float | None) -> float | None:
    return None if value is None else -value
