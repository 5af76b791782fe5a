"""Writes the ledger for the control plane: grants, deposits, refunds and reviewed excesses.

The data plane writes the ledger too, with two statements in ``inference/sql``: ``admit.sql`` places
holds and ``settle.sql`` ends them, each together with its generations. Nothing else changes an
account, a transfer or a meter.

Lock order everywhere: generations, the deposit or the excess, then accounts by primary key, then
meters by subject. Admission locks keys, endpoints and organizations between accounts and meters.
"""

from __future__ import annotations

import uuid
from typing import Final

from django.db import IntegrityError, transaction

from billing.models import Account, Archived, Fold, NotChargeable, Transfer
from config.api.errors import Conflict, InvalidRequest, NotFound
from config.clocks.clock import clock

# The constraint that keeps the rows of a partition as they are while it is archived.
SEAL: Final = "leaves"

# The most nano-USD that are written off for one organization, so that its accounts stay inside the
# range of BIGINT: a settlement that left it could not be stored, and its generation would be free.
_MOST_WRITTEN_OFF: Final = 2**62


class AlreadyGranted(Conflict):
    """A grant was made for the same reference before."""

    error_type = "already_granted"
    message = "This grant was sent before. Nothing was changed."


class BeingArchived(Conflict):
    """The month of the reference is sealed, because it is about to leave the database."""

    error_type = "being_archived"
    message = "The oldest month is being archived. Nothing was booked. Try again in a few minutes."


class NothingToRefund(Conflict):
    """The generation cost no credits, or it was refunded before."""

    error_type = "nothing_to_refund"
    message = (
        "There is nothing to refund: the generation cost no credits, or it was already refunded."
    )


class TooMuchWrittenOff(Conflict):
    """The accounts of the organization cannot count a further amount."""

    error_type = "too_much_written_off"
    message = (
        "So much was written off for this organization that its accounts cannot count more. "
        "Nothing was changed; the excess stays under review."
    )


def grant(
    organization_id: uuid.UUID,
    amount_nano: int,
    *,
    actor: str,
    note: str = "",
    reference: str | None = None,
) -> Transfer:
    """Grants credits to an organization; raises :class:`NotFound` if it does not exist.

    A reference is granted once: raises :class:`AlreadyGranted` for a second time.
    """
    if amount_nano <= 0:
        raise InvalidRequest("The amount must be more than zero.")
    with transaction.atomic():
        accounts = _lock_accounts(organization_id, Account.Kind.GRANTS, Account.Kind.CREDITS)
        grants = Transfer.objects.filter(kind=Transfer.Kind.GRANT)
        if reference is not None and grants.filter(reference=reference).exists():
            raise AlreadyGranted
        return _post(
            Transfer.Kind.GRANT,
            debit=accounts[Account.Kind.GRANTS],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=amount_nano,
            reference=reference,
            actor=actor,
            note=note,
        )


def credit_deposit(
    organization_id: uuid.UUID, amount_nano: int, *, reference: str, actor: str
) -> bool:
    """Credits a deposit once per reference; returns False if it was credited before.

    Raises :class:`BeingArchived` while the first partition, which has the deposits, is sealed.
    """
    with transaction.atomic():
        accounts = _lock_accounts(organization_id, Account.Kind.DEPOSITS, Account.Kind.CREDITS)
        if Transfer.objects.filter(kind=Transfer.Kind.DEPOSIT, reference=reference).exists():
            return False
        _post(
            Transfer.Kind.DEPOSIT,
            debit=accounts[Account.Kind.DEPOSITS],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=amount_nano,
            reference=reference,
            actor=actor,
        )
    return True


def refund(generation_id: str, *, actor: str, note: str = "") -> Transfer:
    """Refunds the credits that a generation cost: all of them, and only once.

    Meters still count the cost, because a budget limits usage. Raises :class:`NothingToRefund`, and
    :class:`Archived` for a generation that has left the database or is about to.
    """
    try:
        return _refund(generation_id, actor=actor, note=note)
    except BeingArchived:
        raise Archived from None


def _refund(generation_id: str, *, actor: str, note: str) -> Transfer:
    """Refunds a generation. Reading its transfers keeps their partition until the end."""
    with transaction.atomic():
        paid = Transfer.objects.filter(
            reference=generation_id,
            kind__in=(Transfer.Kind.USAGE, Transfer.Kind.EXCESS),
            status=Transfer.Status.POSTED,
        )
        first = paid.first()
        if first is None:
            if Fold.objects.covering(generation_id).exists():
                raise Archived
            raise NothingToRefund
        accounts = _lock_accounts(first.organization_id, Account.Kind.USAGE, Account.Kind.CREDITS)
        if Transfer.objects.filter(reference=generation_id, kind=Transfer.Kind.REFUND).exists():
            raise NothingToRefund
        return _post(
            Transfer.Kind.REFUND,
            debit=accounts[Account.Kind.USAGE],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=sum(transfer.posted_nano or 0 for transfer in paid),
            reference=generation_id,
            actor=actor,
            note=note,
        )


def charge_excess(
    organization_id: uuid.UUID, amount_nano: int, *, reference: str, actor: str, note: str
) -> Transfer:
    """Charges usage beyond its hold, all of it; raises :class:`NotChargeable`."""
    with transaction.atomic():
        accounts = _lock_accounts(organization_id, Account.Kind.CREDITS, Account.Kind.USAGE)
        if Transfer.objects.filter(reference=reference, kind=Transfer.Kind.REFUND).exists():
            raise NotChargeable("The generation was refunded. Write the excess off.")
        if accounts[Account.Kind.CREDITS].available < amount_nano:
            raise NotChargeable(
                "The organization has less available than the excess. Nothing was charged. Write "
                "the excess off, or charge it when credits have arrived."
            )
        return _post(
            Transfer.Kind.EXCESS,
            debit=accounts[Account.Kind.CREDITS],
            credit=accounts[Account.Kind.USAGE],
            amount_nano=amount_nano,
            reference=reference,
            actor=actor,
            note=note,
        )


def write_off(
    organization_id: uuid.UUID, amount_nano: int, *, reference: str, actor: str, note: str
) -> Transfer:
    """Records usage that nobody is charged for; raises :class:`TooMuchWrittenOff`."""
    with transaction.atomic():
        accounts = _lock_accounts(organization_id, Account.Kind.WRITE_OFF, Account.Kind.USAGE)
        if accounts[Account.Kind.WRITE_OFF].posted_debits + amount_nano > _MOST_WRITTEN_OFF:
            raise TooMuchWrittenOff
        return _post(
            Transfer.Kind.WRITE_OFF,
            debit=accounts[Account.Kind.WRITE_OFF],
            credit=accounts[Account.Kind.USAGE],
            amount_nano=amount_nano,
            reference=reference,
            actor=actor,
            note=note,
        )


def _lock_accounts(organization_id: uuid.UUID, *kinds: str) -> dict[str, Account]:
    rows = (
        Account.objects.for_organization(organization_id)
        .filter(kind__in=kinds)
        .order_by("pk")
        .select_for_update(no_key=True)
    )
    accounts = {account.kind: account for account in rows}
    if len(accounts) != len(kinds):
        raise NotFound("The organization does not exist.")
    return accounts


def _post(
    kind: Transfer.Kind,
    *,
    debit: Account,
    credit: Account,
    amount_nano: int,
    actor: str,
    note: str = "",
    reference: str | None = None,
) -> Transfer:
    """Stores a posted transfer between accounts that the caller has locked.

    Raises :class:`BeingArchived` if its partition is sealed.
    """
    debit.posted_debits += amount_nano
    credit.posted_credits += amount_nano
    debit.save(update_fields=["posted_debits"])
    credit.save(update_fields=["posted_credits"])
    transfer = Transfer(
        organization_id=debit.organization_id,
        kind=kind,
        debit=debit,
        credit=credit,
        amount_nano=amount_nano,
        posted_nano=amount_nano,
        status=Transfer.Status.POSTED,
        reference=reference,
        actor=actor,
        note=note,
    )
    transfer.ended_at = transfer.created_at = clock.now()
    try:
        transfer.save(force_insert=True)
    except IntegrityError as exc:
        if getattr(getattr(exc.__cause__, "diag", None), "constraint_name", None) == SEAL:
            raise BeingArchived from None
        raise
    return transfer
