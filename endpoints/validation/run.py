"""Runs a validation and stores it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from django.conf import settings
from django.db import DatabaseError, connection

from accounts.models import ByokCredential
from catalog.abilities import read_settings
from catalog.operations import proven_operations
from catalog.pricing import cost_nano
from config.clocks.clock import clock
from config.credentials import Secret
from config.egress.rules import tighten
from endpoints.models import PrivateEndpoint, Proof, Validation, ValidationSlot, proven_names
from endpoints.validation.attempt import Calls, HostScope, find_attempt
from endpoints.validation.calls import CallLimits
from endpoints.validation.checks import CheckFailed, Outcome, Reason, Result
from endpoints.validation.parameters import MOST_TRIAL_TOKENS, TRIALS, learn_parameters
from endpoints.validation.probes import probe

logger = logging.getLogger(__name__)


class Asker(NamedTuple):
    """The caller of a validation, and what it may do.

    The validation takes minutes. At its end ``judge`` raises an error if the caller may change
    nothing any more: then no result is stored, and no credential is bound to the host. ``scope``
    are the hosts to which it may send secrets and calls.
    """

    judge: Callable[[], None]
    scope: HostScope = HostScope.PERMITTED


def run(
    endpoint: PrivateEndpoint,
    *,
    workspace_id: uuid.UUID,
    slot: ValidationSlot | None = None,
    asker: Asker | None = None,
    probe_parameters: bool | None = None,
    again: bool = False,
) -> Validation:
    """Validates a deployment with the workspace's credential, stores the result and returns it.

    Makes at most two calls for each operation that the deployment may serve, and further ones of
    another size, within the limits of :func:`_limit_calls`, outside any transaction. With
    ``probe_parameters``, by default ``VALIDATION_PROBES_PARAMETERS`` where they cost no more than
    ``VALIDATION_SPEND_LIMIT``, a passed validation also makes the calls of
    :func:`learn_parameters`. Failed checks and a failure to store the result are part of the
    result. ``again`` compares it with the current validation of an active endpoint. Takes a
    ``slot`` of the organization, unless the caller has one, and gives it back.

    Without an ``asker``, as on the command line, everything is allowed.
    Raises :class:`EndpointNotFound` when the endpoint was deleted meanwhile,
    :class:`ValidationsBusy` without a free slot, and :class:`HostIsNew` for a host beyond
    the asker's scope.
    """
    record = endpoint.record_repetition if again else endpoint.record_validation
    if slot is None:
        slot = ValidationSlot(organization_id=endpoint.organization_id).take()
    with slot:
        if probe_parameters is None:
            probe_parameters = settings.VALIDATION_PROBES_PARAMETERS and (
                _limit_calls(endpoint).tokens >= MOST_TRIAL_TOKENS
            )
        slot.extend(limit_seconds(endpoint))
        validation = examine(
            endpoint,
            workspace_id=workspace_id,
            scope=HostScope.PERMITTED if asker is None else asker.scope,
            probing_slot=slot if probe_parameters else None,
        )
        if asker is not None:
            asker.judge()
        try:
            record(validation)
        except DatabaseError:
            logger.exception("cannot store a validation")
            validation.outcome = Outcome.BROKEN
            validation.checks.append(
                {"name": "database", "passed": False, "reason": str(Reason.DATABASE_ERROR)}
            )
    return validation


def examine(
    endpoint: PrivateEndpoint,
    *,
    workspace_id: uuid.UUID,
    trial: tuple[ByokCredential, Secret] | None = None,
    scope: HostScope = HostScope.PERMITTED,
    probing_slot: ValidationSlot | None = None,
    baseline: Validation | None = None,
) -> Validation:
    """Makes the calls of a validation and returns the unsaved result; the caller has a slot.

    ``trial`` is a credential with a new secret to try before it is stored; the validation uses this
    credential even if the workspace would use another one first. Raises :class:`HostIsNew` for a
    host beyond the ``scope``. With ``probing_slot``, the slot that the caller has, parameters are
    tried after the checks have passed. With a ``baseline``, only the operations that it has proven
    are asked for.
    """
    started = time.monotonic()
    validation = Validation(
        endpoint=endpoint, configuration=endpoint.configuration, outcome=Outcome.PASSED
    )
    result = Result()
    attempt = None
    try:
        attempt = find_attempt(endpoint, workspace_id, trial, scope, validation, result)
        # The calls take seconds; other threads may use the database connection meanwhile.
        if not connection.in_atomic_block:
            connection.close()
        policy = settings.EGRESS_POLICY.extend(endpoint.organization.reach)
        voices = endpoint.model.supported_voices or ()
        calls = attempt.calls if baseline is None else _select_proven(attempt.calls, baseline)
        reported = read_settings(endpoint.settings).reported_model
        limits = _limit_calls(endpoint)
        asyncio.run(probe(calls, policy, result, limits, voices=voices, reported_model=reported))
        if probing_slot is not None and result.outcome == Outcome.PASSED:
            most = _limit_trials(limits, result)
            probing_slot.extend(settings.VALIDATION_TIMEOUT)
            if not connection.in_atomic_block:
                connection.close()
            for call, dialect in _select_tried(calls, result):
                validation.parameters = result.parameters
                asyncio.run(learn_parameters(call, dialect, policy, endpoint, result, most))
    except CheckFailed as failure:
        result.checks.append(failure.check)
        result.outcome = failure.outcome
    if attempt is not None and result.has_sent:
        validation.host = attempt.host
    _note_result(validation, result)
    at = int(clock.time())
    validation.cost_nano = sum(
        cost_nano(endpoint.price.price, usage, at) for usage in result.usages
    )
    validation.duration_ms = round((time.monotonic() - started) * 1000)
    return validation


def _note_result(validation: Validation, result: Result) -> None:
    """Writes what the checks have found to the unsaved row."""
    validation.outcome = result.outcome
    validation.checks = result.checks
    validation.evidence = result.evidence
    if result.operations:
        validation.evidence["operations"] = result.operations
    if result.refusals:
        validation.evidence["refusals"] = result.refusals


def limit_seconds(endpoint: PrivateEndpoint) -> float:
    """Returns how long the checks may take: a cold start takes what the owner says it takes.

    That is the longest of ``VALIDATION_TIMEOUT`` and the endpoint's own limits of an answer.
    """
    own = endpoint.time_limits
    return max(
        settings.VALIDATION_TIMEOUT,
        tighten(settings.UPSTREAM_HEADERS_TIMEOUT, own.headers or 0),
        tighten(settings.UPSTREAM_FIRST_EVENT_TIMEOUT, own.first_event or 0),
        tighten(settings.HOLD_TIMEOUT, own.total or 0),
    )


def _limit_calls(endpoint: PrivateEndpoint) -> CallLimits:
    """Returns the limits of the checks, with the tokens for ``VALIDATION_SPEND_LIMIT``."""
    price = endpoint.price.price
    dearest = max(price.net("prompt"), price.net("completion"))
    tokens = Decimal(str(settings.VALIDATION_SPEND_LIMIT)) / dearest if dearest else math.inf
    longest = min(MOST_TRIAL_TOKENS, endpoint.max_completion_tokens or MOST_TRIAL_TOKENS)
    return CallLimits(limit_seconds(endpoint), float(tokens), longest)


def _limit_trials(limits: CallLimits, result: Result) -> float:
    """Returns the tokens of the trials: with those of the checks, they cost no more than the limit.

    Where the limit has not room for all trials, they were asked for, and have their own bound.
    """
    if limits.tokens < MOST_TRIAL_TOKENS:
        return MOST_TRIAL_TOKENS
    spent = sum(usage.prompt + usage.completion for usage in result.usages)
    return min(MOST_TRIAL_TOKENS, limits.tokens - spent)


def _select_tried(calls: Calls, result: Result) -> Calls:
    """Returns the calls of the proven operations whose parameters are tried."""
    return [
        each
        for each in calls
        if each[0].operation in TRIALS and result.operations.get(each[0].operation) == Proof.PROVEN
    ]


def _select_proven(calls: Calls, baseline: Validation) -> Calls:
    """Returns the calls of the operations that an earlier validation has proven.

    A release that stored no operations asked for the first alone. All are asked for if none is
    left, because the catalogue lists others now.
    """
    proven = proven_names(baseline.operations)
    if proven is None:
        return calls[:1]
    served = proven_operations(frozenset(call.operation for call, _ in calls), proven)
    return [each for each in calls if each[0].operation in served] or calls
