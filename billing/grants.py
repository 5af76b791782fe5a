"""Grants by operators: at once up to a limit, above it with the approval of a second one."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import transaction

from billing import ledger
from billing.models import GrantRequest


def give(organization_id: uuid.UUID, amount_nano: int, *, by: str, note: str) -> bool:
    """Grants credits, or stores the request for it; tells whether they are granted."""
    limit: int = settings.GRANT_APPROVAL_NANO
    if limit and amount_nano > limit:
        GrantRequest.objects.create(
            organization_id=organization_id, amount_nano=amount_nano, requested_by=by, note=note
        )
        return False
    ledger.grant(organization_id, amount_nano, actor=by, note=note)
    return True


def approve(wanted: GrantRequest, *, by: str) -> None:
    """Grants what was asked for, once; raises what :meth:`GrantRequest.approve` raises."""
    with transaction.atomic():
        wanted.approve(by=by)
        ledger.grant(
            wanted.organization_id,
            wanted.amount_nano,
            actor=by,
            note=f"Asked for by {wanted.requested_by}. {wanted.note}".rstrip(),
        )
