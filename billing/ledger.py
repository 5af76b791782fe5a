"""The only writer of the ledger: holds placed and ended in batches, grants, deposits and refunds.

The data plane stores a generation and its hold in one statement, and its end in another. So this
module gives the parts of those statements, common table expressions that the islands put theirs
before; everything that changes an account, a transfer or a meter stands here.

Lock order everywhere: the generations or the deposit, then accounts by key, then meters by key.
Admission has the keys, endpoints and organizations that it rests on between accounts and meters.

A statement is planned once, perhaps while its tables are empty. Rows are therefore asked for by an
array of their keys, which no plan answers but by the index on it.
"""

from __future__ import annotations

import uuid

from django.db import transaction
from django.utils import timezone

from billing.models import Account, Transfer
from config.api.errors import Conflict, InvalidRequest, NotFound


class NothingToRefund(Conflict):
    """The generation paid nothing, or was refunded before."""

    error_type = "nothing_to_refund"
    message = "This generation paid nothing, or was refunded before."


def grant(organization_id: uuid.UUID, amount_nano: int, *, actor: str, note: str = "") -> Transfer:
    """Gives an organization credits; raises :class:`NotFound` for one that does not exist."""
    if amount_nano <= 0:
        raise InvalidRequest("The amount must be more than nothing.")
    with transaction.atomic():
        accounts = _locked(organization_id, Account.Kind.GRANTS, Account.Kind.CREDITS)
        return _post(
            Transfer.Kind.GRANT,
            debit=accounts[Account.Kind.GRANTS],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=amount_nano,
            actor=actor,
            note=note,
        )


def deposit(organization_id: uuid.UUID, amount_nano: int, *, reference: str, actor: str) -> bool:
    """Credits what came in from outside, once for each reference; tells whether this call did."""
    with transaction.atomic():
        accounts = _locked(organization_id, Account.Kind.DEPOSITS, Account.Kind.CREDITS)
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
    """Gives back what credits paid for a generation, all of it and once.

    Meters keep counting it: a budget limits what was used. Raises :class:`NothingToRefund`.
    """
    with transaction.atomic():
        paid = Transfer.objects.filter(
            reference=generation_id,
            kind__in=(Transfer.Kind.USAGE, Transfer.Kind.EXCESS),
            status=Transfer.Status.POSTED,
        )
        first = paid.first()
        if first is None:
            raise NothingToRefund
        accounts = _locked(first.organization_id, Account.Kind.USAGE, Account.Kind.CREDITS)
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


def _locked(organization_id: uuid.UUID, *kinds: str) -> dict[str, Account]:
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
    """Stores a transfer that moves at once, between accounts that the caller has locked."""
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
    transfer.ended_at = transfer.created_at = timezone.now()
    transfer.save(force_insert=True)
    return transfer
