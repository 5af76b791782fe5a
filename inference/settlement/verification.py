"""Recomputes the ledger and everything that must agree with it; the daily check of ``work``."""

from __future__ import annotations

import logging
from typing import Final

from django.db import InternalError

from billing.verification import find_differences, run_check
from config.clocks.leases import Lease
from config.database.outages import is_away
from config.sql import load_statement

logger = logging.getLogger(__name__)

CHECK_LEDGER: Final = "check_ledger"
VERIFY_GENERATIONS: Final = load_statement("inference", "verify_generations")
VERIFY_EXCESSES: Final = load_statement("inference", "verify_excesses")
VERIFY_METERS: Final = load_statement("inference", "verify_meters")
VERIFY_REFERENCES: Final = load_statement("inference", "verify_references")
CHECKS: Final = (VERIFY_GENERATIONS, VERIFY_EXCESSES, VERIFY_METERS, VERIFY_REFERENCES)
_LOGGED: Final = 20


def find_all_differences() -> list[str]:
    """Returns a sentence for each difference, and stores their number for the metrics.

    An empty list means that all is in order. A standby stores nothing.
    """
    found = [*find_differences(), *(text for check in CHECKS for text in run_check(check))]
    try:
        Lease.objects.note_result(CHECK_LEDGER, len(found))
    except InternalError as exc:
        if not is_away(exc):
            raise
    return found


def check_daily() -> int:
    """Looks for differences, and logs the first ones; returns their number."""
    differences = find_all_differences()
    for text in differences[:_LOGGED]:
        logger.error("the ledger differs: %s", text)
    return len(differences)
