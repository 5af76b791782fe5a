"""Validates and activates in one step: a new draft, or the change of an active endpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, transaction

from accounts.models import WorkspaceNotFound, workspace_for
from config.api.errors import GatewayError, InvalidTransition, RequestTimeout
from endpoints import validation
from endpoints.models import EndpointLimitReached, PrivateEndpoint, Validation, ValidationSlot
from endpoints.validation import Asker, HostIsNew

logger = logging.getLogger(__name__)

_MISSING: Final = (
    validation.Reason.WORKSPACE_NOT_FOUND,
    validation.Reason.MODEL_NOT_FOUND,
    validation.Reason.PROVIDER_NOT_FOUND,
)
_STATUSES: Final = {Validation.Outcome.UNREACHABLE: 502, Validation.Outcome.BROKEN: 500}


class NotActivated(GatewayError):
    """A draft or a change could not be activated; carries the endpoint and the validation."""

    def __init__(
        self, status: int, message: str, endpoint: PrivateEndpoint, result: Validation
    ) -> None:
        super().__init__(message)
        self.status = status
        self.endpoint = endpoint
        self.validation = result

    def body(self) -> dict[str, Any]:
        """Returns the error envelope without metadata, as specification 7.2 requires."""
        body = super().body()
        del body["error"]["metadata"]
        return body


def validate_and_activate(
    endpoint: PrivateEndpoint,
    *,
    slot: ValidationSlot,
    by: str,
    asker: Asker,
    **options: Any,
) -> None:
    """DRAFT → ACTIVE, when a live validation passes; every failure keeps the draft.

    The ``slot`` was taken together with the draft; ``asker`` and ``options`` are those
    of :func:`endpoints.validation.run`.

    Raises :class:`RequestTimeout` at the time limit, :class:`HostIsNew` before anything is sent,
    and :class:`NotActivated` for other failures.
    """
    kept = "The draft was kept."
    try:
        result = validation.run(endpoint, slot=slot, asker=asker, **options)
    except HostIsNew as exc:
        found = {"endpoint_id": str(endpoint.pk)}
        raise type(exc)(f"{exc.message} {kept}", metadata=found) from exc
    _conclude(endpoint, result, partial(endpoint.activate, by=by), kept)


def validate_and_replace(
    endpoint: PrivateEndpoint,
    changes: Mapping[str, Any],
    *,
    workspace_id: UUID,
    by: str,
    asker: Asker,
    **options: Any,
) -> None:
    """ACTIVE → ACTIVE, with another deployment, when a live validation of it passes.

    ``changes`` are those of :meth:`PrivateEndpoint.edit`. They need no validation if they leave the
    upstream as it is. Every failure changes nothing. ``asker`` and ``options`` are those of
    :func:`validate_and_activate`.

    Raises :class:`RequestTimeout` at the time limit, :class:`NotActivated` for other failures,
    :class:`InvalidTransition` for an endpoint that is not active, and, where nothing needs a
    validation, :class:`WorkspaceNotFound`.
    """
    with transaction.atomic():
        plan = endpoint.edit_or_plan(by=by, **changes)
        if plan is None:
            workspace_for(endpoint.organization_id, workspace_id)
    if plan is None:
        return
    result = validation.run(plan.endpoint, workspace_id=workspace_id, asker=asker, **options)
    replace = partial(endpoint.replace, result, basis=plan.basis, by=by, **changes)
    _conclude(endpoint, result, replace, "Nothing was changed.")


def validate_only(
    endpoint: PrivateEndpoint,
    *,
    workspace_id: UUID,
    again: bool,
    asker: Asker,
    probe_parameters: bool | None = None,
) -> Validation:
    """ANY → same. Validates a draft, or with ``again`` an endpoint that was activated.

    The options are those of :func:`endpoints.validation.run`.

    Raises :class:`InvalidTransition` in another state.
    """
    status = PrivateEndpoint.Status
    if endpoint.status == status.ACTIVE and not again:
        raise InvalidTransition(
            "The private endpoint is active; only a draft is validated without again. Send "
            "again: true to validate an active endpoint.",
            metadata={"status": str(status.ACTIVE)},
        )
    endpoint.require_status(*((status.ACTIVE, status.DISABLED) if again else (status.DRAFT,)))
    return validation.run(
        endpoint,
        workspace_id=workspace_id,
        asker=asker,
        probe_parameters=probe_parameters,
        again=again,
    )


def _conclude(
    endpoint: PrivateEndpoint, result: Validation, transition: Callable[[], None], kept: str
) -> None:
    """Makes the transition if the validation has passed; each error says what was ``kept``."""
    if result.outcome == Validation.Outcome.TIMED_OUT:
        raise RequestTimeout(
            f"The validation exceeded its time limit. {kept}",
            metadata={"endpoint_id": str(endpoint.pk)},
        )
    if not result.passed:
        raise _refuse(endpoint, result, kept)
    try:
        transition()
    except (EndpointLimitReached, InvalidTransition, WorkspaceNotFound) as exc:
        _read_stored(endpoint)
        raise NotActivated(exc.status, f"{exc.message} {kept}", endpoint, result) from exc
    except DatabaseError as exc:
        logger.exception("a validated endpoint was not activated")
        _read_stored(endpoint)
        message = f"The endpoint could not be activated. {kept}"
        raise NotActivated(500, message, endpoint, result) from exc


def _read_stored(endpoint: PrivateEndpoint) -> None:
    """Reads again what a transition that was rolled back has changed in memory."""
    with suppress(DatabaseError):
        endpoint.refresh_from_db()


def _refuse(endpoint: PrivateEndpoint, result: Validation, kept: str) -> NotActivated:
    check = next(check for check in result.checks if not check["passed"])
    status = 404
    if check["reason"] not in _MISSING:
        status = _STATUSES.get(Validation.Outcome(result.outcome), 422)
    return NotActivated(status, f"{describe_failure(result)} {kept}", endpoint, result)


def describe_failure(result: Validation) -> str:
    """Returns the sentences that name the first failed check of a validation."""
    check = next(check for check in result.checks if not check["passed"])
    message = f"The validation failed: {check['name']} ({check['reason']})."
    if check["reason"] == validation.Reason.INVALID_BASE_URL and "upstream_message" in check:
        message += f" {check['upstream_message']}"
    return message
