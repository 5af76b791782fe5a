"""Rotation of a provider credential, with the validations of the endpoints that use it."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q, QuerySet

from accounts.models import ByokCredential
from config.api.errors import Unprocessable
from config.credentials import Secret
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation, ValidationSlot, lost_operations


class RotationRefused(Unprocessable):
    """A dependent endpoint fails its validation with the new secret; the old secret stays."""

    error_type = "rotation_refused"


def dependants(credential: ByokCredential) -> QuerySet[PrivateEndpoint]:
    """Returns the active endpoints and the validated drafts that use the credential.

    What failed before, or serves nothing now, does not keep a secret from being replaced.
    """
    status = PrivateEndpoint.Status
    is_validated = Q(status=status.DRAFT, validation__outcome=Validation.Outcome.PASSED)
    return (
        PrivateEndpoint.objects.for_organization(credential.organization_id)
        .filter(is_validated | Q(status=status.ACTIVE), validation__credential=credential)
        .select_related("model", "provider", "private_provider", "price", "validation")
    )


def rotate(
    credential: ByokCredential, secret: Secret, *, revalidate: bool = False
) -> list[Validation]:
    """Replaces a credential's secret and returns the validations made with the new secret.

    Without ``revalidate``, returns none, and the dependants' validations become stale. With it,
    each dependant is validated first, as :func:`try_dependants` says.
    """
    tried = try_dependants(credential, secret) if revalidate else []
    return replace_secret(credential, secret, tried)


def try_dependants(
    credential: ByokCredential, secret: Secret
) -> list[tuple[PrivateEndpoint, Validation]]:
    """Validates each dependant with a new secret, and stores nothing.

    Calls upstreams, so it must not run in a transaction. Raises :class:`RotationRefused` unless all
    pass, and :class:`ValidationsBusy` before anything is tried when the organization has no free
    slot.
    """
    with ValidationSlot(organization_id=credential.organization_id).take() as slot:
        return _try_dependants(credential, secret, slot)


def replace_secret(
    credential: ByokCredential, secret: Secret, tried: list[tuple[PrivateEndpoint, Validation]]
) -> list[Validation]:
    """Replaces a secret together with what :func:`try_dependants` found; returns the validations.

    Raises :class:`RotationRefused`, and changes nothing, when an endpoint has changed since.
    """
    with transaction.atomic():
        credential.lock_present()
        keys = [endpoint.pk for endpoint, _ in tried]
        PrivateEndpoint.objects.filter(pk__in=keys).lock_in_order()
        for endpoint, found in tried:
            found.credential_version = credential.version + 1
            endpoint.record_revalidation(found)
            _require_passed(endpoint, found)
        credential.rotate(secret)
    return [found for _, found in tried]


def _try_dependants(
    credential: ByokCredential, secret: Secret, slot: ValidationSlot
) -> list[tuple[PrivateEndpoint, Validation]]:
    """Validates each dependant with the new secret; raises :class:`RotationRefused`."""
    tried = []
    for endpoint in dependants(credential).order_by("pk"):
        current = endpoint.validation
        if current is None or current.workspace_id is None:
            continue
        slot.extend(validation.limit_seconds(endpoint))
        known = current.operations
        found = validation.examine(
            endpoint,
            workspace_id=current.workspace_id,
            trial=(credential, secret),
            baseline=None if known is None else current,
        )
        _require_passed(endpoint, found)
        _require_operations(endpoint, current, found)
        # The deployment is the same, so what was proven about it stays.
        found.parameters = current.parameters
        if known is not None:
            found.evidence["operations"] = {**known, **(found.operations or {})}
        tried.append((endpoint, found))
    return tried


def _require_passed(endpoint: PrivateEndpoint, found: Validation) -> None:
    if found.passed:
        return
    failed = next(check for check in found.checks if not check["passed"])
    raise RotationRefused(
        f"{endpoint} does not pass with the new secret: "
        f"{failed['name']} ({failed['reason']}). Nothing was changed.",
        metadata={"endpoint_id": str(endpoint.pk), "reason": failed["reason"]},
    )


def _require_operations(endpoint: PrivateEndpoint, current: Validation, found: Validation) -> None:
    """Refuses a secret with which an endpoint would no longer serve what it serves now."""
    if lost := lost_operations(current.operations, found.operations):
        names = ", ".join(f"/{name}" for name in sorted(lost))
        raise RotationRefused(
            f"{endpoint} would no longer serve {names} with the new secret. Nothing was changed.",
            metadata={
                "endpoint_id": str(endpoint.pk),
                "reason": str(validation.Reason.UPSTREAM_ERROR),
            },
        )
