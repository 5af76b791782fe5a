"""Grants by operators; above a limit a second operator must approve them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import transaction

from billing import ledger
from billing.models import GrantRequest
from config.bulk.tables import format_usd
from config.events.outbox import record_event


def grant_or_request(
    organization_id: uuid.UUID,
    amount_nano: int,
    *,
    by: str,
    note: str,
    token: uuid.UUID | None = None,
) -> bool:
    """Grants credits and returns True; above the limit creates a request and returns False.

    A token is used once: raises :class:`AlreadyGranted` for a second time.
    """
    limit: int = settings.GRANT_APPROVAL_NANO
    if limit and amount_nano > limit:
        with transaction.atomic():
            request, is_new = GrantRequest.objects.get_or_create(
                pk=token or uuid.uuid4(),
                defaults={
                    "organization_id": organization_id,
                    "amount_nano": amount_nano,
                    "requested_by": by,
                    "note": note,
                },
            )
            if not is_new:
                raise ledger.AlreadyGranted
            record_event(
                "grant.waiting",
                organization=organization_id,
                data={
                    "organization": request.organization.name,
                    "amount_usd": format_usd(amount_nano),
                    "requested_by": by,
                },
            )
        return False
    reference = None if token is None else f"grant:{token}"
    ledger.grant(organization_id, amount_nano, actor=by, note=note, reference=reference)
    return True


def approve(request: GrantRequest, *, by: str) -> None:
    """Approves a request and grants its amount; raises as :meth:`GrantRequest.approve`."""
    with transaction.atomic():
        request.approve(by=by)
        ledger.grant(
            request.organization_id,
            request.amount_nano,
            actor=by,
            note=f"Requested by {request.requested_by}. {request.note}".rstrip(),
        )
