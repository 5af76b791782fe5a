"""Drafts of private endpoints: references to the catalogue, base URLs and prices."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Protocol

from django.conf import settings

from accounts.models import Organization
from accounts.models.edits import refusal
from catalog import dialects
from catalog.aliases.names import ModelNotFound
from catalog.models import DialectName, LanguageModel, ModelEndpoint, Provider
from catalog.operations import served_operations
from catalog.pricing import Price, dump_rules, scale_rate
from config.api.errors import GatewayError, NotFound, Unprocessable
from config.api.idempotency import fingerprint_of
from config.api.text import CONTROL_CHARACTERS, INVISIBLE, plain_digits
from config.egress.addresses import InvalidURL, parse_base_url
from config.egress.rules import NO_OWN_LIMITS, TimeLimits
from endpoints.models.own_models import NewModel
from endpoints.models.settings import apply_settings, check_settings, copy_settings, require_tools

_PRICE: Final = (
    "prompt", "completion", "cache_read", "cache_write", "image", "request", "image_output",
    "discount",
)  # fmt: skip
# The column of a rate holds only smaller values.
_RATE_BOUND: Final = 1_000_000


class InvalidBaseURL(Unprocessable):
    """The ``base_url`` is missing, superfluous, or refused by the egress policy."""

    error_type = "invalid_base_url"


class OperationNotServed(Unprocessable):
    """No route of this gateway asks the provider for what the model produces."""

    error_type = "operation_not_supported"


class InvalidRates(Unprocessable):
    """The rates of a price cannot be stored."""

    error_type = "pricing_invalid"


class ProviderNotFound(NotFound):
    error_type = "provider_not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The fields of a draft to create.

    ``base_url`` is canonical. No ``price`` means the list price. ``settings`` change those that the
    draft copies. With a ``model``, the organization's own model of that slug is made too.
    """

    model_permaslug: str
    provider_slug: str
    upstream_model_id: str
    base_url: str | None
    declared_region: str | None = None
    declared_zdr: bool | None = None
    price: Price | None = None
    time_limits: TimeLimits = NO_OWN_LIMITS
    fallback: str | None = None
    settings: Mapping[str, Any] | None = None
    declared_parameters: Sequence[str] = ()
    model: NewModel | None = None

    @property
    def fingerprint(self) -> str:
        """Returns the digest by which a repeated request is compared with the first one.

        Settings and the members of a new model are not compared.
        """
        return fingerprint_of(
            self.model_permaslug,
            self.provider_slug,
            self.base_url,
            self.upstream_model_id,
            self.declared_zdr,
            self.declared_region,
            _price_text(self.price),
            sorted(self.time_limits.stated().items()),
            sorted(set(self.declared_parameters)),
        )

    def check(self) -> None:
        """Raises :class:`InvalidRequest` for a wrong member of a new endpoint."""
        self.check_alone()
        require_tools(self.declared_parameters)

    def check_alone(self) -> None:
        """Raises :class:`InvalidRequest` for a member that is wrong for every endpoint."""
        require_text("upstream_model_id", self.upstream_model_id)
        if self.model is not None:
            require_text("model.name", self.model.name)
        check_settings(self.settings or {})

    def settings_of(
        self, model: LanguageModel, public: Sequence[ModelEndpoint], provider: UpstreamProvider
    ) -> dict[str, Any]:
        """Returns what the settings of the new endpoint state; raises :class:`InvalidSettings`."""
        copied = copy_settings(model, find_public(public, provider))
        return apply_settings(copied, self.settings or {}, model=model)

    def find_refusal(
        self,
        model: LanguageModel,
        provider: UpstreamProvider,
        public: Mapping[str, list[ModelEndpoint]],
    ) -> GatewayError | None:
        """Returns the error that refuses the members of the draft, if there is one."""
        try:
            self.check()
            self.settings_of(model, endpoints_among(public, model), provider)
        except GatewayError as exc:
            return exc
        return None

    def find_price(
        self,
        model: LanguageModel,
        provider: UpstreamProvider,
        public: Mapping[str, list[ModelEndpoint]],
    ) -> Price:
        """Returns the price of the new endpoint, before cache rates are derived."""
        if self.price is not None:
            return self.price
        return list_price(endpoints_among(public, model), provider)


class UpstreamProvider(Protocol):
    """A provider of the catalogue, or one of an organization's own."""

    pk: Any
    slug: str
    name: str
    base_url: str | None
    is_keyless: bool

    @property
    def dialect(self) -> str: ...

    @property
    def is_listed(self) -> bool: ...

    def own_hosts(self, named: str = "") -> frozenset[str]: ...


Reference = tuple[LanguageModel, UpstreamProvider]


def find_references(
    drafts: Sequence[Draft],
    organization_id: uuid.UUID,
    own: Mapping[str, UpstreamProvider],
    made: Mapping[str, LanguageModel | GatewayError],
) -> list[Reference | GatewayError]:
    """Returns the model and the provider of each draft, or the error that refuses the draft.

    ``own`` are the organization's own providers by their slugs; they come before the catalogue's,
    which may have got a provider of the same slug later. So do its models; ``made`` are new ones.
    """
    visible = LanguageModel.objects.visible_to(organization_id).listed()
    models = visible.filter(canonical_slug__in={draft.model_permaslug for draft in drafts})
    providers = Provider.objects.filter(
        slug__in={draft.provider_slug for draft in drafts}, is_listed=True
    )
    model_of = {**{model.canonical_slug: model for model in models}, **made}
    provider_of: dict[str, UpstreamProvider] = {**{each.slug: each for each in providers}, **own}
    permanent = _find_permanent_slugs(
        draft.model_permaslug for draft in drafts if draft.model_permaslug not in model_of
    )
    found: list[Reference | GatewayError] = []
    for draft in drafts:
        model = model_of.get(draft.model_permaslug)
        provider = provider_of.get(draft.provider_slug)
        if model is None:
            found.append(_explain_unknown_model(draft.model_permaslug, permanent))
        elif isinstance(model, GatewayError):
            found.append(model)
        elif provider is None:
            found.append(
                ProviderNotFound(f"There is no provider {draft.provider_slug!r} in the catalogue.")
            )
        elif refusal := (
            _refusal_of_base_url(draft.base_url, provider) or refusal_of_operation(model, provider)
        ):
            found.append(refusal)
        else:
            found.append((model, provider))
    return found


def _find_permanent_slugs(names: Iterable[str]) -> dict[str, str]:
    """Returns the permanent slugs of the listed models that have these names as their slugs."""
    if not (slugs := set(names)):
        return {}
    models = LanguageModel.objects.listed().filter(slug__in=slugs)
    return dict(models.values_list("slug", "canonical_slug"))


def _explain_unknown_model(name: str, permanent: Mapping[str, str]) -> ModelNotFound:
    if name in permanent:
        return ModelNotFound(
            f"model_permaslug: The permanent slug of {name!r} is {permanent[name]!r}."
        )
    return ModelNotFound(f"There is no model {name!r} in the catalogue.")


def canonical_base_url(text: str | None, organization_id: uuid.UUID) -> str | None:
    """Returns the canonical spelling of a URL; raises :class:`InvalidBaseURL`.

    Only canonical URLs are stored, compared and connected to. The organization is read only for an
    address that is not allowed to everybody.
    """
    if text is None:
        return None
    try:
        return parse_base_url(text, policy=settings.EGRESS_POLICY).text
    except InvalidURL as exc:
        reach = Organization.objects.get(pk=organization_id).reach
        try:
            return parse_base_url(text, policy=settings.EGRESS_POLICY.extend(reach)).text
        except InvalidURL:
            raise InvalidBaseURL(f"invalid_base_url: {exc}") from None


def require_text(field: str, text: str) -> None:
    """Raises the error that names a field for a text that is not seen as it is."""
    if CONTROL_CHARACTERS.search(text) or INVISIBLE.fullmatch(text):
        raise refusal(field, "Must be visible text without control characters.")


def require_base_url(base_url: str | None, provider: UpstreamProvider) -> None:
    """Raises :class:`InvalidBaseURL` when the provider needs a URL and has none, or vice versa."""
    if refusal := _refusal_of_base_url(base_url, provider):
        raise refusal


def _refusal_of_base_url(base_url: str | None, provider: UpstreamProvider) -> InvalidBaseURL | None:
    if DialectName(provider.dialect).has_url_in_credential:
        if base_url is None:
            return None
        return InvalidBaseURL(
            f"invalid_base_url: {provider.name} takes its URL from the credential; "
            "leave base_url out."
        )
    if base_url is None and (isinstance(provider, Provider) or provider.base_url is None):
        return InvalidBaseURL(f"invalid_base_url: base_url is required for {provider.name}.")
    return None


def refusal_of_operation(
    model: LanguageModel, provider: UpstreamProvider
) -> OperationNotServed | None:
    """Returns the error that refuses a model whose output no route can ask this provider for."""
    if (problem := dialects.describe_missing_extra(provider.dialect)) is not None:
        return OperationNotServed(f"operation_not_supported: {problem}")
    dialect = dialects.get(provider.dialect, model.capabilities)
    if dialect is None or served_operations(model.output_modalities, dialect):
        return None
    outputs = ", ".join(model.output_modalities)
    return OperationNotServed(
        f"operation_not_supported: {model.slug} produces {outputs}, and no route asks "
        f"{provider.name} for that."
    )


def find_public(
    public: Sequence[ModelEndpoint], provider: UpstreamProvider
) -> ModelEndpoint | None:
    """Returns the provider's cheapest endpoint among a model's public ones, if it has any."""
    own = [endpoint for endpoint in public if endpoint.provider_id == provider.pk]
    return min(own, key=_cost_of, default=None)


def list_price(public: Sequence[ModelEndpoint], provider: UpstreamProvider) -> Price:
    """Returns the provider's price among a model's public endpoints.

    A provider without one gets the cheapest price, and a model without public endpoints is free.
    """
    found = find_public(public, provider) or min(public, key=_cost_of, default=None)
    return Price(prompt=Decimal(0), completion=Decimal(0)) if found is None else found.price.price


def _cost_of(endpoint: ModelEndpoint) -> Decimal:
    price = endpoint.price.price
    return price.net("prompt") + price.net("completion")


def with_cache_rates(
    price: Price, public: Sequence[ModelEndpoint], provider: UpstreamProvider
) -> Price:
    """Returns the price with missing cache rates derived from the provider's public price.

    The ratio of cache rate to prompt rate is that of the public price. A rate that the public price
    lacks stays missing. Raises :class:`InvalidRates` for a rate that its column cannot hold.
    """
    own = [endpoint for endpoint in public if endpoint.provider_id == provider.pk]
    listed = list_price(own, provider)
    rates: dict[str, Any] = {}
    for name in ("cache_read", "cache_write"):
        rate = getattr(listed, name)
        if rate is None or not listed.prompt or getattr(price, name) is not None:
            continue
        rates[name] = scale_rate(rate, base=listed.prompt, new_base=price.prompt)
        if rates[name] >= _RATE_BOUND:
            raise InvalidRates(
                f"pricing_invalid: pricing.{name}: the rate derived from the provider's public "
                f"price must be below {_RATE_BOUND}; send the rate explicitly."
            )
    return replace(price, **rates)


def public_endpoints(permaslugs: Iterable[str]) -> Mapping[str, list[ModelEndpoint]]:
    """Returns the routable public endpoints of models, with their prices, by canonical slug."""
    public: defaultdict[str, list[ModelEndpoint]] = defaultdict(list)
    slugs = set(permaslugs)
    if slugs:
        for endpoint in (
            ModelEndpoint.objects.routable()
            .filter(model__canonical_slug__in=slugs)
            .select_related("model", "price")
        ):
            public[endpoint.model.canonical_slug].append(endpoint)
    return public


def endpoints_among(
    public: Mapping[str, list[ModelEndpoint]], model: LanguageModel
) -> Sequence[ModelEndpoint]:
    """Returns the public endpoints of a model; an own model has none, whatever its name."""
    return public[model.canonical_slug] if model.organization_id is None else ()


def _price_text(price: Price | None) -> list[Any] | None:
    if price is None:
        return None
    rates = (getattr(price, name) for name in _PRICE)
    return [
        *(None if rate is None else plain_digits(rate) for rate in rates),
        dump_rules(price.rules),
    ]
