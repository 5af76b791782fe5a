"""Selects the other candidates of a request again, after a change between two of its attempts."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import Final
from uuid import UUID

from django.conf import settings

from accounts.bearers import require_active, require_inference, require_usable
from accounts.policy import require_ingress_region
from config.clocks.clock import clock
from inference.admission.authority import GovernedKey
from inference.admission.budgets import LEAST_TOKENS, AffordableCandidate, price_for_fee
from inference.admission.decide import Admission, build_context, find_rate_owners, model_rules
from inference.admission.estimate import affordable_tokens, fee_nano, worst_case_nano
from inference.routing.candidates import ExcludedEndpoint, Selection, Unusable, require_candidates
from inference.routing.health import HealthTable
from inference.routing.routes import Candidate, CatalogSnapshot

_HUNDRED: Final = Decimal(100)


def replan(
    admission: Admission,
    key: GovernedKey,
    catalog: CatalogSnapshot,
    health: HealthTable,
    tried: Collection[Candidate],
) -> None:
    """Replaces the candidates of an admission by those that are left under the present versions.

    The candidates that were tried are left out, and those that may cost more than the admission
    holds: the hold cannot grow. No budget is asked again, because the hold has its place in it.
    Nor are candidates used whose model has a rate limit that has not counted the request.

    Raises the error that would refuse a new request: the key was revoked, the organization was
    suspended or forbids every endpoint, or the model has none any more.
    """
    now = clock.time()
    authority = key.authority
    require_usable(disabled=authority.disabled, expires_at=authority.expires_at, now=clock.now())
    require_active(authority.suspension_reason)
    require_inference(is_management=authority.is_management)
    require_ingress_region(key.policy, admission.region)
    context = build_context(key, admission.key_digest, admission.region, catalog, health, now)
    selected = require_candidates(admission.request, context)
    subjects = {candidate.subject for candidate in tried}
    endpoints = {candidate.route.endpoint_id for candidate in tried}
    selection = Selection(
        selected.requested,
        selected.model,
        list(tried),
        is_replanned=True,
        resolution=selected.resolution,
    )
    selection.excluded += [
        each for each in selected.excluded if each.route.endpoint_id not in endpoints
    ]
    owners = find_rate_owners(key, admission.request.user)
    counted = {rule.subject_id for rule in admission.rates}
    candidates: list[AffordableCandidate] = []
    left_out: dict[UUID, ExcludedEndpoint] = {}
    for candidate in selected.candidates:
        if candidate.subject in subjects:
            continue
        item, reasons = None, [str(Unusable.RATE_LIMIT)]
        if all(rule.subject_id in counted for rule in model_rules(owners, candidate)):
            item, reasons = _fit_hold(admission, key, candidate), [str(Unusable.ABOVE_HOLD)]
        if item is not None:
            candidates.append(item)
            selection.candidates.append(candidate)
        else:
            left_out[candidate.route.endpoint_id] = ExcludedEndpoint(candidate.route, reasons)
    fitting = {candidate.route.endpoint_id for candidate in selection.candidates}
    selection.excluded += [each for key_, each in left_out.items() if key_ not in fitting]
    admission.authority, admission.catalog_version = authority, catalog.version
    admission.selection, admission.candidates = selection, candidates


def _fit_hold(
    admission: Admission, key: GovernedKey, candidate: Candidate
) -> AffordableCandidate | None:
    """Returns a candidate whose worst case the hold covers; ``None`` if it does not.

    An answer that the caller did not bound is bounded by what the hold can pay.
    """
    percent = settings.BYOK_FEE_PERCENT
    held, in_all = admission.hold_nano, admission.hold_nano + admission.upstream_hold_nano
    room = held
    if candidate.is_byok:
        if not percent and not any(budget.include_byok for budget in key.budgets):
            return AffordableCandidate(candidate, 0, 0)
        # The credential pays the price, and the credits pay the fee.
        room = min(price_for_fee(held, percent), price_for_fee(in_all, percent + _HUNDRED))
    request = admission.request
    worst, max_tokens = worst_case_nano(request, candidate), None
    if worst > room:
        if request.max_tokens is not None:
            return None
        max_tokens = affordable_tokens(request, candidate, room)
        if max_tokens < LEAST_TOKENS:
            return None
        worst = worst_case_nano(request, candidate, max_tokens=max_tokens)
    if not candidate.is_byok:
        return AffordableCandidate(candidate, worst, 0, max_tokens)
    fee = fee_nano(worst, percent, round_up=True)
    if fee > held or fee + worst > in_all:
        return None
    return AffordableCandidate(candidate, fee, worst, max_tokens)
