"""Rotation of a provider credential, with the validations of the endpoints that use it."""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet

from accounts.models import ByokCredential
from config.api.errors import Unprocessable
from config.credentials import Secret
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation


class RotationRefused(Unprocessable):
    """A dependent endpoint fails its validation with the new secret; the old secret stays."""

    error_type = "rotation_refused"


def dependants(credential: ByokCredential) -> QuerySet[PrivateEndpoint]:
    """Returns the endpoints whose current validation used the credential."""
    found: QuerySet[PrivateEndpoint] = (
        PrivateEndpoint.objects.for_organization(credential.organization_id)
        .filter(validation__credential=credential)
        .select_related("model", "provider", "price", "validation")
    )
    return found


def rotate(
    credential: ByokCredential, secret: Secret, *, revalidate: bool = False
) -> list[Validation]:
    """Replaces a credential's secret and returns the validations made with the new secret.

    Without ``revalidate``, returns none, and the dependants' validations become stale. With it,
    each dependant is validated first; if all pass, the secret and the validations change together.
    Otherwise :class:`RotationRefused` is raised and nothing changes.
    """
    if not revalidate:
        credential.rotate(secret)
        return []
    tried: list[tuple[PrivateEndpoint, Validation]] = []
    # The transaction below locks the endpoints in this order, as admission does.
    for endpoint in dependants(credential).order_by("pk"):
        current = endpoint.validation
        if current is None or current.workspace_id is None:
            continue
        found = validation.examine(
            endpoint, workspace_id=current.workspace_id, trial=(credential, secret)
        )
        if not found.passed:
            failed = next(check for check in found.checks if not check["passed"])
            raise RotationRefused(
                f"{endpoint} does not pass with the new secret: "
                f"{failed['name']} ({failed['reason']}). Nothing was changed.",
                metadata={"endpoint_id": str(endpoint.pk), "reason": failed["reason"]},
            )
        tried.append((endpoint, found))
    with transaction.atomic():
        credential.rotate(secret)
        for endpoint, found in tried:
            found.credential_version = credential.version
            endpoint.record_revalidation(found)
    return [found for _, found in tried]
