"""Which top-up a confirmed payment pays, and whom it is credited to.

An exact amount from the named sender, mined in time, is credited; whatever else came in is kept for
an operator, and never rounded. Anybody can name any sender: where several organizations did,
another amount is nobody's until the operator says whose. Lock order: the deposit, its top-ups by
key, then accounts.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q, QuerySet

from billing import ledger
from billing.models import Deposit, TopUp
from config.api.errors import Unprocessable

ACTOR: Final = "chain watcher"
# A block's time is its proposer's word, in whole seconds: a payment may seem so much older than its
# request. As long may a stranger ask for what is already paid, in vain but for drawing its digits.
_CLOCK_SKEW: Final = timedelta(seconds=15)
_MAX_NANO: Final = 2**63 - 1

Status = Deposit.Status


class NotCreditable(Unprocessable):
    """The deposit is worth nothing, or more than an account can hold."""

    error_type = "not_creditable"
    message = "The deposit is worth less than 10⁻⁹ USD, or more than an account can hold."


def settle(deposit: Deposit) -> bool:
    """Judges a stored deposit and credits it if it is exact; tells whether this call did.

    One transaction: a watcher that is killed in it has done nothing, and the next one does it.
    """
    with transaction.atomic():
        deposit.lock()
        if deposit.status != Status.RECEIVED:
            return False
        finding, top_up = _judgement(deposit)
        deposit.judge(finding, top_up)
        if top_up is None:
            return True
        if finding == Status.CREDITED:
            top_up.confirm(deposit)
            ledger.deposit(
                top_up.organization_id,
                deposit.amount_nano,
                reference=deposit.reference,
                actor=ACTOR,
            )
        else:
            top_up.refer()
    return True


def credit(deposit: Deposit, organization_id: uuid.UUID, *, by: str, note: str = "") -> None:
    """Credits a deposit in review to an organization, as an operator decided."""
    if not 0 < deposit.amount_nano <= _MAX_NANO:
        raise NotCreditable
    with transaction.atomic():
        deposit.lock()
        deposit.resolve(organization_id=organization_id, by=by, note=note)
        top_up = _locked_top_up(deposit)
        if top_up is not None and top_up.organization_id == organization_id:
            top_up.confirm(deposit)
        ledger.deposit(organization_id, deposit.amount_nano, reference=deposit.reference, actor=by)
        _leave_review(top_up)


def dismiss(deposit: Deposit, *, by: str, note: str) -> None:
    """Closes a deposit in review without a credit, for instance once it was paid back."""
    with transaction.atomic():
        deposit.lock()
        deposit.resolve(organization_id=None, by=by, note=note)
        _leave_review(_locked_top_up(deposit))


def candidates(deposit: Deposit) -> QuerySet[TopUp]:
    """Returns the top-ups that a deposit may have been meant for, of whatever organizations."""
    found: QuerySet[TopUp] = TopUp.objects.filter(
        Q(payable_until__gte=deposit.mined_at) | Q(units=deposit.units),
        chain_id=deposit.chain_id,
        token=deposit.token,
        sender=deposit.sender,
        recipient=deposit.recipient,
        created_at__lte=deposit.mined_at + _CLOCK_SKEW,
    )
    return found


def _judgement(deposit: Deposit) -> tuple[Status, TopUp | None]:
    """Returns what a deposit is, with the top-up that it pays or is nearest to, locked."""
    known = list(candidates(deposit).order_by("pk").select_for_update(no_key=True))
    exact = [top_up for top_up in known if top_up.units == deposit.units]
    if exact:
        # One of them is reserved at most; of the others the last is the likeliest.
        top_up = max(exact, key=lambda top_up: (top_up.is_reserved, top_up.created_at))
        if top_up.status != TopUp.Status.CONFIRMED and deposit.mined_at <= top_up.payable_until:
            return Status.CREDITED, top_up
        if _are_of_many(exact):
            return Status.UNMATCHED, None
        return Status.OVER if top_up.status == TopUp.Status.CONFIRMED else Status.LATE, top_up
    # What was asked for after the payment was to be seen says nothing of it.
    asked = [top_up for top_up in known if top_up.created_at <= deposit.mined_at]
    payable = [top_up for top_up in asked if top_up.status != TopUp.Status.CONFIRMED]
    if not payable or _are_of_many(asked):
        return Status.UNMATCHED, None
    nearest = min(payable, key=lambda top_up: abs(top_up.units - deposit.units))
    return Status.UNDER if deposit.units < nearest.units else Status.OVER, nearest


def _are_of_many(top_ups: list[TopUp]) -> bool:
    return len({top_up.organization_id for top_up in top_ups}) > 1


def _locked_top_up(deposit: Deposit) -> TopUp | None:
    """Returns the top-up in review that the deposit is nearest to, locked; ``None`` without one."""
    found: TopUp | None = (
        TopUp.objects.filter(pk=deposit.top_up_id, status=TopUp.Status.REVIEW)
        .select_for_update(no_key=True)
        .first()
    )
    return found


def _leave_review(top_up: TopUp | None) -> None:
    if (
        top_up is not None
        and top_up.status == TopUp.Status.REVIEW
        and not top_up.deposits.in_review().exists()
    ):
        top_up.close_review()
