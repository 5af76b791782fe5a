"""Endpoints, credentials, and the candidates that combine the two; pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

import msgspec

from accounts.hosts import NO_LIMITS, HostLimits
from accounts.policy import Fallback
from catalog import dialects
from catalog.abilities import NO_POOL, UNSTATED, Abilities, PoolRouting
from catalog.aliases.resolution import NO_ALIASES, Alias, AliasTable
from catalog.aliases.spellings import NO_NAMES, NameIndex
from catalog.capabilities import UNDESCRIBED, Capabilities, read_capabilities
from catalog.dialects.base import NativeBody, Operation
from catalog.dialects.shared.searches import SEARCH_FIELDS, SEARCH_SETTINGS, SearchForm
from catalog.pricing import Billable, Price
from catalog.tokens import (
    UNKNOWN_FAMILY,
    UNSTATED_LIMITS,
    TokenizerFamily,
    TokenLimits,
    find_family,
)
from catalog.visibility import EndpointFacts
from config.credentials import NO_SECRET, Secret
from config.egress.addresses import NO_REACH, Reach
from config.egress.rules import NO_OWN_LIMITS, TimeLimits
from inference.requests.operations.completions import EFFORTS
from inference.requests.operations.server_tools import NO_TOOLS
from inference.requests.parsing import InferenceRequest
from inference.routing.health import Health, HealthState
from inference.routing.pacing import Pace

# The name of the lifetime of a cached prefix that the provider is not told of.
LIFETIME: Final = "cache_control.ttl"
# The fields that say how long a model may think.
_THOUGHTS: Final = EFFORTS | {"thinking_budget"}
# Messages may say it, too.
_TOLD: Final = _THOUGHTS | {"messages"}
# Regions that name no place. The region that a credential declares replaces them.
_UNPLACED_REGIONS: Final = (None, "global")
_PLACED_REGIONS: Final = ("europe", "us")


class FirstUse(NamedTuple):
    """The use of a credential that was never used: it binds the credential to the host's domain."""

    credential_id: uuid.UUID
    host: str
    own_hosts: frozenset[str]


class Target(Protocol):
    """The facts about an endpoint that decide who can pay for its calls; a route has them."""

    @property
    def is_private(self) -> bool: ...
    @property
    def facts(self) -> EndpointFacts: ...
    @property
    def host(self) -> str: ...
    @property
    def model_slug(self) -> str: ...
    @property
    def model_permaslug(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Credential:
    """An organization's own credential at a provider, decrypted.

    ``secret`` is ``None`` when it cannot be decrypted. ``limits`` say where it may be sent.
    ``host`` is the host that the credential itself names, if it names one. ``declared_region`` and
    ``declared_zdr`` are its owner's statements about the provider account; ``None`` means that the
    endpoint's facts apply.
    """

    credential_id: uuid.UUID
    provider_slug: str
    workspace_id: uuid.UUID | None
    secret: Secret | None
    is_fallback: bool
    is_required: bool
    is_byok_only: bool
    allowed_models: frozenset[str] | None
    allowed_key_digests: frozenset[str] | None
    limits: HostLimits = NO_LIMITS
    host: str | None = None
    allowed_members: frozenset[str] | None = None
    declared_region: str | None = None
    declared_zdr: bool | None = None
    version: int = 1

    def may_call_model_of(self, target: Target) -> bool:
        """Returns whether the credential may be used for the endpoint's model."""
        return self.allowed_models is None or not self.allowed_models.isdisjoint(
            (target.model_slug, target.model_permaslug)
        )

    def may_travel_to(self, target: Target) -> bool:
        """Returns whether the credential may be sent to the endpoint's host."""
        return self.limits.permits(self.host or target.host)

    def first_use_at(self, route: Route) -> FirstUse | None:
        """Returns the use that binds the credential if it is sent to the route's host."""
        if not self.limits.is_open:
            return None
        return FirstUse(self.credential_id, self.host or route.host, self.limits.own_hosts)

    def may_be_used_by(
        self, workspace_id: uuid.UUID, key_digest: str, member_id: uuid.UUID | None
    ) -> bool:
        """Returns whether a key of the workspace, made by the member, may use the credential."""
        return (
            self.workspace_id in (None, workspace_id)
            and (self.allowed_key_digests is None or key_digest in self.allowed_key_digests)
            and (
                self.allowed_members is None
                or (member_id is not None and str(member_id) in self.allowed_members)
            )
        )

    def facts_of(self, target: Target) -> EndpointFacts:
        """Returns the facts by which a policy judges the endpoint when this credential is used.

        A private endpoint has its own declaration, which a credential can only tighten. An endpoint
        that is tied to a region stays in that region.
        """
        facts = target.facts
        zdr = facts.zdr if self.declared_zdr is None else self.declared_zdr
        region = facts.region
        if target.is_private:
            zdr = zdr and facts.zdr
        elif self.declared_region in _PLACED_REGIONS and region in _UNPLACED_REGIONS:
            region = self.declared_region
        if zdr == facts.zdr and region == facts.region:
            return facts
        return replace(facts, zdr=zdr, region=region)


@dataclass(frozen=True, slots=True)
class Route:
    """A public endpoint of the catalogue or an organization's private endpoint.

    ``secret`` is the operator's credential; ``None`` where the operator has none, and for private
    endpoints, unless their provider is keyless. ``dialect`` is ``None`` when this release does not
    speak it, or when the endpoint has no address. Without a ``base_url`` the credential names the
    host.
    ``inputs`` and ``outputs`` are the modalities of its model, empty if they are not known.
    ``listed_parameters`` are the endpoint's own list, if it has one. ``supported_parameters``
    are that list, with both names of the reasoning effort where it has either. ``abilities`` are
    what the endpoint states beside its columns; of a private endpoint they are its
    :class:`catalog.abilities.EndpointSettings`, and ``pool`` is its place among the others of its
    model. ``limits`` bound the tokens of a request, and ``family`` tells what the model's tokenizer
    makes of text. ``drifted_at`` is when a private endpoint was first seen to answer otherwise than
    it was validated.
    """

    endpoint_id: uuid.UUID
    is_private: bool
    model_slug: str
    model_permaslug: str
    facts: EndpointFacts
    dialect: str | None
    base_url: str | None
    host: str
    upstream_model_id: str
    price_id: int
    price: Price
    operations: frozenset[Operation] = frozenset(Operation)
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    secret: Secret | None = None
    pace: Pace | None = None
    attestation_id: int | None = None
    quantization: str = "unknown"
    supported_parameters: frozenset[str] | None = None
    offered_parameters: frozenset[str] | None = None
    disproved_parameters: frozenset[str] = frozenset()
    listed_parameters: frozenset[str] | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None
    capabilities: Capabilities = UNDESCRIBED
    abilities: Abilities = UNSTATED
    pool: PoolRouting = NO_POOL
    limits: TokenLimits = UNSTATED_LIMITS
    family: TokenizerFamily = UNKNOWN_FAMILY
    time_limits: TimeLimits = NO_OWN_LIMITS
    reach: Reach = NO_REACH
    drifted_at: datetime | None = None
    # Whether the provider serves the model in OpenAI's Responses alone.
    lacks_chat: bool = field(init=False, repr=False, compare=False)
    # The parameters of chat that the dialect never sends.
    unsent_parameters: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lacks_chat = dialects.lacks_chat(self.dialect, self.capabilities)
        object.__setattr__(self, "lacks_chat", lacks_chat)
        unsent = dialects.unsent_parameters(self.dialect, self.capabilities)
        object.__setattr__(self, "unsent_parameters", unsent)

    @property
    def names(self) -> tuple[str, str]:
        """The slugs of the model and of its provider, for people who run the service."""
        return self.model_slug, self.facts.provider_slug

    def describe_drift(self) -> dict[str, str]:
        """Returns since when the endpoint has drifted, in UTC; nothing if it has not."""
        if self.drifted_at is None:
            return {}
        return {"drifted_at": f"{self.drifted_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}

    @property
    def has_search_rate(self) -> bool:
        """Whether a search of the web has a rate: one of its own, or a fee for each request.

        Models that always search are sold with a fee for each request.
        """
        lists_search = not SEARCH_FIELDS.isdisjoint(self.listed_parameters or ())
        return self.price.has_search_rate or (lists_search and bool(self.price.request))

    @property
    def has_long_cache_rate(self) -> bool:
        """Whether a token has a rate of its own that is written to a cache for an hour."""
        return self.price.has_rate(Billable.CACHED, "write_1h")

    @property
    def has_server_tools(self) -> bool:
        """Whether a request of chat can ask the provider to run any tool."""
        return dialects.has_server_tools(self.dialect, self.capabilities)

    @property
    def search_form(self) -> SearchForm:
        """Returns the way in which a request of chat asks the provider to search the web."""
        return dialects.search_form(self.dialect, self.capabilities, self.listed_parameters)

    def speaks(self, native: NativeBody) -> bool:
        """Returns whether the endpoint serves a request in its caller's own format."""
        return dialects.speaks(self.dialect, self.capabilities, native)

    def drops_thinking(self, request: InferenceRequest) -> bool:
        """Returns whether the endpoint is not told of the thinking that a request asks for."""
        if EFFORTS.isdisjoint(request.fields):
            return False
        if request.native is not None and self.speaks(request.native):
            return False
        return not dialects.tells_thinking(
            self.dialect, self.capabilities, self.abilities, self.listed_parameters, request.fields
        )

    @property
    def provider_names(self) -> tuple[str, str]:
        """The provider's slug and display name in lower case: a request may use either."""
        return self.facts.provider_slug.lower(), self.facts.provider_name.lower()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A route and the credential with which to call it.

    ``subject`` is the id under which the health of the two together is kept. ``options`` are the
    fields of ``provider.options`` for this provider: they join the request's own fields.
    ``first_use`` is recorded once the upstream has accepted the secret. ``credential_id`` is that
    of an organization's own credential, and ``rest`` the id under which its rest is kept; ``None``
    means the operator's.
    """

    route: Route
    secret: Secret
    is_byok: bool
    subject: uuid.UUID
    options: Mapping[str, msgspec.Raw] | None = None
    first_use: FirstUse | None = None
    credential_id: uuid.UUID | None = None
    rest: uuid.UUID | None = None

    def find_unpriced(self, request: InferenceRequest) -> frozenset[str]:
        """Returns the tools that the provider is not asked to run.

        Its format cannot express them, fields of an account among them, or it would run them
        without a rate at the operator's cost. An own credential pays the provider itself. A format
        that sends the fields as they are sends those alone that the endpoint lists.
        """
        tools = request.server_tools
        if tools is NO_TOOLS:
            return frozenset()
        listed = self.route.supported_parameters
        form = self.route.search_form
        unsaid = tools.unlisted(listed) if form.passes_fields else frozenset()
        if self.native_of(request) is None:
            unsaid |= tools.unsaid(form)
            if not self.route.has_server_tools:
                unsaid |= tools.others | tools.listed
        if self.is_byok:
            return unsaid
        rated = self.route.has_search_rate
        return unsaid | tools.unpriced(has_search_rate=rated, listed=listed)

    def is_told(self, request: InferenceRequest, name: str) -> bool:
        """Returns whether the provider is sent a parameter that the request has."""
        known = self.route.supported_parameters
        return known is None or name in known or self.native_of(request) is not None

    def find_dearer(self, request: InferenceRequest) -> frozenset[str]:
        """Returns the settings that the provider is not told of.

        They would change its price at the operator's cost, or its format has no word for them.
        """
        tools = request.server_tools
        if not tools.dearer:
            return frozenset()
        found = frozenset[str]()
        if not self.is_byok:
            found = tools.dearer.difference(self.route.supported_parameters or ())
        if not self.route.search_form.passes_fields:
            found |= tools.dearer & SEARCH_SETTINGS
        # Without a search there are no settings of one that could be left out.
        return found if self.may_search(request) else found - SEARCH_SETTINGS

    def may_search(self, request: InferenceRequest) -> bool:
        """Returns whether the provider is asked for any of the searches that a request wants."""
        return not request.server_tools.searches <= self.find_unpriced(request)

    def count_result_tokens(self, request: InferenceRequest) -> int:
        """Returns the most tokens that the results of searches add to a prompt of chat.

        The bound of a request in its caller's own format has them already.
        """
        most = self.route.search_form.result_tokens
        if not most or self.native_of(request) is not None:
            return 0
        return most * request.allowed.searches

    def find_thinking_budget(self, request: InferenceRequest) -> int | None:
        """Returns the most tokens of a thought that the provider is told of.

        ``None`` means that it is told of no number, or perhaps of another one: by an option of the
        provider, or in the caller's own format.
        """
        if not _THOUGHTS.isdisjoint(self.options or ()) or self.native_of(request) is not None:
            return None
        fields = request.fields
        told = {name: fields[name] for name in _TOLD & fields.keys()}
        for name in EFFORTS & told.keys():
            if not self.is_told(request, name):
                del told[name]
        route = self.route
        return dialects.find_thinking_budget(
            route.dialect, route.capabilities, route.abilities, route.listed_parameters, told
        )

    def shortens_caches(self, request: InferenceRequest) -> bool:
        """Returns whether cached prefixes stay for minutes, because an hour has no rate."""
        if not request.has_long_cache or self.is_byok:
            return False
        return not self.route.has_long_cache_rate

    def native_of(self, request: InferenceRequest) -> NativeBody | None:
        """Returns the request in its caller's own format, if the endpoint speaks that."""
        native = request.native
        return native if native is not None and self.route.speaks(native) else None

    def name_left_out(
        self, request: InferenceRequest, lost: frozenset[str] = frozenset()
    ) -> list[str]:
        """Returns what the request offers or prefers, and the provider is not told of.

        ``lost`` are the fields of its call that are not sent. The names are the caller's.
        """
        names = self.find_unpriced(request) | self.find_dearer(request)
        if self.route.drops_thinking(request):
            names |= EFFORTS.intersection(request.fields)
        if request.has_long_cache and self.shortens_caches(request):
            names |= {LIFETIME}
        native = self.native_of(request)
        if native is not None:
            names |= native.beside.get(self.route.dialect or "", frozenset())
            if not self.is_byok:
                names |= native.foreign
        options = self.options or {}
        names |= {f"provider.options.{name}" if name in options else name for name in lost}
        left_out = request.left_out if native is None else native.left_out
        told = {request.words.get(name, name) for name in names}
        return [*left_out, *sorted(told.difference(left_out))]

    @property
    def pace(self) -> Pace | None:
        """The limits of the account that the candidate uses, if it is the operator's."""
        return None if self.is_byok else self.route.pace

    @property
    def measured_subject(self) -> uuid.UUID:
        """The id under which latency and throughput are kept: that of the endpoint, for all payers.

        If the credential names the host, it is the id of endpoint and credential together.
        """
        is_elsewhere = self.is_byok and self.route.base_url is None
        return self.subject if is_elsewhere else self.route.endpoint_id

    def health(self, health_of: Callable[[uuid.UUID], Health]) -> Health:
        """Returns the state of the candidate's subject with the measures of its endpoint."""
        if not self.is_byok:
            return health_of(self.route.endpoint_id)
        own, measured = health_of(self.subject), health_of(self.measured_subject)
        state = self.rest_state(health_of) or own.state
        return Health(state, own.failure_share, measured.latency, measured.throughput)

    def rest_state(self, health_of: Callable[[uuid.UUID], Health]) -> HealthState | None:
        """Returns the state of a refused credential: open while it rests, and half-open then."""
        if self.rest is None or (state := health_of(self.rest).state) is HealthState.HEALTHY:
            return None
        return HealthState.HALF_OPEN if state is HealthState.HALF_OPEN else HealthState.OPEN


@dataclass(frozen=True, slots=True)
class CatalogProvider:
    """A provider of the catalogue. ``secret`` is the operator's credential, if it can be used.

    A keyless one has ``NO_SECRET``. ``pace`` has the limits of the operator's account, if any are
    known, and ``reach`` what connections may reach besides the public internet. ``is_own`` marks
    one that an organization registered for itself.
    """

    provider_id: uuid.UUID
    slug: str
    name: str
    dialect: str
    base_url: str | None
    trains_on_prompts: bool
    is_listed: bool
    secret: Secret | None
    pace: Pace | None = None
    reach: Reach = NO_REACH
    is_own: bool = False

    @property
    def is_keyless(self) -> bool:
        return self.secret == NO_SECRET


class CatalogModel(NamedTuple):
    """A model of the catalogue: a row of ``read_models.sql``; or one of an organization's own."""

    model_id: uuid.UUID
    slug: str
    permaslug: str
    context_length: int | None
    input_modalities: Sequence[str]
    output_modalities: Sequence[str]
    supported_parameters: Sequence[str]
    is_listed: bool
    native_format: str
    thinking: str
    thinks_between_tools: bool
    combines_sampling: bool
    created: int = 0
    tokenizer: str | None = None
    base_model: str = ""

    @property
    def family(self) -> TokenizerFamily:
        return find_family(self.tokenizer, self.base_model or self.slug)

    @property
    def capabilities(self) -> Capabilities:
        return read_capabilities(
            self.native_format,
            self.thinking,
            self.thinks_between_tools,
            self.combines_sampling,
            (self.base_model or self.slug).partition("/")[0],
        )


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """The public catalogue at one version: routes by the slug of their model.

    ``slugs`` maps every name of a listed model to its slug, and ``names`` has their other
    spellings. ``aliases`` are those of the operator, which ``alias_rows`` has by their id. A patch
    makes a new snapshot, which shares each mapping that it does not change with the old one.
    ``is_whole`` says that this one was read as a whole.
    """

    version: int
    routes: Mapping[str, tuple[Route, ...]]
    slugs: Mapping[str, str]
    models: Mapping[uuid.UUID, CatalogModel] = field(default_factory=dict)
    providers: Mapping[uuid.UUID, CatalogProvider] = field(default_factory=dict)
    names: NameIndex = NO_NAMES
    alias_rows: Mapping[uuid.UUID, Alias] = field(default_factory=dict)
    aliases: AliasTable = NO_ALIASES
    is_whole: bool = field(default=True, compare=False)

    def family_of(self, models: Sequence[str]) -> TokenizerFamily:
        """Returns the family of the first model that has public endpoints; of another, unknown."""
        for name in models:
            if routes := self.routes.get(self.slugs.get(name, "")):
                return routes[0].family
        return UNKNOWN_FAMILY


class PrivateModel(NamedTuple):
    """A model that is private for an organization, because it has an endpoint of it, or had one.

    ``provider_names`` are the slugs and names of its public providers, in lower case, and
    ``fallback`` is the strictest level that its endpoints set; ``None`` if none of them sets any.
    """

    provider_names: frozenset[str]
    fallback: Fallback | None = None


@dataclass(frozen=True, slots=True)
class OrganizationSnapshot:
    """The credentials and aliases of an organization, and its endpoints by the slug of their model.

    ``version`` is that of the organization. ``private_models`` has more models than ``routes``:
    those whose endpoints are disabled or deleted, until their owner releases them, and those of the
    organization's own. ``gone_slugs`` are those of them that are not listed. ``slugs`` has the
    slugs of own and of gone models by their names, and ``names`` their other spellings.
    ``own_slugs`` and ``provider_slugs`` are those of the organization's own models and providers:
    they mean none of the catalogue. Nor do ``provider_names``, in lower case, which are those of
    deleted providers too whose endpoints keep a model private. ``has_pools`` says that requests in
    flight are counted at any of its endpoints.
    """

    version: int
    routes: Mapping[str, tuple[Route, ...]]
    credentials: tuple[Credential, ...]
    aliases: AliasTable = NO_ALIASES
    private_models: Mapping[str, PrivateModel] = field(default_factory=dict)
    gone_slugs: frozenset[str] = frozenset()
    slugs: dict[str, str] = field(default_factory=dict)
    names: NameIndex = NO_NAMES
    own_slugs: frozenset[str] = frozenset()
    provider_slugs: frozenset[str] = frozenset()
    provider_names: frozenset[str] = frozenset()
    has_pools: bool = False


@dataclass(frozen=True, slots=True)
class RoutingDefaults:
    """The settings of a workspace for fields that a request omits."""

    text_model: str | None = None
    provider_sort: str | None = None
    image_model: str | None = None


NO_DEFAULTS: Final = RoutingDefaults()
