"""Decides which top-up a confirmed payment pays, and which organization it is credited to.

An exact amount from the named sender, mined in time, is credited. Every other payment waits for an
operator; no amount is rounded. Anybody can name any sender: if several organizations named the same
sender, a payment of another amount is matched with none of them. Lock order: the deposit, its
top-ups by key, then accounts.
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
from config.bulk.tables import format_usd
from config.events.outbox import record_event

ACTOR: Final = "chain watcher"
# The proposer of a block chooses its time, in whole seconds, so a payment may seem older than the
# top-up that it pays. A stranger can use this tolerance to request a top-up for a visible payment,
# but gains nothing unless the random digits of the new top-up equal those of the payment.
_CLOCK_SKEW: Final = timedelta(seconds=15)
_MAX_NANO: Final = 2**63 - 1

Status = Deposit.Status


class NotCreditable(Unprocessable):
    """The deposit is worth nothing, or more than an account can hold."""

    error_type = "not_creditable"
    message = "The deposit is worth less than 10⁻⁹ USD, or more than an account can hold."


def match_deposit(deposit: Deposit) -> bool:
    """Matches a stored deposit with a top-up and credits the deposit if it is exact.

    Returns ``False`` when another watcher matched it first. The match is one transaction: if the
    watcher is killed, nothing has changed, and the next round repeats the match.
    """
    with transaction.atomic():
        deposit.lock()
        if deposit.status != Status.RECEIVED:
            return False
        finding, top_up = _find_match(deposit)
        deposit.record_match(finding, top_up)
        if finding != Status.CREDITED:
            _record("deposit.in_review", deposit, top_up)
        if top_up is None:
            return True
        if finding == Status.CREDITED:
            top_up.confirm(tx_hash=deposit.tx_hash, block_number=deposit.block_number)
            ledger.credit_deposit(
                top_up.organization_id,
                deposit.amount_nano,
                reference=deposit.reference,
                actor=ACTOR,
            )
            _record("top_up.credited", deposit, top_up, top_up.organization_id)
        else:
            top_up.send_to_review()
            _record("top_up.in_review", deposit, top_up, top_up.organization_id)
    return True


def send_to_review(deposit: Deposit) -> bool:
    """Sends a stored deposit whose payment was replaced to review; no top-up is matched with it.

    Returns ``False`` when it was matched before.
    """
    with transaction.atomic():
        deposit.lock()
        is_received = deposit.status == Status.RECEIVED
        if is_received:
            deposit.record_match(Status.UNMATCHED, None)
            _record("deposit.in_review", deposit, None)
    return is_received


def credit(deposit: Deposit, organization_id: uuid.UUID, *, by: str, note: str = "") -> None:
    """Credits a deposit in review to an organization, as an operator decided.

    It pays the organization's top-up that it was matched with, or the one that asks for exactly
    this amount, whoever sent it.
    """
    if not 0 < deposit.amount_nano <= _MAX_NANO:
        raise NotCreditable
    with transaction.atomic():
        deposit.lock()
        deposit.resolve(organization_id=organization_id, by=by, note=note)
        top_up = _lock_top_up(deposit)
        is_own = top_up is not None and top_up.organization_id == organization_id
        paid = top_up if is_own else _lock_exact(deposit, organization_id)
        if paid is not None:
            paid.confirm(tx_hash=deposit.tx_hash, block_number=deposit.block_number)
        ledger.credit_deposit(
            organization_id, deposit.amount_nano, reference=deposit.reference, actor=by
        )
        _record("top_up.credited", deposit, paid, organization_id)
        _close_review_when_done(top_up)


def dismiss(deposit: Deposit, *, by: str, note: str) -> None:
    """Closes a deposit in review without a credit, for instance after it was paid back."""
    with transaction.atomic():
        deposit.lock()
        deposit.resolve(organization_id=None, by=by, note=note)
        _close_review_when_done(_lock_top_up(deposit))


def matching_top_ups(deposit: Deposit) -> QuerySet[TopUp]:
    """Returns the top-ups of all organizations that a deposit may be meant for."""
    return _payable_by(deposit).filter(
        Q(payable_until__gte=deposit.mined_at) | Q(units=deposit.units), sender=deposit.sender
    )


def exact_top_ups(deposit: Deposit) -> QuerySet[TopUp]:
    """Returns the top-ups of all organizations and senders that ask for exactly its amount."""
    return _payable_by(deposit).filter(units=deposit.units).exclude(status=TopUp.Status.CONFIRMED)


def _payable_by(deposit: Deposit) -> QuerySet[TopUp]:
    """Returns the earlier top-ups of any amount and sender that ask for this token and payee."""
    found: QuerySet[TopUp] = TopUp.objects.filter(
        chain_id=deposit.chain_id,
        token=deposit.token,
        # A top-up that was asked for with wrong decimals asks for another amount of money.
        token_decimals=deposit.token_decimals,
        recipient=deposit.recipient,
        created_at__lte=deposit.mined_at + _CLOCK_SKEW,
    )
    return found


def _record(
    kind: str, deposit: Deposit, top_up: TopUp | None, organization_id: uuid.UUID | None = None
) -> None:
    """Stores an event about a deposit, and a top-up of the organization's, in the transaction."""
    data = {
        "id": str(deposit.pk if top_up is None else top_up.pk),
        "amount_usd": format_usd(deposit.amount_nano),
        "chain_id": deposit.chain_id,
        "tx_hash": deposit.tx_hash,
    }
    if kind != "top_up.credited":
        data["finding"] = str(deposit.finding)
    record_event(kind, organization=organization_id, data=data)


def _find_match(deposit: Deposit) -> tuple[Status, TopUp | None]:
    """Returns the status for a deposit and the top-up that it pays or almost pays, locked."""
    known = list(matching_top_ups(deposit).order_by("pk").select_for_update(no_key=True))
    exact = [top_up for top_up in known if top_up.units == deposit.units]
    if exact:
        # At most one top-up is reserved; without one, the newest is the likeliest.
        top_up = max(exact, key=lambda top_up: (top_up.is_reserved, top_up.created_at))
        if top_up.status != TopUp.Status.CONFIRMED and deposit.mined_at <= top_up.payable_until:
            return Status.CREDITED, top_up
        if _are_of_several_organizations(exact):
            return Status.UNMATCHED, None
        return Status.OVER if top_up.status == TopUp.Status.CONFIRMED else Status.LATE, top_up
    # A top-up that was requested after the payment was visible does not show who paid.
    asked = [top_up for top_up in known if top_up.created_at <= deposit.mined_at]
    payable = [top_up for top_up in asked if top_up.status != TopUp.Status.CONFIRMED]
    if not payable or _are_of_several_organizations(asked):
        return Status.UNMATCHED, None
    nearest = min(payable, key=lambda top_up: abs(top_up.units - deposit.units))
    return Status.UNDER if deposit.units < nearest.units else Status.OVER, nearest


def _are_of_several_organizations(top_ups: list[TopUp]) -> bool:
    return len({top_up.organization_id for top_up in top_ups}) > 1


def _lock_top_up(deposit: Deposit) -> TopUp | None:
    """Returns the deposit's top-up, locked, or ``None`` when it has none in review."""
    return (
        TopUp.objects.filter(pk=deposit.top_up_id, status=TopUp.Status.REVIEW)
        .select_for_update(no_key=True)
        .first()
    )


def _lock_exact(deposit: Deposit, organization_id: uuid.UUID) -> TopUp | None:
    """Returns the one top-up of an organization for exactly this amount, locked."""
    rows = exact_top_ups(deposit).filter(organization_id=organization_id).order_by("pk")
    found = list(rows.select_for_update(no_key=True))
    return found[0] if len(found) == 1 else None


def _close_review_when_done(top_up: TopUp | None) -> None:
    if (
        top_up is not None
        and top_up.status == TopUp.Status.REVIEW
        and not top_up.deposits.in_review().exists()
    ):
        top_up.close_review()
