"""Seals folds, and proves that their opening balances are those that were sealed.

The key of a seal derives from ``KEY_PEPPERS`` and ``SECRET_KEY``, as those of API keys do: the
first seals, all of them prove. So whoever can only write to the database cannot alter a balance
together with its opening.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
from django.db import connection

from billing.models import Fold
from billing.models.ledger import read_reference_bound
from config.peppers import list_peppers

FOLD: Final = b"causeway.fold"
_PAGE: Final = 10_000
_ACCOUNTS: Final = """
SELECT account_id, posted_debits, posted_credits FROM billing_opening
WHERE fold_id = %(fold)s AND account_id > %(last)s ORDER BY account_id LIMIT %(rows)s
"""
_METERS: Final = """
SELECT subject_id, cost, byok FROM billing_meteropening
WHERE fold_id = %(fold)s AND subject_id > %(last)s ORDER BY subject_id LIMIT %(rows)s
"""
_UNSEALED: Final = """
SELECT DISTINCT p.fold_id
FROM (SELECT fold_id FROM billing_opening UNION ALL SELECT fold_id FROM billing_meteropening) AS p
WHERE NOT EXISTS (SELECT 1 FROM billing_fold AS f WHERE f.number = p.fold_id)
ORDER BY p.fold_id
"""
# The digest reads the openings of accounts first; every id is above these.
_LISTS: Final = ((_ACCOUNTS, -1), (_METERS, "00000000-0000-0000-0000-000000000000"))


def seal(fold: Fold) -> None:
    """Fills the digests of a fold whose openings are stored, in its transaction."""
    last = Fold.objects.order_by("number").last()
    fold.previous = last.seal if last else ""
    fold.sums_digest = _read_digest(fold.number)
    fold.seal = list_peppers(FOLD)[0].digest(_text_of(fold))


def _read_digest(number: int) -> str:
    """Returns the digest of all openings of a fold, which are read page by page."""
    digest = hashlib.sha256()
    with connection.cursor() as cursor:
        for query, first in _LISTS:
            values: dict[str, Any] = {"fold": number, "last": first, "rows": _PAGE}
            while True:
                cursor.execute(query, values)
                page = cursor.fetchall()
                for row in page:
                    digest.update(":".join(map(str, row)).encode() + b"\n")
                if len(page) < _PAGE:
                    break
                values["last"] = page[-1][0]
    return digest.hexdigest()


def find_fold_differences() -> Iterator[str]:
    """Yields a sentence for each fold that is missing, altered, exchanged or overlapping.

    So it does for opening balances that nothing seals.
    """
    previous: Fold | None = None
    for number, fold in enumerate(Fold.objects.order_by("number"), 1):
        expected = previous.number + 1 if previous else 1
        if fold.number != expected:
            yield f"fold {expected}: it is missing, and fold {fold.number} exists"
        elif fold.previous != (previous.seal if previous else ""):
            yield f"fold {number}: it does not follow the seal of the fold before"
        if previous and fold.begin < previous.end:
            yield f"fold {fold.number}: its range overlaps that of fold {previous.number}"
        if _read_digest(fold.number) != fold.sums_digest:
            yield f"fold {fold.number}: its opening balances are not those that were sealed"
        if not has_seal(fold):
            yield (
                f"fold {fold.number}: its seal is wrong; it was altered, or KEY_PEPPERS and "
                "SECRET_KEY_FALLBACKS lack the secret of its time"
            )
        previous = fold
    with connection.cursor() as cursor:
        cursor.execute(_UNSEALED)
        for (number,) in cursor.fetchall():
            yield f"fold {number}: it is missing, and has opening balances"


def archived_until() -> datetime | None:
    """Returns the moment before which all generations with a partition have been archived."""
    last = Fold.objects.order_by("number").last()
    return None if last is None else read_reference_bound(last.end)


def has_seal(fold: Fold) -> bool:
    """Returns whether one of the installation's secrets made the seal of this very row."""
    text = _text_of(fold)
    return any(hmac.compare_digest(pepper.digest(text), fold.seal) for pepper in list_peppers(FOLD))


def _text_of(fold: Fold) -> str:
    """Returns what the seal covers: everything but the time."""
    covered = [
        fold.number, fold.begin, fold.end, fold.files, fold.sums_digest, fold.previous
    ]  # fmt: skip
    return msgspec.json.encode(covered, order="sorted").decode()
