"""Selects the endpoints that may serve a request, in order of trial; pure.

Every excluded endpoint has the reasons of its exclusion.
"""

from __future__ import annotations

import math
import uuid
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

import msgspec

from accounts.policy import Fallback, Policy, find_level, find_strictest
from catalog.abilities import NO_POOL
from catalog.aliases.names import find_by_name
from catalog.aliases.resolution import Lookup, NamedModel, Resolution
from catalog.aliases.spellings import NO_NAMES, put_first
from catalog.dialects.shared.left_out import name_asked
from catalog.dialects.shared.searches import WEB_SEARCH_OPTIONS
from catalog.operations import OPERATIONS
from catalog.pricing import Billable
from catalog.visibility import exclusions
from config.api.errors import (
    LONGEST_RETRY_AFTER,
    Forbidden,
    GatewayError,
    InvalidRequest,
    TooManyRequests,
)
from config.credentials import NO_SECRET, Secret
from inference.requests.operations import ROWS
from inference.requests.operations.completions import BOUNDS, FORMS
from inference.requests.operations.server_tools import NO_TOOLS
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import field_error, missing_fields
from inference.requests.schemas import MaxPrice, ProviderPreferences
from inference.routing.health import UNKNOWN, Health, HealthState, rest_of, subject_of
from inference.routing.needs import NoEndpoint, explain_no_candidate, find_shortfalls
from inference.routing.pacing import Pace
from inference.routing.ranking import Contender, Ranking, draw_seed, is_down, mixes_models
from inference.routing.routes import (
    NO_DEFAULTS,
    Candidate,
    CatalogSnapshot,
    Credential,
    OrganizationSnapshot,
    PrivateModel,
    Route,
    RoutingDefaults,
    Target,
)

_MILLION: Final = Decimal(1_000_000)
_FREE: Final = Decimal(0)
_NO_VARIANTS: Final[frozenset[str]] = frozenset()
# The name under which a validation records whether the deployment sees pictures.
_IMAGE_INPUT: Final = "image_input"


class Unusable(StrEnum):
    """A reason why a request cannot use an endpoint that the policy allows."""

    MAX_PRICE = "max_price"
    QUANTIZATION = "quantizations"
    PARAMETERS = "require_parameters"
    NOT_FREE = "not_free"
    NO_CREDENTIAL = "no_credential"
    CREDENTIAL_HOST = "credential_host"
    CREDENTIAL_REQUIRED = "byok_required"
    DIALECT = "dialect_not_supported"
    OPERATION = "operation_not_supported"
    NOT_NAMED = "order"
    NO_FALLBACK = "allow_fallbacks"
    ABOVE_HOLD = "above_hold"
    RATE_LIMIT = "rate_limit"
    PROVIDER_LIMIT = "provider_limit"
    NO_RATE = "no_rate"
    NATIVE = "native_format"
    PRIVATE_ONLY = "private_only"
    FULL = "max_in_flight"
    UNLISTED = "supported_parameters"


class PrivateUnavailable(GatewayError):
    """The private endpoints of the model cannot be called now, and no public one may serve."""

    status = 503
    error_type = "provider_unavailable"


_UNREACHABLE: Final = frozenset((Unusable.NO_CREDENTIAL, Unusable.CREDENTIAL_HOST))
_JUST_PRIVATE: Final = PrivateModel(frozenset())


class ProvidersBusy(TooManyRequests):
    """The operator's accounts at the providers have used up their limits for this minute."""

    error_type = "provider_limit"
    message = "All providers that may serve this request are at their limits. Try again later."


@dataclass(slots=True)
class ExcludedEndpoint:
    """An endpoint that may not serve the request, and every reason."""

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
class Selection:
    """The candidates of a request in order of trial, and the endpoints that were excluded.

    ``requested`` is the first model name of the request or its workspace. ``model`` is the slug of
    the first name that exists. ``is_replanned`` says that a change came between two attempts, so
    that the rest of the candidates was selected again. ``paced`` has the providers whose limits of
    a minute are used up, by slug, and the seconds until a request fits. ``unpriced`` are the tools
    that the request demands and for which endpoints were left out, because they have no rate.
    ``resolution`` says what ``requested`` means if it is not the name of a model.
    """

    requested: str
    model: str
    candidates: list[Candidate] = field(default_factory=list)
    excluded: list[ExcludedEndpoint] = field(default_factory=list)
    is_replanned: bool = False
    paced: dict[str, float] = field(default_factory=dict)
    unpriced: frozenset[str] = frozenset()
    resolution: Resolution | None = None

    def kept_private(self) -> list[dict[str, Any]]:
        """Describes the public endpoints that are not used because the model is private."""
        return [each.body() for each in self.excluded if Unusable.PRIVATE_ONLY in each.reasons]


def never_wait(pace: Pace, prompt_tokens: int) -> float:
    """Returns 0: nobody counts what is sent."""
    return 0.0


def count_nothing(route: Route) -> int:
    """Returns 0: nobody counts the requests in flight."""
    return 0


def unknown_health(subject: uuid.UUID) -> Health:
    """Returns the health of a subject that nobody has called."""
    return UNKNOWN


class RoutingContext(msgspec.Struct, frozen=True):
    """The data, besides the request, by which routing decides.

    ``own`` has the organization's endpoints and credentials. ``member_id`` is the member who made
    the key. Sessions belong to ``organization_id``, or to the workspace if that is ``None``.
    ``health_of`` returns the health of a subject, and ``wait_of`` the seconds until a prompt of so
    many tokens fits into the limits of a provider, and ``running_of`` the requests in flight at an
    endpoint of a pool. ``seed`` is the random number of the weighted
    draw between endpoints; with ``None`` the cheapest endpoint comes first.
    """

    snapshot: CatalogSnapshot
    own: OrganizationSnapshot
    workspace_id: uuid.UUID
    key_digest: str
    policy: Policy
    organization_id: uuid.UUID | None = None
    member_id: uuid.UUID | None = None
    defaults: RoutingDefaults = NO_DEFAULTS
    disabled_tools: frozenset[str] = frozenset()
    health_of: Callable[[uuid.UUID], Health] = unknown_health
    wait_of: Callable[[Pace, int], float] = never_wait
    running_of: Callable[[Route], int] = count_nothing
    seed: int | None = None

    @property
    def slugs(self) -> Mapping[str, str]:
        """The slugs of models by their names, those of the organization's own models first.

        A private model that left the catalogue keeps its names, so that they mean no other model,
        and what follows it stays closed.
        """
        slugs, own = self.snapshot.slugs, self.own.slugs
        return ChainMap(own, cast("dict[str, str]", slugs)) if own else slugs

    @property
    def lookup(self) -> Lookup:
        """The tables that resolve names which are no model's own."""
        snapshot, own = self.snapshot, self.own
        names = snapshot.names if own.names is NO_NAMES else put_first(own.names, snapshot.names)
        return Lookup(self.slugs, names, own.aliases, snapshot.aliases, self._is_visible)

    def _is_visible(self, slug: str) -> bool:
        """Returns whether the policy admits at least one endpoint of a model.

        A private model without endpoints is visible to its owner: a name that means it must not
        mean another model, which would get the prompt.
        """
        own = self.own.routes.get(slug, ())
        if not own and slug in self.own.private_models:
            return True
        # An own model is served by no public endpoint, whatever its name.
        public = () if slug in self.own.own_slugs else self.snapshot.routes.get(slug, ())
        names = self.own.provider_names
        return any(not exclusions(route.facts, self.policy, names) for route in (*own, *public))


def require_candidates(request: InferenceRequest, context: RoutingContext) -> Selection:
    """Returns the selection of a request, which has at least one candidate.

    Raises the errors of :func:`select_candidates`, and the error of :func:`explain_no_candidate`,
    with every excluded endpoint and its reasons, when there is no candidate. Raises
    :class:`ProvidersBusy` when there would be one but for the limits of providers.
    """
    selection = select_candidates(request, context)
    if selection.candidates:
        return selection
    metadata = {"excluded": [excluded.body() for excluded in selection.excluded]}
    if selection.paced:
        raise ProvidersBusy(
            headers={
                "Retry-After": str(math.ceil(min(LONGEST_RETRY_AFTER, *selection.paced.values())))
            },
            metadata=metadata,
        )
    if selection.unpriced:
        asked_by = request.server_tools.asked_by
        names = ", ".join(
            sorted(
                asked_by if asked_by and name == WEB_SEARCH_OPTIONS else name
                for name in selection.unpriced
            )
        )
        raise InvalidRequest(
            f"{names}: no endpoint of {selection.requested!r} can do it at a known price. Leave it "
            "out, or use a credential of your own.",
            metadata={**metadata, "fields": {names: "No endpoint can do it at a known price."}},
        )
    native = request.native
    is_native_alone = any(each.reasons == [Unusable.NATIVE] for each in selection.excluded)
    if is_native_alone and native is not None and native.problem is not None:
        refusal = copy(native.problem)
        refusal.metadata |= metadata
        raise refusal
    if is_native_alone and native is None:
        raise NoEndpoint(
            f"No endpoints found for {selection.requested!r} that serve this route: its providers "
            "serve it in OpenAI's Responses alone. Send the request to /responses, without a "
            "preset or plugins.",
            metadata=metadata,
        )
    if any(excluded.reasons == [Unusable.FULL] for excluded in selection.excluded):
        raise PrivateUnavailable(
            f"The private endpoints of {selection.requested!r} run as many requests as their "
            "max_in_flight allows, and its public ones are not used. Try again later.",
            metadata=metadata,
            headers={"Retry-After": "1"},
        )
    if selection.kept_private() and any(_is_unreachable(each) for each in selection.excluded):
        raise PrivateUnavailable(
            f"The private endpoints of {selection.requested!r} cannot be called, and its public "
            "ones are not used (private_only). Check the credential of their provider.",
            metadata=metadata,
        )
    reasons = [(excluded.route, excluded.reasons) for excluded in selection.excluded]
    raise explain_no_candidate(request, selection.requested, reasons, metadata)


def select_candidates(request: InferenceRequest, context: RoutingContext) -> Selection:
    """Returns the candidates of a request in order, and every other endpoint with its reasons.

    The module ``ranking`` describes the order. Without fallbacks only the first candidate remains;
    if the request has an ``order``, it must name that candidate's provider.

    Raises :class:`InvalidRequest` when neither the request nor its workspace names a model,
    :class:`Forbidden` for a tool that the workspace has disabled, and :class:`ModelNotFound` when
    no model of the request exists.
    """
    if disabled := sorted(context.disabled_tools.intersection(request.tools)):
        raise Forbidden(
            f"The workspace has disabled the tool {disabled[0]!r}.",
            metadata={"disabled_tool": disabled[0]},
        )
    found = _find_models(request, context)
    search = _Search(request, context)
    own = context.own
    has_private = bool(own.private_models or own.routes)
    if has_private and mixes_models(request.preferences):
        search.keep_private(*found.models)
    for position, model in enumerate(found.models):
        if has_private:
            search.keep_private(model)
        slug = model.slug
        public = () if slug in own.own_slugs else context.snapshot.routes.get(slug, ())
        for route in (*own.routes.get(slug, ()), *public):
            search.visit(route, model, position)
    return search.select(found)


class _FoundModels(NamedTuple):
    """The models of a request: its first name, what that stands for, and those that exist.

    ``resolution`` is ``None`` where the first name is that of a model.
    """

    requested: str
    models: list[NamedModel]
    resolution: Resolution | None


def _find_models(request: InferenceRequest, context: RoutingContext) -> _FoundModels:
    """Returns the models that a request names.

    Raises :class:`InvalidRequest` without a name, and for ``:online`` in the name that the
    workspace adds: the search of a model that the request itself names is among its tools already.
    Raises :class:`ModelNotFound` if no model exists.
    """
    names = request.models
    if not names:
        default: str | None = getattr(context.defaults, ROWS[request.operation].default_model)
        if default is None:
            raise missing_fields("model")
        names = (default,)
    slugs, gone = context.slugs, context.own.gone_slugs
    models: list[NamedModel] = []
    resolutions: list[Resolution | None] = []
    for name in names:
        resolution: Resolution | None = None
        slug = slugs.get(name)
        found = find_by_name(name, slugs) if slug is None else (slug, _NO_VARIANTS)
        if found is not None:
            meant: Sequence[NamedModel] = (NamedModel(*found),)
        else:
            resolution = context.lookup.resolve(name)
            meant = () if resolution is None else resolution.models
        resolutions.append(resolution)
        for model in meant:
            models.append(model)
            if "online" in model.variants and not request.server_tools.searches:
                raise field_error("model", f"Name {name!r} in the request: it searches the web.")
    if all(model.slug in gone for model in models):
        raise context.lookup.explain_unknown(names[0], resolutions[0])
    return _FoundModels(names[0], models, resolutions[0])


def _narrow_policy(policy: Policy, preferences: ProviderPreferences) -> Policy:
    """Returns the policy with the limits that the request adds to it."""
    if (
        preferences.only is None
        and not preferences.ignore
        and not preferences.zdr
        and preferences.data_collection != "deny"
    ):
        return policy
    return policy & Policy.of(
        only=preferences.only,
        ignore=preferences.ignore,
        zdr=bool(preferences.zdr),
        no_training=preferences.data_collection == "deny",
    )


def _is_unreachable(excluded: ExcludedEndpoint) -> bool:
    """Returns whether only the lack of a usable credential excludes a private endpoint."""
    return excluded.route.is_private and _UNREACHABLE.issuperset(excluded.reasons)


class Payers(NamedTuple):
    """The credentials with which an endpoint can be called, before a policy judges them.

    ``own`` are those of the organization. ``is_served`` says that none of them is needed: the
    operator's may be used, or the server takes none. ``obstacle`` is a reason why others cannot be
    used; the endpoint is excluded for it unless one of these may.
    """

    own: Sequence[Credential]
    is_served: bool
    obstacle: Unusable | None = None


def find_payers(
    target: Target,
    credentials: Mapping[str, Sequence[Credential]],
    provider_slugs: AbstractSet[str],
    *,
    is_served: bool,
    is_closed: bool = False,
) -> Payers:
    """Returns the credentials that can call an endpoint: requests and lists of models ask here.

    ``credentials`` are those of the organization that the caller may use, by the slug of their
    provider, and ``provider_slugs`` the slugs of its own providers. ``is_served`` says that the
    operator has a credential, or that the server takes none, and ``is_closed`` that the operator's
    may not be used.
    """
    if target.is_private and is_served:
        return Payers((), True)
    slug = target.facts.provider_slug
    usable: list[Credential] = []
    is_elsewhere = False
    # Credentials of an own provider are for its private endpoints alone.
    is_foreign = slug in provider_slugs and not target.is_private
    for credential in () if is_foreign else credentials.get(slug, ()):
        has_model = credential.may_call_model_of(target)
        is_closed |= credential.is_byok_only or (credential.is_required and has_model)
        if not has_model or credential.secret is None:
            continue
        if credential.may_travel_to(target):
            usable.append(credential)
        else:
            is_elsewhere = True
    is_closed &= not target.is_private
    is_served &= not target.is_private and not is_closed
    obstacle: Unusable | None = None
    if is_closed:
        obstacle = Unusable.CREDENTIAL_REQUIRED
    elif not (usable or is_served):
        obstacle = Unusable.CREDENTIAL_HOST if is_elsewhere else Unusable.NO_CREDENTIAL
    return Payers(usable, is_served, obstacle)


def _pair(
    route: Route, credential: Credential, options: Mapping[str, msgspec.Raw] | None
) -> Candidate:
    """Returns a route with an own credential, whose secret could be decrypted."""
    key, secret = credential.credential_id, cast(Secret, credential.secret)
    subject, first_use = subject_of(route.endpoint_id, key), credential.first_use_at(route)
    rest = rest_of(subject, credential.version)
    return Candidate(route, secret, True, subject, options, first_use, key, rest)


class _Search:
    """Collects the candidates of one request, one endpoint at a time."""

    __slots__ = (
        "_candidates", "_closed_models", "_contenders", "_context", "_credentials", "_excluded",
        "_fallback", "_is_open", "_listed", "_may_fall_back", "_options", "_own_names", "_paced",
        "_policy", "_private_names", "_request",
    )  # fmt: skip

    def __init__(self, request: InferenceRequest, context: RoutingContext) -> None:
        preferences = request.preferences
        self._request = request
        self._context = context
        self._policy = _narrow_policy(context.policy, preferences)
        self._is_open = self._policy.is_open
        self._options = preferences.options or {}
        self._may_fall_back = preferences.allow_fallbacks is not False
        self._credentials: dict[str, list[Credential]] = {}
        for credential in context.own.credentials:
            if credential.may_be_used_by(
                context.workspace_id, context.key_digest, context.member_id
            ):
                self._credentials.setdefault(credential.provider_slug, []).append(credential)
        # Models whose public endpoints may not be called with the operator's credential: a private
        # endpoint of the model can serve the request, and a credential for it is required.
        self._closed_models: set[str] = set()
        # The level of the private models so far, the names of own providers and of those of their
        # endpoints, and the names that the request lists beside those.
        self._fallback: Fallback | None = None
        self._own_names = self._private_names = context.own.provider_names
        self._listed = frozenset[str]()
        self._candidates: dict[uuid.UUID, list[Candidate]] = {}
        self._excluded: dict[uuid.UUID, ExcludedEndpoint] = {}
        self._contenders: list[Contender] = []
        self._paced: dict[str, float] = {}

    def keep_private(self, *models: NamedModel) -> None:
        """Closes public endpoints from now on, if one of the models is private.

        The public endpoints of a model that comes after a private one would serve in its place, so
        they are closed like its own.
        """
        own = self._context.own
        for model in models:
            routes = own.routes.get(model.slug, ())
            if not routes and model.slug not in own.private_models:
                continue
            private = own.private_models.get(model.slug, _JUST_PRIVATE)
            level = find_level(private.fallback, self._policy.fallback)
            self._fallback = find_strictest(self._fallback, level)
            self._private_names |= private.provider_names
            self._private_names |= {name for route in routes for name in route.provider_names}
        if self._fallback is Fallback.LISTED:
            preferences = self._request.preferences
            named = (*(preferences.order or ()), *(preferences.only or ()))
            self._listed = frozenset(map(str.lower, named)) - self._private_names

    def _is_kept_from(self, route: Route) -> bool:
        """Returns whether a public endpoint is closed, because the prompt is for a private one."""
        if self._fallback is Fallback.ANY or route.is_private:
            return False
        return self._fallback is Fallback.NONE or self._listed.isdisjoint(route.provider_names)

    def _is_full(self, route: Route) -> bool:
        """Returns whether as many requests run at an endpoint as its owner allows."""
        running, most = self._context.running_of(route), route.pool.max_in_flight
        return most is not None and running >= most

    def visit(self, route: Route, model: NamedModel, position: int) -> None:
        """Stores the candidates of an endpoint, or the reasons why it has none.

        An organization's own endpoints must be visited before public endpoints.
        """
        key = route.endpoint_id
        if key in self._candidates:
            return  # the request names the model twice
        reasons = _unmet_requirements(route, self._request, model.variants, self._own_names)
        if self._fallback is not None and self._is_kept_from(route):
            reasons.append(Unusable.PRIVATE_ONLY)
        if route.is_private and route.pool != NO_POOL and self._is_full(route):
            reasons.append(Unusable.FULL)
        secret = route.secret
        payers = find_payers(
            route,
            self._credentials,
            self._context.own.provider_slugs,
            # The operator's secret never opens a private endpoint.
            is_served=secret is not None and (not route.is_private or secret == NO_SECRET),
            is_closed=model.slug in self._closed_models,
        )
        candidates = self._pair_credentials(route, payers, reasons)
        if not candidates:
            self._excluded[key] = ExcludedEndpoint(route, reasons)
            return
        self._candidates[key] = candidates
        self._excluded.pop(key, None)
        self._contenders.append(Contender(candidates[0], position, model.variants))
        if route.is_private and any(
            (each.is_required or each.is_byok_only) and each.may_call_model_of(route)
            for each in self._credentials.get(route.facts.provider_slug, ())
        ):
            self._closed_models.add(model.slug)

    def select(self, found: _FoundModels) -> Selection:
        """Ranks the endpoints and returns the selection."""
        contenders, context = self._contenders, self._context
        if len(contenders) > 1:
            owner = context.organization_id or context.workspace_id
            seed = draw_seed(self._request, owner, context.seed)
            ranking = Ranking(self._request, context.defaults, context.health_of, seed)
            if any(each.candidate.route.pool != NO_POOL for each in contenders):
                ranking.draw_pools(contenders, context.running_of)
            contenders.sort(key=ranking.sort_key)
        selection = Selection(
            found.requested,
            found.models[0].slug,
            excluded=list(self._excluded.values()),
            paced=self._paced,
            resolution=found.resolution,
        )
        if self._request.server_tools is not NO_TOOLS:
            contenders = self._keep_priced(contenders, selection)
        if not self._request.fields.keys().isdisjoint(FORMS):
            contenders = self._keep_able(contenders, selection)
        for contender in contenders:
            selection.candidates += self._candidates[contender.candidate.route.endpoint_id]
        if not self._may_fall_back:
            del selection.candidates[1:]
            selection.excluded += (
                ExcludedEndpoint(contender.candidate.route, [Unusable.NO_FALLBACK])
                for contender in contenders[1:]
            )
        return selection

    def _keep_priced(self, contenders: list[Contender], selection: Selection) -> list[Contender]:
        """Returns the endpoints that have a rate for the tools that a provider runs, and run them.

        If there is none, those without are returned: the tools are left out on the way to them. An
        endpoint that would have to leave out a tool that the request demands is never returned.
        """
        request = self._request
        demanded = request.server_tools.demanded
        priced: list[Contender] = []
        others: list[Contender] = []
        for contender in contenders:
            key = contender.candidate.route.endpoint_id
            kept = [
                each
                for each in self._candidates[key]
                if demanded.isdisjoint(each.find_unpriced(request))
            ]
            if not kept:
                selection.unpriced |= demanded & contender.candidate.find_unpriced(request)
                selection.excluded.append(
                    ExcludedEndpoint(contender.candidate.route, [Unusable.NO_RATE])
                )
                continue
            self._candidates[key] = kept
            lacks = all(each.find_unpriced(request) for each in kept)
            (others if lacks else priced).append(contender)
        if not priced:
            return others
        selection.excluded += (
            ExcludedEndpoint(contender.candidate.route, [Unusable.NO_RATE]) for contender in others
        )
        for contender in priced:
            key = contender.candidate.route.endpoint_id
            self._candidates[key] = [
                each for each in self._candidates[key] if not each.find_unpriced(request)
            ]
        return priced

    def _keep_able(self, contenders: list[Contender], selection: Selection) -> list[Contender]:
        """Returns the endpoints that list what the form of the answer depends on.

        What none of them lists decides nothing: it is left out on the way, and named.
        """
        request = self._request
        asked = name_asked(request.fields, request.parameters.intersection(FORMS))
        if request.server_tools.searches and not request.server_tools.has_functions:
            asked -= {"tools", "tool_choice"}
        able = contenders
        for name in (name for name in FORMS if name in asked):
            able = [each for each in able if each.candidate.is_told(request, name)] or able
        kept = {*map(id, able)}
        selection.excluded += (
            ExcludedEndpoint(each.candidate.route, [Unusable.UNLISTED])
            for each in contenders
            if id(each) not in kept
        )
        return able

    def _pair_credentials(
        self, route: Route, payers: Payers, reasons: list[str]
    ) -> list[Candidate]:
        """Returns the route with each credential that may call it, in order of trial.

        Own credentials come first, then the operator's, then own fallback credentials. Health does
        not decide who pays: it only orders the credentials of a group. But an own credential that
        was refused rests: it is tried after all others. The policy judges route and
        credential together. ``reasons`` contains the requirements that the route does not meet with
        any credential. If the result is empty, the reasons that depend on the credentials are added
        to it.
        """
        policy, own_names = self._policy, self._own_names
        of_route = () if self._is_open else exclusions(route.facts, policy, own_names)
        options = self._options.get(route.facts.provider_slug)
        objections: dict[str, None] = {}
        preferred: list[Candidate] = []
        fallback: list[Candidate] = []
        for credential in payers.own:
            facts = credential.facts_of(route)
            refusals = of_route
            if facts is not route.facts:
                refusals = exclusions(facts, policy, own_names)
            if refusals:
                objections.update(dict.fromkeys(refusals))
            else:
                group = fallback if credential.is_fallback else preferred
                group.append(_pair(route, credential, options))
        for group in (preferred, fallback):
            if len(group) > 1:
                group.sort(key=self._is_down)
        if payers.is_served and route.secret is not None:
            if of_route:
                objections.update(dict.fromkeys(of_route))
            elif not reasons and route.pace is not None and self._is_paced(route, route.pace):
                objections[Unusable.PROVIDER_LIMIT] = None
            else:
                # A private server that takes no key is its owner's: its calls cost no credits.
                subject, is_own = route.endpoint_id, route.is_private
                preferred.append(Candidate(route, route.secret, is_own, subject, options))
        preferred += fallback
        if payers.own and len(preferred) > 1:
            preferred.sort(key=self._is_resting)
        if preferred:
            return [] if reasons else preferred
        reasons[:0] = objections if payers.own or payers.is_served else of_route
        if payers.obstacle is not None:
            reasons.append(payers.obstacle)
        return []

    def _is_paced(self, route: Route, pace: Pace) -> bool:
        """Returns whether the operator's account at the provider is at its limit."""
        tokens = route.family.estimate(self._request.text)
        wait = self._context.wait_of(pace, tokens)
        if wait > 0:
            self._paced[route.facts.provider_slug] = wait
        return wait > 0

    def _is_down(self, candidate: Candidate) -> bool:
        health = self._context.health_of(candidate.subject)
        return is_down(health, may_fall_back=self._may_fall_back)

    def _is_resting(self, candidate: Candidate) -> bool:
        state = candidate.rest_state(self._context.health_of)
        return state is HealthState.OPEN or (state is not None and not self._may_fall_back)


def _unmet_requirements(
    route: Route,
    request: InferenceRequest,
    variants: frozenset[str],
    own_names: frozenset[str],
) -> list[str]:
    """Returns the requirements of the request and of the gateway that a route does not meet.

    ``own_names`` are those of the organization's own providers.
    """
    preferences = request.preferences
    reasons: list[str] = []
    if "free" in variants and not route.price.is_free:
        reasons.append(Unusable.NOT_FREE)
    if preferences.max_price is not None and _exceeds(
        route,
        preferences.max_price,
        route.limits.bound_text(request.prompt_bound, request.messages, request.tool_count)
        + sum(map(route.limits.media.bound, request.media)),
        request,
    ):
        reasons.append(Unusable.MAX_PRICE)
    quantizations = preferences.quantizations
    if quantizations is not None and route.quantization not in quantizations:
        reasons.append(Unusable.QUANTIZATION)
    if preferences.order and preferences.allow_fallbacks is False:
        named = {name.lower() for name in preferences.order}
        if not route.is_private:
            named -= own_names
        if named.isdisjoint(route.provider_names):
            reasons.append(Unusable.NOT_NAMED)
    if preferences.require_parameters and _lacks_a_parameter(route, request):
        reasons.append(Unusable.PARAMETERS)
    if route.dialect is None:
        reasons.append(Unusable.DIALECT)
    elif request.operation not in route.operations:
        reasons.append(Unusable.OPERATION)
    native = request.native
    if native is None:
        if route.lacks_chat and OPERATIONS[request.operation].is_written:
            reasons.append(Unusable.NATIVE)
    elif (native.problem is not None or route.lacks_chat) and not route.speaks(native):
        reasons.append(Unusable.NATIVE)
    reasons += find_shortfalls(route, request)
    return reasons


def _lacks_a_parameter(route: Route, request: InferenceRequest) -> bool:
    """Returns whether a route does not support all parameters of a request, as far as is known.

    Pictures count like a parameter, if a trial has shown that the deployment sees none. Of the two
    names of the output bound either one will do.
    """
    needed = request.needed_parameters
    if not route.disproved_parameters.isdisjoint(needed - BOUNDS):
        return True
    if "image" in request.inputs and _IMAGE_INPUT in route.disproved_parameters:
        return True
    if route.drops_thinking(request):
        return True
    is_native = request.native is not None and route.speaks(request.native)
    if not is_native and not route.unsent_parameters.isdisjoint(needed):
        return True
    known = route.offered_parameters if route.is_private else route.supported_parameters
    return known is not None and any(
        name not in known and (name not in BOUNDS or known.isdisjoint(BOUNDS)) for name in needed
    )


def _exceeds(route: Route, limit: MaxPrice, prompt_bound: int, request: InferenceRequest) -> bool:
    """Returns whether any rate that may apply to the request is above its limit."""
    price = route.price
    image = price.highest(Billable.IMAGE, "input", prompt_bound)
    if request.allowed.output_images:
        image = max(image, price.highest_image(request.allowed.image_variant, prompt_bound))
    audio = price.highest(Billable.PROMPT, "audio", prompt_bound)
    made = [(Billable.COMPLETION, ""), (Billable.REASONING, "")]
    row = OPERATIONS[request.operation]
    # A model that draws may do so where the request does not say what it wants.
    if "image" in (request.outputs or (route.outputs if row.is_written else row.outputs)):
        made.append((Billable.COMPLETION, "image"))
    if "audio" in request.outputs or "audio_output" in row.counts:
        made.append((Billable.COMPLETION, "audio"))
    completion = max(price.highest(*kind, prompt_bound) for kind in made)
    rates = (
        (price.highest(Billable.PROMPT, "", prompt_bound) * _MILLION, limit.prompt),
        (completion * _MILLION, limit.completion),
        (price.highest(Billable.REQUEST, "", prompt_bound), limit.request),
        (image, limit.image),
        (audio * _MILLION if price.has_rate(Billable.PROMPT, "audio") else _FREE, limit.audio),
    )
    return any(most is not None and rate > Decimal(str(most)) for rate, most in rates)
