"""Decisions of operators about excesses: what an upstream claimed beyond what was allowed."""

from __future__ import annotations

from django.db import transaction

from billing import ledger
from billing.models import Excess


def charge(excess: Excess, *, by: str, note: str = "") -> None:
    """Charges the whole excess to the available credits of its organization.

    Raises :class:`billing.models.NotChargeable` if there is nothing to charge, if the generation
    was refunded, or if less is available: credits are never overdrawn. Meters do not count the
    charge: a budget limits what a key uses, and not what an operator decides later.
    """
    with transaction.atomic():
        excess.charge(by=by, note=note)
        ledger.charge_excess(
            excess.organization_id,
            excess.amount_nano,
            reference=excess.reference,
            actor=by,
            note=note,
        )


def write_off(excess: Excess, *, by: str, note: str = "") -> None:
    """Ends the review without a charge: the operator bears the excess, if the claim is true."""
    with transaction.atomic():
        excess.write_off(by=by, note=note)
        if excess.amount_nano:
            ledger.write_off(
                excess.organization_id,
                excess.amount_nano,
                reference=excess.reference,
                actor=by,
                note=note,
            )
