"""Reads the payments of each chain and updates the top-ups; a duty of the `work` command.

A round has several steps. Each step is a transaction of its own, so that a process may be killed
after any of them: it stores a batch of payments together with its cursor, then matches and credits
each stored payment, then frees the amounts of top-ups that can no longer be paid. The next round
continues from the stored state.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.conf import settings

from billing.ledger import BeingArchived
from billing.models import ChainState, Deposit, TopUp
from billing.topups.chains import Chain
from billing.topups.matching import match_deposit, send_to_review
from billing.topups.node import MAX_SPAN, ChainLags, Node, Reorganized, TokenRefused
from billing.topups.payments import ChainPayment, Cursor, UnconfirmedPayment
from billing.topups.rpc import ChainError, ChainRefused, ChainUnavailable
from config.clocks.clock import clock
from config.clocks.leases import Lease
from config.database.outages import is_away

logger = logging.getLogger("causeway.chain")

_EVERY_SECONDS: Final = 10.0
# Limits a round, because other chains wait; the next rounds read the remaining blocks.
_ROUND_SECONDS: Final = 20.0
_MAY_BE_SEEN: Final = (TopUp.Status.OPEN, TopUp.Status.EXPIRED, TopUp.Status.SEEN)


def watch_due_chains() -> int:
    """Watches the chains that are due and expires top-ups; returns the number of payments.

    An error of one chain does not stop the others.
    """
    done = 0
    for chain in settings.CHAINS.values():
        lease = Lease.objects.hold(f"watch_chain_{chain.chain_id}", every_seconds=_EVERY_SECONDS)
        with lease as is_held:
            try:
                if not is_held:
                    continue
                done += watch_chain(chain, Node(chain, settings.EGRESS_POLICY))
            except Exception as exc:
                if is_away(exc):
                    raise
                logger.exception("%s: the round ended early", chain.name)
                _record_unexpected_error(chain.chain_id)
    expire_due_top_ups()
    return done


def watch_chain(chain: Chain, node: Node) -> int:
    """Reads a chain up to its confirmed head and credits payments; returns their number.

    Any number of watchers of one chain may run: the locks of the cursor's row and of the deposits'
    rows make every step happen once. The wait after a failure grows with each further failure. If
    the cursor's block was replaced, the chain halts until an operator resumes it. A chain whose
    contract is not the token of the settings is not read.
    """
    state, _ = ChainState.objects.get_or_create(chain_id=chain.chain_id)
    if state.halted_at is not None:
        return 0
    is_verified = state.has_verified(chain.token)
    done = match_received_deposits(state) if is_verified else 0
    if _is_waiting(state):
        return done
    # A top-up is paid as it was requested, even if the configuration has changed since.
    chain = replace(chain, former=TopUp.objects.former_payees(chain))
    node.chain = chain
    if state.span is not None:
        node.span = min(state.span, MAX_SPAN)
    until = time.monotonic() + _ROUND_SECONDS
    is_read = False
    try:
        if not is_verified or state.token_checked_at is None:
            verify_token(chain, node, state)
        is_read = read_payments(chain, node, state, until=until)
        done += match_received_deposits(state)
        if is_read and state.cursor is not None:
            done += match_older_deposits(chain, node, state, state.cursor, until=until)
            release_amounts(chain.chain_id, node.read_block(state.cursor.number).mined_at)
            mark_unconfirmed(chain, node, state, until=until)
        state.record_success(is_read=is_read, span=node.span, latest=node.latest)
    except Reorganized as exc:
        cursor = state.cursor
        assert cursor is not None, "without a cursor nothing can have been replaced"
        if state.halt(cursor, str(exc)):
            logger.error("%s is halted: %s", chain.name, exc)
    except TokenRefused as exc:
        state.record_failure(str(exc), None)
        logger.error("%s is refused: %s", chain.name, exc)
    except ChainError as exc:
        retry_after = exc.retry_after if isinstance(exc, ChainUnavailable) else None
        state.record_failure(
            str(exc), retry_after, is_read=is_read, span=node.span, latest=node.latest
        )
        logger.warning("%s cannot be read: %s", chain.name, exc)
        # Payments that were stored before the failure need not wait for the next round.
        if is_verified:
            done += match_received_deposits(state)
    return done


def verify_token(chain: Chain, node: Node, state: ChainState) -> None:
    """Asks the contract for its decimals. Raises `TokenRefused` if the settings say others.

    A token that was confirmed before stays so while the node does not tell: its payers need the
    chain to be read. The next round asks again.
    """
    try:
        symbol = node.check_token(chain.token)
    except TokenRefused:
        state.record_token(None)
        raise
    except ChainError as exc:
        if not state.has_verified(chain.token):
            raise
        logger.warning("%s: its token cannot be checked again: %s", chain.name, exc)
        return
    if symbol not in ("", chain.token.symbol):
        logger.warning(
            "%s: the token calls itself %s, and CHAIN_TOKENS says %s",
            chain.name, symbol, chain.token.symbol,
        )  # fmt: skip
    state.record_token(chain.token)


def ask_for_tokens(*, ends_waits: bool = True) -> None:
    """Makes the next round ask every contract for its decimals.

    The operator may have corrected the settings for which a chain waits, so a wait ends: each one,
    or only that of a contract that was refused. A node may have asked for the others.
    """
    waiting = ChainState.objects.all()
    if not ends_waits:
        waiting = waiting.filter(token_verified="", token_checked_at__isnull=False)
    waiting.update(retry_at=None)
    ChainState.objects.update(token_checked_at=None)


def log_left_chains() -> None:
    """Warns of chains that left the settings too early: nothing reads them any more."""
    for warning in TopUp.objects.warn_of_left_chains():
        logger.warning("%s", warning)


def read_payments(chain: Chain, node: Node, state: ChainState, *, until: float = math.inf) -> bool:
    """Stores the payments after the cursor, batch by batch; returns whether it reached the head."""
    for payments, cursor in node.scan(state.cursor, until=until):
        is_stored = Deposit.objects.store_batch(state, chain, payments, cursor)
        if not is_stored or time.monotonic() > until:
            return False
    return True


def match_received_deposits(state: ChainState) -> int:
    """Matches the stored payments of a chain, oldest first; returns the number of matches.

    Those that were stored before the chain was resumed wait for :func:`match_older_deposits`. An
    error of one payment does not stop the others; the next round tries that payment again.
    """
    rows = Deposit.objects.received().filter(
        chain_id=state.chain_id, block_number__lte=state.number or 0
    )
    if state.resumed_at is not None:
        rows = rows.filter(created_at__gt=state.resumed_at)
    return sum(map(_try_match, rows.order_by("block_number", "tx_hash", "ordinal")))


def match_older_deposits(
    chain: Chain, node: Node, state: ChainState, cursor: Cursor, *, until: float = math.inf
) -> int:
    """Matches the payments that were stored before the chain was resumed; returns their number.

    The chain has been read up to the cursor since then, its head. A payment that it has no more, or
    not as it was, goes to review; one whose block comes after the cursor waits. Looks up no further
    payment once the monotonic clock is past `until`.
    """
    if state.resumed_at is None:
        return 0
    rows = Deposit.objects.received().filter(
        chain_id=chain.chain_id, created_at__lte=state.resumed_at
    )
    done = 0
    for deposit in rows.order_by("block_number", "tx_hash", "ordinal"):
        payment = node.find_payment(deposit.tx_hash, deposit.ordinal, cursor)
        if payment is None or _identity(payment) != _identity(deposit):
            if send_to_review(deposit):
                logger.warning(
                    "%s: transaction %s is not what it was when block %s was first read",
                    chain.name, deposit.tx_hash, deposit.block_number,
                )  # fmt: skip
        elif payment.block_number <= cursor.number:
            done += _try_match(deposit)
        if time.monotonic() > until:
            break
    return done


def _try_match(deposit: Deposit) -> bool:
    """Matches a deposit and returns whether it did; logs an error, unless the database is away."""
    try:
        return match_deposit(deposit)
    except BeingArchived as exc:
        logger.warning("%s waits: %s", deposit.reference, exc.message)
        return False
    except Exception as exc:
        if is_away(exc):
            raise
        logger.exception("%s cannot be matched", deposit.reference)
        return False


def release_amounts(chain_id: int, read_until: datetime) -> int:
    """Frees the amounts of top-ups that can no longer be paid; returns the number of top-ups.

    All blocks up to `read_until` must have been read. Does nothing while a stored payment is not
    matched yet.
    """
    if Deposit.objects.received().filter(chain_id=chain_id).exists():
        return 0
    rows = TopUp.objects.filter(chain_id=chain_id, is_reserved=True, payable_until__lt=read_until)
    return rows.update(is_reserved=False, updated_at=clock.now())


def mark_unconfirmed(
    chain: Chain, node: Node, state: ChainState, *, until: float = math.inf
) -> None:
    """Marks the top-ups whose payment is not final yet; nothing is credited for such a payment.

    So it does for a final payment that is stored and could not be credited yet.
    Makes no call when the chain has no awaited top-up, and changes nothing when the node refuses or
    lags: confirmed payments do not wait for it. A top-up that was seen in a block beyond the last
    one read in time stays as it is. A late payment is watched after its amount was freed.
    """
    rows = TopUp.objects.filter(chain_id=chain.chain_id).awaited()
    if state.cursor is None or node.latest is None or not rows.exists():
        return
    try:
        payments, last = node.read_unconfirmed(state.cursor, node.latest.number, until=until)
    except (ChainLags, ChainRefused) as exc:
        logger.warning("%s: unconfirmed payments cannot be read: %s", chain.name, exc)
        return
    stored = Deposit.objects.received().filter(chain_id=chain.chain_id)
    by_payment: dict[tuple[Any, ...], UnconfirmedPayment | Deposit] = {
        (found.token, found.sender, found.recipient, found.units): found
        for found in (*payments, *stored)
    }
    for top_up in rows.filter(status__in=_MAY_BE_SEEN):
        paid = (top_up.token, top_up.sender, top_up.recipient, top_up.units)
        found = by_payment.get(paid)
        if found is not None:
            top_up.mark_seen(tx_hash=found.tx_hash, block_number=found.block_number)
        elif top_up.status == TopUp.Status.SEEN and (top_up.block_number or 0) <= last:
            top_up.mark_unseen()


def expire_due_top_ups() -> int:
    """Expires the top-ups that were not paid in time; returns their number."""
    rows = TopUp.objects.filter(status=TopUp.Status.OPEN, expires_at__lte=clock.now())
    return sum(top_up.expire() for top_up in rows)


def _record_unexpected_error(chain_id: int) -> None:
    state = ChainState.objects.filter(chain_id=chain_id).first()
    if state is not None:
        state.record_failure("The round ended in an unexpected error; see the log.", None)


def _identity(payment: ChainPayment | Deposit) -> tuple[Any, ...]:
    """Returns what a payment keeps when its transaction moves to another block."""
    return (
        payment.tx_hash, payment.ordinal, payment.token, payment.sender, payment.recipient,
        payment.units,
    )  # fmt: skip


def _is_waiting(state: ChainState) -> bool:
    return state.retry_at is not None and state.retry_at > clock.now()
