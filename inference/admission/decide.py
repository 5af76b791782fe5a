"""Decides about one request: whether it may be sent, to which candidates, and for how much."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from random import getrandbits
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from accounts.bearers import require_active, require_inference, require_usable
from accounts.policy import Policy, RegionNotAllowed, require_ingress_region
from billing.budgets import Budget
from billing.rate_limits import NO_RULES, LimitScope, OwnerRules, Rate, RateLimited, RateRule
from catalog.abilities import NO_POOL
from catalog.visibility import Exclusion
from config.api.errors import GatewayError, InvalidRequest, PaymentRequired
from config.clocks.clock import clock
from config.live_settings import settings
from config.secrets import hash_end_user
from inference import metrics
from inference.admission.authority import Authority, GovernedKey
from inference.admission.budgets import (
    AffordableCandidate,
    BudgetLeft,
    Budgets,
    LimitSpent,
    StaleReading,
    UnreadMeters,
)
from inference.admission.governance import ShadowedRules
from inference.filters.definitions import Filters, Finding
from inference.filters.problems import ContentBlocked, Unscreened
from inference.filters.screening import Screened, TimeSlice
from inference.ids import new_generation_id
from inference.requests.parsing import InferenceRequest
from inference.routing.candidates import (
    RoutingContext,
    Selection,
    require_candidates,
    select_candidates,
)
from inference.routing.health import HealthTable
from inference.routing.routes import Candidate, CatalogSnapshot, Route
from inference.shadow_counts import GuardrailRefusal


class Keeping(NamedTuple):
    """Whether the answer to a request may be kept, and whether the response cache is used."""

    is_allowed: bool = False
    is_cached: bool = False


_NO_KEEPING: Final = Keeping()
# The limits that a repeat counts for.
_REPEAT_LIMITS: Final = (Rate.REQUESTS_PER_MINUTE, Rate.REQUESTS_PER_DAY)
# The age from which a reading no longer says how busy an endpoint is.
_OLD: Final = timedelta(seconds=1)
# The time of the event loop that content filters of shadows may take for one batch of requests.
_SHADOW_SECONDS: Final = 0.002


@dataclass
class BatchScreening:
    """What content filters and shadows share for one batch of requests, of any tenant.

    ``enforced`` and ``shadows`` are the times of the event loop that filters may take. ``verdicts``
    collects those of shadows: the id, and the reason of a refusal or an empty text.
    """

    verdicts: list[tuple[Admission, list[tuple[UUID, str]]]] = field(default_factory=list)

    @cached_property
    def enforced(self) -> TimeSlice:
        return TimeSlice()

    @cached_property
    def shadows(self) -> TimeSlice:
        return TimeSlice(_SHADOW_SECONDS)


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A request that waits for admission; ``region`` is the region of the host that received it.

    ``generation_id`` is the id that its generation must have, if it is known before.
    ``wants_cache`` says whether the request asks for the response cache, or forbids it; ``None``
    leaves it to the workspace.
    """

    key_digest: str
    request: InferenceRequest
    request_id: str
    region: str | None = None
    http_referer: str | None = None
    app_title: str | None = None
    user_agent: str | None = None
    is_metadata_wanted: bool = False
    screened: Screened | None = None
    generation_id: str | None = None
    wants_cache: bool | None = None


class Admission(msgspec.Struct):
    """An admitted request, whose generation, hold and first price are stored.

    ``catalog_version`` is the version of the catalogue by which it was decided. ``request`` is the
    request after the content ``filters``, which is what may be sent. ``candidates`` are the
    selected candidates that can be paid, in order; the hold is the highest of their worst-case
    costs. ``probe`` is the subject that the first candidate probes, if its circuit is half-open:
    the owner of the admission records an outcome for it, or releases it.
    ``rates`` are the rate limits that count the request, ``limit_subjects`` those of their meters
    that are not the key's anyway, and ``rate_headers`` tell the caller what is left of them.
    ``at`` is the instant at which the generation was stored, in Unix seconds of the database.
    ``guardrails`` are those that let the request pass.
    ``keeping`` says whether the answer may be kept for repeats of the request, and ``retry_of`` is
    the generation that the caller's SDK has sent again. ``is_logged`` says that its workspace logs
    its input and output.
    """

    generation_id: str
    key_digest: str
    authority: Authority
    catalog_version: int
    request: InferenceRequest
    selection: Selection
    candidates: Sequence[AffordableCandidate]
    hold_nano: int
    upstream_hold_nano: int
    user: str | None
    region: str | None
    is_metadata_wanted: bool
    filters: Filters
    findings: Sequence[Finding]
    probe: UUID | None = None
    rates: Sequence[RateRule] = ()
    limit_subjects: Sequence[UUID] = ()
    held_tokens: int = 0
    rate_headers: Mapping[str, str] | None = None
    at: int = 0
    keeping: Keeping = _NO_KEEPING
    retry_of: str | None = None
    is_logged: bool = False
    guardrails: Collection[UUID] = ()


def decide(
    entry: AdmissionRequest,
    key: GovernedKey,
    budgets: Budgets,
    catalog: CatalogSnapshot,
    health: HealthTable,
    screening: BatchScreening,
) -> Admission:
    """Returns the admission of a request, not stored yet, and takes its hold from ``budgets``.

    Raises the :class:`GatewayError` of a refusal, :class:`StaleReading` when budgets that are not
    current would bound it, and ``Unscreened`` when its filters must run in a thread.
    """
    owners = find_rate_owners(key, entry.request.user)
    tokens = _measure_tokens(entry.request, owners, catalog) if owners else 0
    left = _require_permission(entry, key, budgets, owners, tokens)
    request, findings = _screen(entry, key, screening) if key.filters else (entry.request, ())
    now = clock.time()
    context = build_context(key, entry.key_digest, entry.region, catalog, health, now)
    select = partial(_select_of_pools, budgets) if key.routes.has_pools else require_candidates
    selection = select(request, context)
    organization_id = key.authority.organization_id
    usable: Sequence[Candidate] = selection.candidates
    if owners:
        usable = _keep_within_rates(usable, owners, budgets, tokens)
    candidates = budgets.find_affordable(
        request, usable, organization_id, left, settings.BYOK_FEE_PERCENT
    )
    hold_nano = max(item.credits_nano for item in candidates)
    # Only one candidate is charged, so both holds together cover the dearest one alone.
    most_nano = max(item.credits_nano + item.upstream_nano for item in candidates)
    admission = Admission(
        generation_id=entry.generation_id or new_generation_id(),
        key_digest=entry.key_digest,
        authority=key.authority,
        catalog_version=catalog.version,
        request=request,
        selection=selection,
        candidates=candidates,
        hold_nano=hold_nano,
        upstream_hold_nano=most_nano - hold_nano,
        user=None if request.user is None else hash_end_user(str(organization_id), request.user),
        region=entry.region,
        is_metadata_wanted=entry.is_metadata_wanted,
        filters=key.filters,
        findings=findings,
        keeping=_decide_keeping(entry, key),
    )
    if key.shadows:
        _judge_shadows(admission, entry, key, budgets, context, owners, tokens, screening)
    if key.rules.io_logging is not None:
        admission.is_logged = is_logged(admission, key)
    _take(admission, key, owners, budgets, left, tokens)
    for slug in selection.paced:
        metrics.count_paced(slug)
    _claim_first(admission, health, now)
    return admission


def _select_of_pools(
    budgets: Budgets, request: InferenceRequest, context: RoutingContext
) -> Selection:
    """Returns the selection of a request, which goes by the requests in flight.

    Raises :class:`UnreadMeters` when meters of its endpoints have not been read.
    """
    unread: set[UUID] = set()
    running_of = partial(count_running, budgets, unread)
    selection = require_candidates(request, msgspec.structs.replace(context, running_of=running_of))
    if unread:
        raise UnreadMeters(frozenset(unread))
    return selection


def count_running(budgets: Budgets, unread: set[UUID], route: Route) -> int:
    """Returns the requests in flight at an endpoint of a pool, over all workers.

    An old reading counts as none: the endpoint is then tried, and its meter returned. Adds meters
    that are missing to ``unread``. Raises :class:`StaleReading` when the endpoint is full by a
    reading that is not current.
    """
    if route.pool == NO_POOL:
        return 0
    meter = budgets.readings.get(route.endpoint_id)
    if meter is None:
        unread.add(route.endpoint_id)
        return 0
    taken = budgets.requests[route.endpoint_id]
    running, most = meter.running + taken, route.pool.max_in_flight
    if most is not None and running >= most and not budgets.is_current:
        raise StaleReading
    is_old = clock.now() - budgets.read_at[route.endpoint_id] > _OLD and not budgets.is_current
    return taken if is_old else running


class JudgedRequest(NamedTuple):
    """A request that the enforced rules admit, with what its decision has found.

    ``given`` is the request before content filters, ``request`` after them. ``policy`` and
    ``limits`` are the enforced ones. ``time`` is left for the content filters of shadows.
    """

    given: InferenceRequest
    request: InferenceRequest
    region: str | None
    policy: Policy
    limits: Sequence[Budget]
    organization_id: UUID
    selection: Selection
    context: RoutingContext
    time: TimeSlice
    owners: Sequence[OwnerRules] = ()
    tokens: int = 0


def _judge_shadows(
    admission: Admission,
    entry: AdmissionRequest,
    key: GovernedKey,
    budgets: Budgets,
    context: RoutingContext,
    owners: Sequence[OwnerRules],
    tokens: int,
    screening: BatchScreening,
) -> None:
    """Adds the verdicts of shadows about an admission that has taken nothing yet."""
    judged = JudgedRequest(
        entry.request, admission.request, entry.region, key.policy, key.budgets,
        admission.authority.organization_id, admission.selection, context, screening.shadows,
        owners, tokens,
    )  # fmt: skip
    verdicts = []
    for each in key.shadows:
        limits = key.authority.make_budgets(each.budgets)
        verdicts.append((each.shadow_id, judge_shadow(judged, each, limits, budgets)))
    screening.verdicts.append((admission, verdicts))


def judge_shadow(
    judged: JudgedRequest, shadow: ShadowedRules, limits: Sequence[Budget], budgets: Budgets
) -> str:
    """Returns why a shadow would refuse a request that is admitted; an empty text if it would not.

    ``limits`` are the budgets that the key would have. Takes the same steps as :func:`decide`, and
    takes nothing from ``budgets``. Raises
    :class:`StaleReading` for a shadow that changes a budget unless the readings are current: no
    ceiling watches over its budgets.
    """
    is_other = shadow.policy != judged.policy
    if limits != judged.limits:
        is_other = True
        if not budgets.is_current:
            raise StaleReading
    try:
        require_ingress_region(shadow.policy, judged.region)
        left = budgets.find_left(limits)
        if shadow.own_filters:
            judged.time.screen(shadow.own_filters, judged.given)
        if is_other:
            return _judge_route(judged, shadow.policy, left, budgets)
    except UnreadMeters:
        # A shadow that allows more has models whose rate limits nobody has read.
        return ""
    except RegionNotAllowed:
        return GuardrailRefusal.REGION
    except (LimitSpent, PaymentRequired):
        return GuardrailRefusal.BUDGET
    except ContentBlocked:
        return GuardrailRefusal.CONTENT
    except Unscreened:
        return GuardrailRefusal.UNREAD
    except GatewayError:
        if not budgets.is_current:
            raise StaleReading from None
        return GuardrailRefusal.OTHER
    return ""


def _judge_route(
    judged: JudgedRequest, policy: Policy, left: Sequence[BudgetLeft], budgets: Budgets
) -> str:
    """Judges the endpoints that the policy of a shadow leaves, and whether they can be paid."""
    if judged.region is not None:
        policy &= Policy.of(served_in=judged.region)
    selection = select_candidates(
        judged.request, msgspec.structs.replace(judged.context, policy=policy)
    )
    if not selection.candidates:
        return name_exclusion(judged.selection, selection)
    budgets.find_affordable(
        judged.request,
        _keep_within_rates(selection.candidates, judged.owners, budgets, judged.tokens),
        judged.organization_id,
        left,
        settings.BYOK_FEE_PERCENT,
    )
    return ""


def name_exclusion(before: Selection, after: Selection | None) -> str:
    """Returns the first reason for which a policy excludes the endpoints that there were."""
    had = {candidate.route.endpoint_id for candidate in before.candidates}
    found = {
        reason
        for excluded in (() if after is None else after.excluded)
        if excluded.route.endpoint_id in had
        for reason in excluded.reasons
    }
    return next(
        (str(reason) for reason in Exclusion if reason in found), str(GuardrailRefusal.OTHER)
    )


def _claim_first(admission: Admission, health: HealthTable, now: float) -> None:
    """Takes the probe of the first candidate, and counts the request for its pace."""
    first = admission.candidates[0].candidate
    if health.claim(first.subject, now):
        admission.probe = first.subject
    elif first.rest is not None and health.claim(first.rest, now):
        admission.probe = first.rest
    if (pace := first.pace) is not None:
        tokens = first.route.family.estimate(admission.request.text)
        health.pacer.count(pace.provider_id, 1, tokens, now)


def give_back(admission: Admission, health: HealthTable) -> None:
    """Undoes what a decision has taken of its first candidate, because it was not stored."""
    if admission.probe is not None:
        health.release(admission.probe)
    first = admission.candidates[0].candidate
    if (pace := first.pace) is not None:
        tokens = first.route.family.estimate(admission.request.text)
        health.pacer.count(pace.provider_id, -1, -tokens, clock.time())


def _require_permission(
    entry: AdmissionRequest,
    key: GovernedKey,
    budgets: Budgets,
    owners: Sequence[OwnerRules],
    tokens: int,
) -> Sequence[BudgetLeft]:
    """Returns what the budgets have left; raises an error if the key may send no request now."""
    if not key.is_unrestricted:
        _require_usable(entry, key, budgets.now)
    if owners:
        budgets.require_rates(_own_rules(owners), tokens)
    return budgets.find_left(key.budgets)


def _require_usable(entry: AdmissionRequest, key: GovernedKey, now: datetime) -> None:
    authority = key.authority
    require_usable(disabled=authority.disabled, expires_at=authority.expires_at, now=now)
    require_active(authority.suspension_reason)
    require_inference(is_management=authority.is_management)
    require_ingress_region(key.policy, entry.region)


def judge_repeat(
    entry: AdmissionRequest, key: GovernedKey, now: datetime
) -> tuple[list[RateRule], bool]:
    """Returns the limits on requests that count a repeat of an answered request, for all models.

    The second value says whether a kept answer may still be given. Raises the errors of a key that
    may send no request. A repeat costs nothing, so no budget refuses it, and it is not running
    while its answer is sent.
    """
    _require_usable(entry, key, now)
    rules = [
        replace(rule, limits=limits)
        for rule in _own_rules(find_rate_owners(key, entry.request.user))
        if (limits := {rate: rule.limits[rate] for rate in _REPEAT_LIMITS if rate in rule.limits})
    ]
    return rules, _decide_keeping(entry, key).is_allowed


def _decide_keeping(entry: AdmissionRequest, key: GovernedKey) -> Keeping:
    """Returns whether the answer may be kept; raises :class:`InvalidRequest` for a refusal.

    Zero data retention, whoever demands it, forbids to keep anything.
    """
    rules = key.rules
    if not rules.keeps_answers:
        if entry.wants_cache:
            raise InvalidRequest(
                "X-OpenRouter-Cache: the workspace keeps no answers, so there is no response "
                "cache. Set is_answer_storage_enabled of the workspace, or leave the header out."
            )
        return _NO_KEEPING
    if _is_zdr(key, entry.request):
        if entry.wants_cache:
            raise InvalidRequest(
                "X-OpenRouter-Cache: the request must be served with zero data retention, which "
                "forbids to keep its answer. Leave the header out."
            )
        return _NO_KEEPING
    is_cached = rules.caches_responses if entry.wants_cache is None else entry.wants_cache
    return Keeping(is_allowed=True, is_cached=is_cached)


def _is_zdr(key: GovernedKey, request: InferenceRequest) -> bool:
    return bool(key.policy.zdr or request.preferences.zdr)


def keep_less(admission: Admission, key: GovernedKey) -> None:
    """Keeps nothing more of a running request than its key's present rules allow."""
    if not key.rules.keeps_answers or _is_zdr(key, admission.request):
        admission.keeping = _NO_KEEPING
    if admission.is_logged:
        admission.is_logged = is_logged(admission, key)


def is_logged(admission: Admission, key: GovernedKey) -> bool:
    """Returns whether the input and output of an admitted request are logged."""
    rules, policy = key.rules.io_logging, key.policy
    return (
        rules is not None
        and rules.find_obstacle(
            admission.authority.key_id, admission.request, is_zdr=bool(policy.zdr)
        )
        is None
        and rules.has_in_sample(admission.generation_id)
    )


def find_rate_owners(key: GovernedKey, user: str | None) -> Sequence[OwnerRules]:
    """Returns the rate limits of a key, its workspace, its organization and an end user."""
    authority = key.authority
    owners: list[OwnerRules] = []
    if key.rates is not NO_RULES:
        owners = key.rates.owners_of(authority.key_id, authority.workspace_id, user)
    if settings.REQUESTS_PER_MINUTE:
        limits = {Rate.REQUESTS_PER_MINUTE: settings.REQUESTS_PER_MINUTE}
        owners.insert(0, OwnerRules(RateRule(LimitScope.API_KEY, authority.key_id, limits)))
    return owners


def _own_rules(owners: Sequence[OwnerRules]) -> list[RateRule]:
    """Returns the rules for all models together."""
    return [owner.own for owner in owners if owner.own is not None]


def model_rules(owners: Sequence[OwnerRules], candidate: Candidate) -> list[RateRule]:
    """Returns the rules for the model of a candidate."""
    route = candidate.route
    return [
        rule
        for owner in owners
        if owner.models
        for rule in owner.for_model(route.model_slug, route.model_permaslug)
    ]


def _measure_tokens(
    request: InferenceRequest, owners: Sequence[OwnerRules], catalog: CatalogSnapshot
) -> int:
    """Returns the tokens that a request may use, by an estimate of its prompt.

    Without ``max_tokens`` the output counts when it is known. Nothing is measured, and the result
    is 0, if no limit can count tokens.
    """
    for owner in owners:
        if owner.models or (owner.own is not None and owner.own.counts_tokens):
            output = (request.max_tokens or 0) * request.choices
            return catalog.family_of(request.models).estimate(request.text) + output
    return 0


def _keep_within_rates(
    candidates: Sequence[Candidate],
    owners: Sequence[OwnerRules],
    budgets: Budgets,
    tokens: int,
) -> Sequence[Candidate]:
    """Returns the candidates whose models are within their rate limits, in order.

    So a request that names several models uses the next one. Raises :class:`RateLimited` for the
    first model if no candidate is left, and with readings that are not current, and
    :class:`UnreadMeters` once for the meters of all models.
    """
    if not any(owner.models for owner in owners):
        return candidates
    rules: dict[str, list[RateRule]] = {}
    for candidate in candidates:
        if candidate.route.model_slug not in rules:
            rules[candidate.route.model_slug] = model_rules(owners, candidate)
    subjects = {rule.subject_id for found in rules.values() for rule in found}
    if unread := subjects - budgets.readings.keys():
        raise UnreadMeters(frozenset(unread))
    own = _own_rules(owners)
    refusals: dict[str, RateLimited | None] = {}
    for slug, found in rules.items():
        try:
            budgets.require_rates(found, tokens, others=own)
            refusals[slug] = None
        except RateLimited as exc:
            if not budgets.is_current:
                raise
            refusals[slug] = exc
    usable = [each for each in candidates if refusals[each.route.model_slug] is None]
    if not usable:
        raise next(exc for exc in refusals.values() if exc is not None)
    return usable


def _take(
    admission: Admission,
    key: GovernedKey,
    owners: Sequence[OwnerRules],
    budgets: Budgets,
    left: Sequence[BudgetLeft],
    tokens: int,
) -> None:
    """Takes the hold of an admission, and counts it for the rate limits of all its models.

    A fallback is not admitted again, so a limit of its model must have counted the request before.
    """
    authority = admission.authority
    admission.guardrails = key.guardrails.keys()
    if owners:
        rules = _own_rules(owners)
        # Most candidates have the same model.
        models = {item.candidate.route.model_slug: item.candidate for item in admission.candidates}
        for candidate in models.values():
            rules += model_rules(owners, candidate)
        admission.rates = rules
        admission.held_tokens = tokens if any(rule.counts_tokens for rule in rules) else 0
        subjects = dict.fromkeys(rule.subject_id for rule in rules)
        admission.limit_subjects = [each for each in subjects if each not in authority.subjects]
    route = admission.candidates[0].candidate.route
    if route.pool != NO_POOL:
        # Counted where it begins; a fallback is counted when it moves.
        most = route.pool.max_in_flight
        limits = {} if most is None else {Rate.CONCURRENT_REQUESTS: most}
        rule = RateRule(LimitScope.ORGANIZATION, route.endpoint_id, limits)
        admission.rates = [*admission.rates, rule]
        admission.limit_subjects = [*admission.limit_subjects, route.endpoint_id]
    budgets.take(
        authority.organization_id,
        (*authority.subjects, *admission.limit_subjects),
        left,
        credits_nano=admission.hold_nano,
        upstream_nano=admission.upstream_hold_nano,
        rules=admission.rates,
        held_tokens=admission.held_tokens,
    )


def _screen(
    entry: AdmissionRequest, key: GovernedKey, screening: BatchScreening
) -> tuple[InferenceRequest, Sequence[Finding]]:
    """Returns the request after its content filters, and their findings."""
    screened = entry.screened
    if screened is None or screened.filters != key.filters:
        screened = screening.enforced.screen(key.filters, entry.request)
    return screened.request, screened.findings


def build_context(
    key: GovernedKey,
    key_digest: str,
    region: str | None,
    catalog: CatalogSnapshot,
    health: HealthTable,
    now: float,
) -> RoutingContext:
    """Returns the data by which a request of a key is routed; ``region`` is that of the host."""
    authority = key.authority
    return RoutingContext(
        snapshot=catalog,
        own=key.routes,
        workspace_id=authority.workspace_id,
        key_digest=key_digest,
        policy=key.policy if region is None else key.policy & Policy.of(served_in=region),
        organization_id=authority.organization_id,
        member_id=authority.member_id,
        defaults=key.rules.defaults,
        disabled_tools=key.rules.disabled_server_tools,
        health_of=partial(health.health, now=now),
        wait_of=lambda pace, tokens: health.pacer.wait(pace, tokens, now),
        seed=getrandbits(64),
    )
