"""Sign-ins as events: each is a line of the log and counted, and most are in the audit log."""

from __future__ import annotations

import logging
from typing import Final

from prometheus_client import Counter

from config.audit import context as audit

logger = logging.getLogger("causeway.sign_in")

SIGNED_IN: Final = "signed_in"
SIGNED_OUT: Final = "signed_out"
FAILED: Final = "failed"
LOCKED: Final = "locked"
LIFTED: Final = "lifted"
REFUSED: Final = "refused"
BUSY: Final = "busy"
_QUIET: Final = frozenset((SIGNED_IN, SIGNED_OUT, LIFTED))

_COUNTED: Final = Counter(
    "causeway_sign_ins_total",
    "Sign-ins and sign-outs of operators, locks and refusals.",
    ("outcome",),
)


def count(outcome: str) -> None:
    """Counts an event that has no account yet."""
    _COUNTED.labels(outcome).inc()


def record(
    outcome: str, *, account: str, address: str, detail: str = "", operator: str = ""
) -> None:
    """Records an event of an account; ``operator`` is the operator who is known to act."""
    count(outcome)
    logger.log(
        logging.INFO if outcome in _QUIET else logging.WARNING,
        "sign-in: %s, account %s, address %s%s",
        outcome,
        ascii(account),
        ascii(address),
        f" ({detail})" if detail else "",
    )
    if outcome == REFUSED:
        # A stranger may cause any number of these, so they are not in the audit log.
        return
    audit.record_sign_in(
        f"operator {operator}" if operator else f"address {address}",
        outcome,
        account=account,
        address=address,
        detail=detail,
    )
