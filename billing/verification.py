"""Recomputes the ledger from its transfers and finds accounts and deposits that differ.

Each check is one statement, so that it sees one snapshot even if the ledger changes meanwhile; a
fold, which never changes, takes several. A check returns differences only, so its memory does not
grow with the ledger.
"""

from __future__ import annotations

from typing import Final

from django.db import connection

from billing.folds import find_fold_differences
from config.sql import Statement, execute, load_statement

# The maximum number of differences that each check reports.
MAX_DIFFERENCES: Final = 1_000

VERIFY_ACCOUNTS: Final = load_statement("billing", "verify_accounts")
VERIFY_BALANCES: Final = load_statement("billing", "verify_balances")
VERIFY_OVERDRAFTS: Final = load_statement("billing", "verify_overdrafts")
VERIFY_OWNERS: Final = load_statement("billing", "verify_owners")
VERIFY_REFUNDS: Final = load_statement("billing", "verify_refunds")
VERIFY_EXCESSES: Final = load_statement("billing", "verify_excesses")
VERIFY_DEPOSITS: Final = load_statement("billing", "verify_deposits")

CHECKS: Final = (
    VERIFY_ACCOUNTS,
    VERIFY_BALANCES,
    VERIFY_OVERDRAFTS,
    VERIFY_OWNERS,
    VERIFY_REFUNDS,
    VERIFY_EXCESSES,
    VERIFY_DEPOSITS,
)


def find_differences() -> list[str]:
    """Returns a sentence for each difference; an empty list means that the ledger is consistent."""
    found = [text for check in CHECKS for text in run_check(check)]
    return [*found, *find_fold_differences()]


def run_check(check: Statement) -> list[str]:
    """Returns the differences that one statement finds, at most ``MAX_DIFFERENCES``."""
    with connection.cursor() as cursor:
        execute(cursor, check)
        return [text for (text,) in cursor.fetchmany(MAX_DIFFERENCES)]
