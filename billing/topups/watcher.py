"""Reads the payments of each chain and brings top-ups up to date; a duty of ``work``.

A round has steps, each a transaction of its own, and any of them may be the last one of a killed
process: a batch of payments is stored together with its cursor, then each stored payment is judged
and credited, then what has become too late is let go. The next round goes on with what it finds.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import datetime
from typing import Final

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from billing.models import ChainState, Deposit, TopUp
from billing.topups.chains import Chain
from billing.topups.matching import settle
from billing.topups.node import (
    MAX_SPAN,
    ChainError,
    ChainLags,
    ChainRefused,
    ChainUnavailable,
    Node,
    Reorganized,
)
from config.models import Lease

logger = logging.getLogger("causeway.chain")

_EVERY_SECONDS: Final = 10.0
# Other chains wait for their turn; what is left of a long way is read in the next rounds.
_ROUND_SECONDS: Final = 20.0
_SHOWN: Final = (TopUp.Status.OPEN, TopUp.Status.EXPIRED, TopUp.Status.SEEN)


def watch_due() -> int:
    """Watches the chains whose turn it is, and expires top-ups; returns how many payments came.

    Whatever befalls one chain, the others are watched.
    """
    done = 0
    for chain in settings.CHAINS.values():
        if Lease.objects.take(f"watch_chain_{chain.chain_id}", seconds=_EVERY_SECONDS):
            try:
                done += watch(chain, Node(chain, settings.EGRESS_POLICY))
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                logger.exception("%s: the round ended early", chain.name)
                _record_surprise(chain.chain_id)
    expire_due()
    return done


def watch(chain: Chain, node: Node) -> int:
    """Reads a chain up to its confirmed head and credits what was paid; returns how many payments.

    Any number of watchers of one chain may run: the cursor's row and the deposit's let one of them
    do each thing. A node that cannot be read is asked again later, longer each time; a changed
    block under the cursor halts the chain until an operator resumes it.
    """
    state, _ = ChainState.objects.get_or_create(chain_id=chain.chain_id)
    done = settle_received(chain.chain_id)
    if state.halted_at is not None or _waits(state):
        return done
    # A top-up is paid as it was asked for, whatever was configured since.
    chain = replace(chain, former=TopUp.objects.former_payees(chain))
    node.chain = chain
    if state.span is not None:
        node.span = min(state.span, MAX_SPAN)
    try:
        is_read = read(chain, node, state)
        done += settle_received(chain.chain_id)
        latest = None
        if is_read and state.cursor is not None:
            release(chain.chain_id, node.block(state.cursor.number).mined_at)
            latest = look_ahead(chain, node, state)
        state.record_success(latest, is_read=is_read, span=node.span)
    except Reorganized as exc:
        cursor = state.cursor
        assert cursor is not None, "without a cursor nothing can have been replaced"
        if state.halt(cursor, str(exc)):
            logger.error("%s is halted: %s", chain.name, exc)
    except ChainError as exc:
        wish = exc.retry_after if isinstance(exc, ChainUnavailable) else None
        state.record_failure(str(exc), wish, span=node.span)
        logger.warning("%s cannot be read: %s", chain.name, exc)
        # What was stored before the fault need not wait for the next round.
        done += settle_received(chain.chain_id)
    return done


def read(chain: Chain, node: Node, state: ChainState) -> bool:
    """Stores what was paid since the cursor, batch by batch; tells whether the head was reached."""
    until = time.monotonic() + _ROUND_SECONDS
    for payments, cursor in node.scan(state.cursor, until=until):
        if not state.advance(chain, payments, cursor) or time.monotonic() > until:
            return False
    return True


def settle_received(chain_id: int) -> int:
    """Judges the stored payments of a chain, oldest first; returns how many.

    One that cannot be judged keeps no other waiting; the next round tries it again.
    """
    rows = Deposit.objects.received().filter(chain_id=chain_id)
    done = 0
    for deposit in rows.order_by("block_number", "tx_hash", "ordinal"):
        try:
            done += settle(deposit)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("%s cannot be judged", deposit.reference)
    return done


def release(chain_id: int, read_until: datetime) -> int:
    """Frees the amounts that no block can pay any more, as all blocks until then are read.

    What is stored must be judged before.
    """
    if Deposit.objects.received().filter(chain_id=chain_id).exists():
        return 0
    rows = TopUp.objects.filter(chain_id=chain_id, is_reserved=True, payable_until__lt=read_until)
    freed: int = rows.update(is_reserved=False, updated_at=timezone.now())
    return freed


def look_ahead(chain: Chain, node: Node, state: ChainState) -> int | None:
    """Shows which top-ups have a payment that is not final yet; returns the latest block.

    Nothing is credited for it. A chain with nothing to pay is not asked, and what is confirmed does
    not wait for a node that refuses or lags.
    """
    rows = TopUp.objects.filter(chain_id=chain.chain_id, is_reserved=True)
    if state.cursor is None or not rows.exists():
        return None
    try:
        sightings, latest = node.look_ahead(state.cursor)
    except (ChainLags, ChainRefused) as exc:
        logger.warning("%s cannot be looked ahead: %s", chain.name, exc)
        return None
    by_payment = {
        (found.token, found.sender, found.recipient, found.units): found for found in sightings
    }
    for top_up in rows.filter(status__in=_SHOWN):
        paid = (top_up.token, top_up.sender, top_up.recipient, top_up.units)
        found = by_payment.get(paid)
        if found is not None:
            top_up.see(tx_hash=found.tx_hash, block_number=found.block_number)
        elif top_up.status == TopUp.Status.SEEN:
            top_up.lose_sight()
    return latest


def expire_due() -> int:
    """Expires the top-ups that nobody paid in time; returns how many."""
    rows = TopUp.objects.filter(status=TopUp.Status.OPEN, expires_at__lte=timezone.now())
    return sum(top_up.expire() for top_up in rows)


def _record_surprise(chain_id: int) -> None:
    state = ChainState.objects.filter(chain_id=chain_id).first()
    if state is not None:
        state.record_failure("The round ended in an error that the log tells.", None)


def _waits(state: ChainState) -> bool:
    return state.retry_at is not None and state.retry_at > timezone.now()
