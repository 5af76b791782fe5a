"""Validates and activates a draft in one step, for a create request with ``activate``."""

from __future__ import annotations

import logging
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError

from config.api.errors import GatewayError, InvalidTransition, RequestTimeout
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation, ValidationSlot

logger = logging.getLogger(__name__)

_MISSING: Final = (
    validation.Reason.WORKSPACE_NOT_FOUND,
    validation.Reason.MODEL_NOT_FOUND,
    validation.Reason.PROVIDER_NOT_FOUND,
)
_STATUSES: Final = {Validation.Outcome.UNREACHABLE: 502, Validation.Outcome.BROKEN: 500}


class NotActivated(GatewayError):
    """The draft could not be activated and was kept; carries the draft and its validation."""

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
    workspace_id: UUID,
    slot: ValidationSlot,
    by: str,
    probe_parameters: bool | None = None,
) -> None:
    """DRAFT → ACTIVE, when a live validation passes; every failure keeps the draft.

    The ``slot`` was taken together with the draft.

    Raises :class:`RequestTimeout` at the time limit, :class:`NotActivated` for other failures.
    """
    result = validation.run(
        endpoint, workspace_id=workspace_id, slot=slot, probe_parameters=probe_parameters
    )
    if result.outcome == Validation.Outcome.TIMED_OUT:
        raise RequestTimeout(
            "The validation exceeded its time limit; the draft was kept.",
            metadata={"endpoint_id": str(endpoint.pk)},
        )
    if not result.passed:
        raise _describe_failure(endpoint, result)
    try:
        endpoint.activate(by=by)
    except InvalidTransition as exc:
        raise NotActivated(exc.status, exc.message, endpoint, result) from exc
    except DatabaseError as exc:
        logger.exception("a validated endpoint was not activated")
        message = "The endpoint could not be activated; the draft was kept."
        raise NotActivated(500, message, endpoint, result) from exc


def _describe_failure(endpoint: PrivateEndpoint, result: Validation) -> NotActivated:
    check = next(check for check in result.checks if not check["passed"])
    status = 404
    if check["reason"] not in _MISSING:
        status = _STATUSES.get(Validation.Outcome(result.outcome), 422)
    message = f"The validation failed: {check['name']} ({check['reason']}). The draft was kept."
    return NotActivated(status, message, endpoint, result)
