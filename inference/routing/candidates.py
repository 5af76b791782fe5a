"""From a request to the candidates that may serve it, in order; pure."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

import msgspec

from accounts.policy import Policy
from catalog.dialects.base import Operation
from catalog.pricing import Price
from catalog.visibility import EndpointFacts, exclusions
from config.api.errors import Forbidden, NotFound
from config.secrets import Secret
from endpoints.models import ModelNotFound
from inference.requests.schemas import (
    BOUNDS,
    InferenceRequest,
    MaxPrice,
    Percentiles,
    ProviderPreferences,
    Sorting,
    required,
)
from inference.routing.health import UNKNOWN, Standing, State, subject_of

# What a request may append to a model's name; it says how to route, not which model.
VARIANTS: Final = frozenset(
    ("free", "extended", "beta", "thinking", "online", "nitro", "floor", "exacto")
)
_SORTS: Final = {"nitro": "throughput", "floor": "price", "exacto": "exacto"}
_MILLION: Final = Decimal(1_000_000)
# The sum of two prices of 36 digits must not be rounded.
_EXACT: Final = Context(prec=80)
# Regions that say nothing of where: a credential may say it instead.
_ANYWHERE: Final = (None, "global")
_REGIONAL: Final = ("europe", "us")
_DOWN: Final = 2
_TIERS: Final = {
    State.HEALTHY: 0,
    State.HALF_OPEN: 0,
    State.DEGRADED: 1,
    State.RATE_LIMITED: _DOWN,
    State.OPEN: _DOWN,
}
_MILLISECONDS: Final = 1000
# One more than the numbers of eight bytes, for a draw above nothing.
_NUMBERS: Final = 2**64 + 1


class Unusable(StrEnum):
    """Why an endpoint that the policy admits cannot be used all the same."""

    MAX_PRICE = "max_price"
    QUANTIZATION = "quantizations"
    PARAMETERS = "require_parameters"
    NOT_FREE = "not_free"
    NO_CREDENTIAL = "no_credential"
    CREDENTIAL_REQUIRED = "byok_required"
    DIALECT = "dialect_not_supported"
    OPERATION = "operation_not_supported"
    NOT_NAMED = "order"
    NO_FALLBACK = "allow_fallbacks"


class NoEndpoint(NotFound):
    """The model exists, and nothing that may serve this request is left."""

    error_type = "no_endpoint"


@dataclass(frozen=True, slots=True)
class Credential:
    """An organization's own credential at a provider, opened.

    ``host`` is where it belongs, when it says so itself. ``declared_region`` and ``declared_zdr``
    are what its owner says of the account behind it, ``None`` what the endpoint says.
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
    allowed_hosts: frozenset[str] | None
    host: str | None = None
    allowed_members: frozenset[str] | None = None
    declared_region: str | None = None
    declared_zdr: bool | None = None

    def covers(self, route: Route) -> bool:
        return self.allowed_models is None or not self.allowed_models.isdisjoint(
            (route.model_slug, route.model_permaslug)
        )

    def may_travel_to(self, route: Route) -> bool:
        return self.allowed_hosts is None or (self.host or route.host) in self.allowed_hosts

    def serves(self, workspace_id: uuid.UUID, key_digest: str, member_id: uuid.UUID | None) -> bool:
        """Tells whether a key may use it: of the workspace, made by the member."""
        return (
            self.workspace_id in (None, workspace_id)
            and (self.allowed_key_digests is None or key_digest in self.allowed_key_digests)
            and (
                self.allowed_members is None
                or (member_id is not None and str(member_id) in self.allowed_members)
            )
        )

    def facts(self, route: Route) -> EndpointFacts:
        """Returns what a policy judges the route by, when it is used with this credential.

        A private endpoint has a declaration of its own, which a credential can only tighten. An
        endpoint that is tied to a region stays there.
        """
        facts = route.facts
        zdr = facts.zdr if self.declared_zdr is None else self.declared_zdr
        region = facts.region
        if route.is_private:
            zdr = zdr and facts.zdr
        elif self.declared_region in _REGIONAL and region in _ANYWHERE:
            region = self.declared_region
        if zdr == facts.zdr and region == facts.region:
            return facts
        return replace(facts, zdr=zdr, region=region)


@dataclass(frozen=True, slots=True)
class Route:
    """A public endpoint of the catalogue or an organization's private one, as routing sees it.

    ``secret`` is the operator's, for public endpoints; ``None`` where there is none. ``dialect`` is
    ``None`` while this release does not speak it, or nothing says where the endpoint is. Without a
    ``base_url`` the credential does. ``listed_parameters`` are the endpoint's own list, if it has
    one; ``supported_parameters`` have both names of a model's effort where that has either.
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
    secret: Secret | None = None
    attestation_id: int | None = None
    quantization: str = "unknown"
    supported_parameters: frozenset[str] | None = None
    listed_parameters: frozenset[str] | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A route and the credential with which to use it.

    ``subject`` is under what the outcomes of the two together are kept. ``options`` are fields that
    the request has for this provider alone, if any: they join the others on their way there.
    """

    route: Route
    secret: Secret
    is_byok: bool
    subject: uuid.UUID
    options: Mapping[str, msgspec.Raw] | None = None

    @property
    def measured(self) -> uuid.UUID:
        """Under what its latency and speed are kept: the endpoint's, whoever pays.

        An own credential that says where to call is an endpoint of its own.
        """
        is_elsewhere = self.is_byok and self.route.base_url is None
        return self.subject if is_elsewhere else self.route.endpoint_id

    def standing(self, of: Callable[[uuid.UUID], Standing]) -> Standing:
        """Returns how it stands: as its subject does, with the measures of its endpoint."""
        measured = of(self.measured)
        if not self.is_byok:
            return measured
        found = of(self.subject)
        return Standing(found.state, found.failure_share, measured.latency, measured.throughput)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The public catalogue at one version: routes by every name of their model."""

    version: int
    routes: Mapping[str, tuple[Route, ...]]
    slugs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OrganizationSnapshot:
    """What one organization adds at one version: its private endpoints and its credentials."""

    version: int
    catalog_version: int
    routes: Mapping[str, tuple[Route, ...]]
    credentials: tuple[Credential, ...]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a workspace says where a request is silent."""

    text_model: str | None = None
    provider_sort: str | None = None


NO_DEFAULTS: Final = Defaults()


@dataclass(slots=True)
class Excluded:
    """An endpoint that was left out, and every reason why."""

    route: Route
    reasons: list[str]

    def body(self) -> dict[str, Any]:
        return {
            "provider": self.route.facts.provider_name,
            "private": self.route.is_private,
            "model": self.route.model_slug,
            "excluded_by": self.reasons,
        }


@dataclass(slots=True)
class Plan:
    """The candidates in order of trial, and what was excluded.

    ``requested`` is the name of the model to begin with, as the request or its workspace says it,
    and ``model`` the slug of the first one that exists.
    """

    requested: str
    model: str
    candidates: list[Candidate] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)


@dataclass(slots=True)
class _Wanted:
    """A model of the request: its slug, how its name asks to route, and its endpoints."""

    slug: str
    variant: str | None
    routes: Sequence[Route]


def unknown(subject: uuid.UUID) -> Standing:
    """How every subject stands while nobody has called any."""
    return UNKNOWN


def plan(
    request: InferenceRequest,
    *,
    snapshot: Snapshot,
    own: OrganizationSnapshot,
    workspace_id: uuid.UUID,
    key_digest: str,
    policy: Policy,
    organization_id: uuid.UUID | None = None,
    member_id: uuid.UUID | None = None,
    defaults: Defaults = NO_DEFAULTS,
    disabled_tools: frozenset[str] = frozenset(),
    standing: Callable[[uuid.UUID], Standing] = unknown,
    seed: int | None = None,
) -> Plan:
    """Returns the candidates of a request in order, at least one.

    Raises what :func:`consider` raises, and :class:`NoEndpoint`, with every exclusion and its
    reasons, when none of the endpoints may be used.
    """
    found = consider(
        request,
        snapshot=snapshot,
        own=own,
        workspace_id=workspace_id,
        key_digest=key_digest,
        policy=policy,
        organization_id=organization_id,
        member_id=member_id,
        defaults=defaults,
        disabled_tools=disabled_tools,
        standing=standing,
        seed=seed,
    )
    if not found.candidates:
        raise NoEndpoint(
            f"No endpoint of {found.requested!r} may serve this request.",
            metadata={"excluded": [excluded.body() for excluded in found.excluded]},
        )
    return found


def consider(
    request: InferenceRequest,
    *,
    snapshot: Snapshot,
    own: OrganizationSnapshot,
    workspace_id: uuid.UUID,
    key_digest: str,
    policy: Policy,
    organization_id: uuid.UUID | None = None,
    member_id: uuid.UUID | None = None,
    defaults: Defaults = NO_DEFAULTS,
    disabled_tools: frozenset[str] = frozenset(),
    standing: Callable[[uuid.UUID], Standing] = unknown,
    seed: int | None = None,
) -> Plan:
    """Returns the candidates of a request in order, and every other endpoint with its reasons.

    Private endpoints come first, then, among the healthy ones, those that a draw weighted by price
    puts first. A session draws by its own name instead of ``seed``, so it stays where it is;
    without either the cheapest comes first. Without fallbacks the first one alone is left, which is
    of those that ``order`` names, if it names any.

    Raises :class:`InvalidRequest` when neither the request nor its workspace names a model,
    :class:`Forbidden` for a tool that the workspace has disabled, and :class:`ModelNotFound` when
    no model of the request exists.
    """
    preferences = request.preferences
    if not disabled_tools.isdisjoint(request.tools):
        [name, *_] = sorted(disabled_tools & request.tools)
        raise Forbidden(
            f"The workspace has disabled the tool {name!r}.", metadata={"disabled_tool": name}
        )
    names = request.models
    if not names:
        if defaults.text_model is None:
            raise required("model")
        names = (defaults.text_model,)
    wanted = [
        _Wanted(slug, variant, (*own.routes.get(slug, ()), *snapshot.routes.get(slug, ())))
        for slug, variant in (_resolved(name, snapshot.slugs) for name in names)
        if slug is not None
    ]
    if not wanted:
        raise ModelNotFound(f"There is no model {names[0]!r}.")
    if (
        preferences.only is not None
        or preferences.ignore
        or preferences.zdr
        or preferences.data_collection == "deny"
    ):
        policy &= _policy_of(preferences)
    credentials: dict[str, list[Credential]] = {}
    for credential in own.credentials:
        if credential.serves(workspace_id, key_digest, member_id):
            credentials.setdefault(credential.provider_slug, []).append(credential)
    found = Plan(requested=names[0], model=wanted[0].slug)
    is_open, options = policy.is_open, preferences.options or {}

    may_fall_back = preferences.allow_fallbacks is not False

    def is_down(candidate: Candidate) -> bool:
        return _tier(standing(candidate.subject), may_probe=may_fall_back) == _DOWN

    # Models of which a private endpoint serves the request with a credential that is required: no
    # other is paid for with credits. An organization's own routes come first.
    shut: set[str] = set()
    usable: dict[uuid.UUID, list[Candidate]] = {}
    excluded: dict[uuid.UUID, Excluded] = {}
    routes: list[tuple[Candidate, int, str | None]] = []
    for position, model in enumerate(wanted):
        for route in model.routes:
            key = route.endpoint_id
            if key in usable:
                continue  # the request names the model twice
            reasons = _unwanted(route, request, model.variant)
            slug = route.facts.provider_slug
            keys = credentials.get(slug, ())
            judged = () if is_open else exclusions(route.facts, policy)
            candidates = _opened(
                route, keys, options.get(slug), policy, judged, reasons, is_down, model.slug in shut
            )
            if candidates:
                usable[key] = candidates
                excluded.pop(key, None)
                routes.append((candidates[0], position, model.variant))
                if route.is_private and any(
                    (each.is_required or each.is_byok_only) and each.covers(route) for each in keys
                ):
                    shut.add(model.slug)
            else:
                excluded[key] = Excluded(route, reasons)
    if len(routes) > 1:
        seed_bytes = _seed(request, organization_id or workspace_id, seed)
        order = _Order(request, defaults, standing, seed_bytes)
        routes.sort(key=order.rank)
    found.candidates = [one for first, _, _ in routes for one in usable[first.route.endpoint_id]]
    found.excluded = list(excluded.values())
    if preferences.allow_fallbacks is False:
        del found.candidates[1:]
        found.excluded += (
            Excluded(first.route, [Unusable.NO_FALLBACK]) for first, _, _ in routes[1:]
        )
    return found


def _resolved(name: str, slugs: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Returns the slug of a model and the variant of a name; a model that is so called first."""
    if name in slugs:
        return slugs[name], None
    base, _, variant = name.rpartition(":")
    if variant in VARIANTS and base in slugs:
        return slugs[base], variant
    return None, None


def _policy_of(preferences: ProviderPreferences) -> Policy:
    return Policy.of(
        only=preferences.only,
        ignore=preferences.ignore,
        zdr=bool(preferences.zdr),
        no_training=preferences.data_collection == "deny",
    )


def _unwanted(route: Route, request: InferenceRequest, variant: str | None) -> list[str]:
    """Returns what the request asks for, and the gateway needs, that a route does not have."""
    preferences = request.preferences
    reasons: list[str] = []
    if variant == "free" and not route.price.is_free:
        reasons.append(Unusable.NOT_FREE)
    if preferences.max_price is not None and _is_dearer(route.price, preferences.max_price):
        reasons.append(Unusable.MAX_PRICE)
    wanted = preferences.quantizations
    if wanted is not None and route.quantization not in wanted:
        reasons.append(Unusable.QUANTIZATION)
    if preferences.order and preferences.allow_fallbacks is False:
        named = {name.lower() for name in preferences.order}
        if named.isdisjoint(_names(route)):
            reasons.append(Unusable.NOT_NAMED)
    if preferences.require_parameters:
        known = route.supported_parameters
        if known is not None and any(
            name not in known and (name not in BOUNDS or known.isdisjoint(BOUNDS))
            for name in request.needed_parameters
        ):
            reasons.append(Unusable.PARAMETERS)
    if route.dialect is None:
        reasons.append(Unusable.DIALECT)
    elif request.operation not in route.operations:
        reasons.append(Unusable.OPERATION)
    return reasons


def _names(route: Route) -> tuple[str, str]:
    """Returns by what a request may name the provider, in lower case."""
    return route.facts.provider_slug.lower(), route.facts.provider_name.lower()


def _is_dearer(price: Price, limit: MaxPrice) -> bool:
    rates = (
        (price.prompt * _MILLION, limit.prompt),
        (price.completion * _MILLION, limit.completion),
        (price.request, limit.request),
        (price.image, limit.image),
    )
    return any(most is not None and rate > Decimal(str(most)) for rate, most in rates)


def _opened(
    route: Route,
    credentials: Sequence[Credential],
    options: Mapping[str, msgspec.Raw] | None,
    policy: Policy,
    judged: Sequence[str],
    reasons: list[str],
    is_down: Callable[[Candidate], bool],
    is_shut: bool,
) -> list[Candidate]:
    """Returns the route with each credential that may open it, in order of trial.

    Own credentials that are down come after those that are not, and no later: health does not
    decide who pays. The operator's is none of them where ``is_shut``. A policy judges route and
    credential together; ``judged`` is what it has against the route alone. ``reasons`` are those
    that hold whatever opens it; when nothing is returned, every other one is among them too.
    """
    against: dict[str, None] = {}
    first: list[Candidate] = []
    last: list[Candidate] = []
    has_key = False
    for credential in credentials:
        covers = credential.covers(route)
        is_shut = is_shut or credential.is_byok_only or (credential.is_required and covers)
        if not covers or credential.secret is None or not credential.may_travel_to(route):
            continue
        has_key = True
        facts = credential.facts(route)
        if why := judged if facts is route.facts else exclusions(facts, policy):
            against.update(dict.fromkeys(why))
        else:
            group = last if credential.is_fallback else first
            subject = subject_of(route.endpoint_id, credential.credential_id)
            group.append(Candidate(route, credential.secret, True, subject, options))
    for group in (first, last):
        if len(group) > 1:
            group.sort(key=is_down)
    if not route.is_private and not is_shut and route.secret is not None:
        has_key = True
        if judged:
            against.update(dict.fromkeys(judged))
        else:
            first.append(Candidate(route, route.secret, False, route.endpoint_id, options))
    first += last
    if first:
        return [] if reasons else first
    reasons[:0] = against if has_key else judged
    if is_shut and not route.is_private:
        reasons.append(Unusable.CREDENTIAL_REQUIRED)
    elif not has_key:
        reasons.append(Unusable.NO_CREDENTIAL)
    return []


def _seed(request: InferenceRequest, owner: uuid.UUID, seed: int | None) -> bytes | None:
    """Returns what the draw of a request depends on.

    That of a session depends on nothing but its name and whose it is: every worker draws the same,
    without a table of sessions, and only those whose endpoint went away move to another.
    """
    if request.session_id is not None:
        return blake2b(request.session_id.encode(), key=owner.bytes, digest_size=8).digest()
    return None if seed is None else (seed % 2**64).to_bytes(8, "big")


def _tier(standing: Standing, *, may_probe: bool) -> int:
    """Returns how good a standing is, 0 the best.

    A probe may fail, which nobody notices while there is something to fall back to: without, what
    is half-open counts as down.
    """
    if standing.state is State.HALF_OPEN and not may_probe:
        return _DOWN
    return _TIERS[standing.state]


class _Order:
    """By what the endpoints of one request are ranked; a smaller rank is tried earlier."""

    __slots__ = (
        "_is_one", "_latency", "_may_fall_back", "_named", "_seed", "_sort", "_sort_default",
        "_standing", "_throughput",
    )  # fmt: skip

    def __init__(
        self,
        request: InferenceRequest,
        defaults: Defaults,
        standing: Callable[[uuid.UUID], Standing],
        seed: bytes | None,
    ) -> None:
        preferences = request.preferences
        sort, self._is_one = preferences.sort, False
        if isinstance(sort, Sorting):
            self._is_one = sort.partition == "none" and sort.by is not None
            sort = sort.by
        self._sort: str | None = sort
        # Who names a session wants to stay, more than the workspace wants any one order.
        self._sort_default = defaults.provider_sort if request.session_id is None else None
        self._named = [name.lower() for name in preferences.order or ()]
        self._standing = standing
        self._seed = seed
        self._latency = _thresholds(preferences.preferred_max_latency)
        self._throughput = _thresholds(preferences.preferred_min_throughput)
        self._may_fall_back = preferences.allow_fallbacks is not False

    def rank(self, found: tuple[Candidate, int, str | None]) -> tuple[Any, ...]:
        """Ranks an endpoint of the model at this place of the request, named with this variant.

        It stands as the first of its candidates does. What is named by ``order`` comes in that
        order, however it does. Of all else, what misses a preferred measure, or is down and meets
        none, comes after every model, what is down after what is not, and private endpoints before
        public ones: these first, however they do, where there is no falling back to them.
        """
        candidate, position, variant = found
        route, standing = candidate.route, candidate.standing(self._standing)
        tier = _tier(standing, may_probe=self._may_fall_back)
        place, is_late = len(self._named), False
        if place:
            place = min(
                (self._named.index(name) for name in _names(route) if name in self._named),
                default=place,
            )
            if place < len(self._named):
                tier = 0
        is_down = tier == _DOWN and (self._may_fall_back or not route.is_private)
        if (self._latency or self._throughput) and place == len(self._named):
            is_late = is_down or self._misses(standing)
        if self._is_one and not self._named:
            position = 0
        return (
            is_late,
            position,
            place,
            is_down,
            not route.is_private,
            tier,
            self._measure(route, standing, variant),
            route.endpoint_id.int,
        )

    def _measure(self, route: Route, standing: Standing, variant: str | None) -> tuple[Any, ...]:
        """Returns what decides between equals; what is not known comes last, then the price."""
        sort: str | None = None
        if not self._named:
            sort = self._sort or _SORTS.get(variant or "") or self._sort_default
        price = _price(route)
        if sort is None and self._seed is not None:
            return _draw(self._seed, route.endpoint_id, float(price))
        if sort == "latency":
            return (_median(standing.latency, math.inf), price)
        if sort == "throughput":
            return (-_median(standing.throughput, 0.0), price)
        if sort == "exacto":
            return (standing.failure_share, -_median(standing.throughput, 0.0), price)
        return (price,)

    def _misses(self, standing: Standing) -> bool:
        """Tells whether an endpoint is known to be slower than the request prefers."""
        latency, throughput = standing.latency, standing.throughput
        return (
            latency is not None
            and any(latency[name] > most * _MILLISECONDS for name, most in self._latency)
        ) or (
            throughput is not None
            and any(throughput[name] < least for name, least in self._throughput)
        )


def _thresholds(preferred: float | Percentiles | None) -> Sequence[tuple[str, float]]:
    """Returns thresholds by their percentile; a mere number is that of the median."""
    if preferred is None:
        return ()
    if not isinstance(preferred, Percentiles):
        return (("p50", preferred),)
    named = ((name, getattr(preferred, name)) for name in preferred.__struct_fields__)
    return tuple((name, value) for name, value in named if value is not None)


def _median(measured: Mapping[str, float] | None, otherwise: float) -> float:
    return otherwise if measured is None else measured["p50"]


def _price(route: Route) -> Decimal:
    """Returns what ranks a price: the mean of prompt and completion ranks as their sum does."""
    return _EXACT.add(route.price.prompt, route.price.completion)


def _draw(seed: bytes, endpoint_id: uuid.UUID, price: float) -> tuple[float, float]:
    """Draws an endpoint's place, lowest first, at odds of one to the square of its price.

    The waiting times of independent processes, each at the rate of its weight, end in exactly the
    order of a weighted draw without replacement; where every endpoint has a number of its own, the
    order of the others does not change when one drops out. What is free comes first.
    """
    number = int.from_bytes(blake2b(endpoint_id.bytes, key=seed, digest_size=8).digest(), "big")
    waited = -math.log((number + 1) / _NUMBERS)
    return (waited * price * price, waited)
