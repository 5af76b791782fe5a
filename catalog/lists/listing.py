"""Which models a list shows, in which order, and what it says of each.

Lists are made from one copy of the public catalogue that a process keeps (:class:`Shelf`), indexed
for what filters ask and already rendered, because thousands of models are shown at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Context, Decimal
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import Q

from accounts.policy import Policy
from catalog.lists import traffic
from catalog.models import CatalogVersion, LanguageModel, ModelEndpoint
from catalog.names import ModelNotFound, split_variant
from catalog.pricing import RATES, Price
from catalog.visibility import EndpointFacts, admits_model, admitted_kinds
from config.api.text import CONTROL_CHARACTERS
from endpoints.models import PrivateEndpoint

SORTS: Final = (
    "most-popular", "newest", "top-weekly", "pricing-low-to-high", "pricing-high-to-low",
    "context-high-to-low", "throughput-high-to-low", "latency-low-to-high",
    "intelligence-high-to-low", "coding-high-to-low", "agentic-high-to-low",
    "design-arena-elo-high-to-low",
)  # fmt: skip
_PRICE: Final = tuple(f"price__{name}" for name in RATES)
_PRICE_DECIMALS: Final = 30
# Two prices of 36 digits must not be rounded when they are added.
_EXACT: Final = Context(prec=80)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one endpoint offers for a model; ``kind`` is the place of its kind among the kinds.

    ``cost`` ranks it as the mean of its two prices does: it is their sum, as an integer because
    thousands are compared. ``terms`` is the rendered end of a model that is shown with this offer.
    """

    endpoint_id: UUID
    kind: int
    prompt: Decimal
    completion: Decimal
    cost: int
    terms: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A listed model, with what filters ask of it and its public offers, the cheapest first.

    Texts are folded for comparison without case. ``head`` is what is true of the model whoever
    serves it, rendered: a JSON object that the ``terms`` of an :class:`Offer` close.
    """

    pk: UUID
    slug: str
    permaslug: str
    names: frozenset[str]
    folded_slug: str
    folded_texts: str
    folded_tokenizer: str
    created: int
    context_length: int | None
    input_modalities: frozenset[str]
    output_modalities: frozenset[str]
    supported_parameters: frozenset[str]
    head: bytes
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The public catalogue as of a version: its models, newest first, and kinds of endpoints."""

    version: int
    entries: Mapping[UUID, Entry]
    kinds: tuple[EndpointFacts, ...]


class Shelf:
    """Keeps one copy of the public catalogue for a whole process.

    The copy is used only while its version is the one in PostgreSQL, which every request reads, so
    that a change shows on the next request in every worker.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = Catalogue(version=-1, entries={}, kinds=())

    def catalogue(self) -> Catalogue:
        """Returns the catalogue as it is now: with one query, and three more after a change."""
        if connection.in_atomic_block:
            # The transaction sees changes of its own, whose version moves only when it commits.
            return _load(-1)
        kept = self._kept
        if kept.version == _version():
            return kept
        # One thread loads what all wait for. Whoever waited reads the version again: an older one
        # would put the copy that is there now away.
        with self._lock:
            if self._kept.version != (version := _version()):
                self._kept = _load(version)
            return self._kept


def _version() -> int:
    return CatalogVersion.objects.values_list("version", flat=True).first() or 0


def _load(version: int) -> Catalogue:
    # The version was read before these rows: newer rows under an older version are loaded again
    # at the next request, older rows under a newer version cannot happen.
    kinds: dict[EndpointFacts, int] = {}
    offers: dict[UUID, list[Offer]] = {}
    rows = (
        ModelEndpoint.objects.routable()
        .order_by("price__prompt", "pk")
        .values_list(
            "model_id", "pk", "model__slug", "model__canonical_slug", "provider__slug",
            "provider__name", "zdr", "provider__trains_on_prompts", "region", "context_length",
            "max_completion_tokens", "is_moderated", *_PRICE,
        )
    )  # fmt: skip
    for row in rows:
        model_id, pk, slug, permaslug, provider, display, zdr, trains, region, *rest = row
        context, limit, moderated, *rates = rest
        price = Price(*rates)
        facts = EndpointFacts(
            provider, display, zdr, trains, slug, permaslug, region, price.is_free
        )
        place = kinds.setdefault(facts.kind, len(kinds))
        offer = _offer(pk, place, price, context, limit, is_moderated=moderated)
        offers.setdefault(model_id, []).append(offer)
    models = LanguageModel.objects.listed().order_by("-created", "slug")
    entries = {model.pk: _entry(model, offers.get(model.pk, ())) for model in models}
    return Catalogue(version=version, entries=entries, kinds=tuple(kinds))


def _entry(model: LanguageModel, offers: Iterable[Offer]) -> Entry:
    return Entry(
        pk=model.pk,
        slug=model.slug,
        permaslug=model.canonical_slug,
        names=frozenset((model.slug, model.canonical_slug)),
        folded_slug=model.slug.casefold(),
        # Nothing that is looked for holds a control character.
        folded_texts=f"{model.name}\n{model.slug}".casefold(),
        folded_tokenizer=(model.tokenizer or "").casefold(),
        created=model.created,
        context_length=model.context_length,
        input_modalities=frozenset(model.input_modalities),
        output_modalities=frozenset(model.output_modalities),
        supported_parameters=frozenset(model.supported_parameters),
        head=_head(model),
        offers=tuple(offers),
    )


def _head(model: LanguageModel) -> bytes:
    """Renders what is true of a model whoever serves it: a JSON object, not yet closed."""
    shown = {
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
            # Public clients refuse null here, and have this name for what is not known.
            "tokenizer": model.tokenizer or "Other",
            "instruct_type": model.instruct_type,
        },
        "supported_parameters": model.supported_parameters,
        "links": {"details": f"/api/v1/models/{quote(model.canonical_slug, safe='/:@')}/endpoints"},
        "default_parameters": model.default_parameters,
        "expiration_date": model.expiration_date,
        "knowledge_cutoff": model.knowledge_cutoff,
        "per_request_limits": model.per_request_limits,
        "supported_voices": model.supported_voices,
    }
    return msgspec.json.encode(shown)[:-1]


def _offer(
    endpoint_id: UUID,
    kind: int,
    price: Price,
    context_length: int | None,
    max_completion_tokens: int | None = None,
    *,
    is_moderated: bool = False,
) -> Offer:
    """Returns an offer with the rest of a model rendered, which is its offer's."""
    shown = {
        "pricing": public_pricing(price),
        "top_provider": {
            "context_length": context_length,
            "is_moderated": is_moderated,
            "max_completion_tokens": max_completion_tokens,
        },
    }
    return Offer(
        endpoint_id=endpoint_id,
        kind=kind,
        prompt=price.prompt,
        completion=price.completion,
        cost=int(_EXACT.add(price.prompt, price.completion).scaleb(_PRICE_DECIMALS, _EXACT)),
        terms=b"," + msgspec.json.encode(shown)[1:],
    )


def public_pricing(price: Price) -> dict[str, str]:
    """Returns a price as the public lists say it: USD per unit, as decimal strings."""
    rates = {
        "prompt": price.text("prompt"),
        "completion": price.text("completion"),
        "image": price.text("image"),
        "request": price.text("request"),
    }
    if price.cache_read is not None:
        rates["input_cache_read"] = price.text("cache_read")
    if price.cache_write is not None:
        rates["input_cache_write"] = price.text("cache_write")
    if price.image_output is not None:
        rates["image_output"] = price.text("image_output")
    return rates


@dataclass(frozen=True, slots=True)
class Range:
    """A closed interval of decimals, open where it has no bound."""

    minimum: Decimal | None = None
    maximum: Decimal | None = None

    @property
    def is_open(self) -> bool:
        return self.minimum is None and self.maximum is None

    def admits(self, value: Decimal) -> bool:
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )

    def scaled(self, exponent: int) -> Range:
        """Returns the interval whose bounds are these, times a power of ten, exactly."""
        return Range(
            *(
                None if bound is None else bound.scaleb(exponent, context=_EXACT)
                for bound in (self.minimum, self.maximum)
            )
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller looks for: conditions on a model, on one of its endpoints, on its price.

    Prices are in USD per token. ``is_unknown`` asks for what the catalogue does not record, so
    nothing is known to match.
    """

    models: tuple[Callable[[Entry], bool], ...] = ()
    providers: frozenset[str] | None = None
    zdr: bool = False
    region: str | None = None
    prompt_price: Range = Range()
    completion_price: Range = Range()
    is_unknown: bool = False

    def suits(self, kind: EndpointFacts) -> bool:
        """Tells whether an endpoint of this kind has everything that is asked of one endpoint."""
        names = {kind.provider_slug.lower(), kind.provider_name.lower()}
        return (
            (self.providers is None or not self.providers.isdisjoint(names))
            and (not self.zdr or kind.zdr)
            and (self.region is None or self.region == kind.region)
        )


class Shown(NamedTuple):
    """A model and the offer that it is shown with."""

    entry: Entry
    offer: Offer


class Sight:
    """The catalogue as one policy leaves it, with the private endpoints of an organization if any.

    A model is shown with the cheapest public offer, and only without any with the organization's
    own, because a list shows list prices.
    """

    def __init__(
        self, catalogue: Catalogue, policy: Policy, *, organization_id: UUID | None = None
    ) -> None:
        self._entries = catalogue.entries
        self._policy = policy
        self._kinds = list(catalogue.kinds)
        self._own: dict[str, list[Offer]] = {}
        if organization_id is not None:
            self._read_own(organization_id)
        self._admitted = admitted_kinds(self._kinds, policy)

    def find(self, model_id: UUID) -> Shown | None:
        """Returns a model with its offer; ``None`` where the policy leaves none."""
        entry = self._entries.get(model_id)
        if entry is None or not admits_model(entry.names, self._policy):
            return None
        offer = _first(self._offers(entry), self._admitted)
        return None if offer is None else Shown(entry, offer)

    def select(self, wanted: Wanted, *, sort: str | None = None) -> list[Shown]:
        """Returns the models that are served and wanted, in order.

        Without ``sort``, newest first. What cannot be ranked goes last, in that same order: a model
        without traffic or context length, and, since the catalogue records no benchmarks, every
        model in an order by one. Popularity, throughput and latency are those of public endpoints.
        """
        found = [] if wanted.is_unknown else self._served(wanted)
        if not (price := wanted.prompt_price).is_open:
            found = [shown for shown in found if price.admits(shown.offer.prompt)]
        if not (price := wanted.completion_price).is_open:
            found = [shown for shown in found if price.admits(shown.offer.completion)]
        if (order := self._order(sort)) is None:
            return found
        rank, is_descending = order
        ranks = [(rank(shown), shown) for shown in found]
        ranked = [pair for pair in ranks if pair[0] is not None]
        ranked.sort(key=itemgetter(0), reverse=is_descending)
        last = [shown for value, shown in ranks if value is None]
        return [*(shown for _, shown in ranked), *last]

    def _served(self, wanted: Wanted) -> list[Shown]:
        """Returns the models that one admitted endpoint has everything of that is asked of one."""
        entries: Iterable[Entry] = self._entries.values()
        if self._policy.models is not None or self._policy.ignored_models:
            entries = [entry for entry in entries if admits_model(entry.names, self._policy)]
        for condition in wanted.models:
            entries = [entry for entry in entries if condition(entry)]
        admitted = self._admitted
        suiting = frozenset(place for place in admitted if wanted.suits(self._kinds[place]))
        is_narrower = suiting != admitted
        found = []
        for entry in entries:
            offers = self._offers(entry)
            offer = _first(offers, admitted)
            if offer is None or (is_narrower and _first(offers, suiting) is None):
                continue
            found.append(Shown(entry, offer))
        return found

    def _offers(self, entry: Entry) -> Sequence[Offer]:
        """Returns every offer for a model, admitted or not: the public ones, then its own."""
        own = self._own.get(entry.slug)
        return entry.offers if own is None else (*entry.offers, *own)

    def _read_own(self, organization_id: UUID) -> None:
        """Reads the organization's active endpoints, each judged by its own declarations."""
        rows = (
            PrivateEndpoint.objects.for_organization(organization_id)
            .routable()
            .values_list(
                "model_id", "pk", "provider__slug", "provider_name", "declared_zdr",
                "declared_region", *_PRICE,
            )
        )  # fmt: skip
        for model_id, pk, provider, display, zdr, region, *rates in rows:
            entry = self._entries.get(model_id)
            if entry is None:
                continue
            facts = EndpointFacts(
                provider, display, bool(zdr), False, entry.slug, entry.permaslug, region
            )
            offer = _offer(pk, len(self._kinds), Price(*rates), entry.context_length)
            self._kinds.append(facts.kind)
            self._own.setdefault(entry.slug, []).append(offer)

    def _order(self, sort: str | None) -> tuple[Callable[[Shown], Any], bool] | None:
        """Returns a model's rank, ``None`` for last, and whether the highest is first.

        Returns nothing for the order as it is.
        """
        match sort:
            case "pricing-low-to-high":
                return lambda shown: shown.offer.cost, False
            case "pricing-high-to-low":
                return lambda shown: shown.offer.cost, True
            case "context-high-to-low":
                return lambda shown: shown.entry.context_length, True
            case "most-popular" | "top-weekly":
                tokens = traffic.tokens_last_week()
                return lambda shown: tokens.get(shown.entry.pk), True
            case "throughput-high-to-low":
                medians = self._medians("throughput")
                return lambda shown: max(medians(shown), default=None), True
            case "latency-low-to-high":
                medians = self._medians("latency")
                return lambda shown: min(medians(shown), default=None), False
            case _:
                return None

    def _medians(self, measure: Literal["latency", "throughput"]) -> Callable[[Shown], list[float]]:
        """Returns how to get the medians of a model's endpoints, of those that have one."""
        figures = traffic.figures()

        def medians(shown: Shown) -> list[float]:
            return [
                percentiles["p50"]
                for offer in self._offers(shown.entry)
                if offer.kind in self._admitted
                and (found := figures.get(offer.endpoint_id)) is not None
                and (percentiles := getattr(found, measure)) is not None
            ]

        return medians


def _first(offers: Sequence[Offer], kinds: Set[int]) -> Offer | None:
    for offer in offers:
        if offer.kind in kinds:
            return offer
    return None


def resolve(author: str, slug: str) -> LanguageModel:
    """Returns the model that a public or canonical slug names, with or without a variant suffix.

    A model whose own name ends like a variant comes first. Raises :class:`ModelNotFound`.
    """
    name = f"{author}/{slug}"
    names = list(dict.fromkeys((name, split_variant(name)[0])))
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
