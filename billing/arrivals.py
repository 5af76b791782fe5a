"""Carries the opening balances of an organization to another cell.

A fold seals the sums of all organizations of a cell, so it cannot leave. What it has of one
organization becomes an arrival in the other cell, with a seal of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import psycopg

from billing.folds import digest_sums, seal_arrival
from billing.models import Arrival
from billing.models.folds import FIRST_ARRIVAL

# The primary keys of openings begin with the fold: no other index finds those of an account.
_NUMBERS: Final = "SELECT number FROM billing_fold UNION ALL SELECT number FROM billing_arrival"
_ACCOUNTS: Final = f"""
SELECT p.account_id, sum(p.posted_debits)::bigint, sum(p.posted_credits)::bigint
FROM ({_NUMBERS}) AS n JOIN billing_opening AS p ON p.fold_id = n.number
WHERE p.account_id = ANY(%s) GROUP BY p.account_id
"""  # noqa: S608 - constants
_METERS: Final = f"""
SELECT p.subject_id, sum(p.cost)::bigint, sum(p.byok)::bigint
FROM ({_NUMBERS}) AS n JOIN billing_meteropening AS p ON p.fold_id = n.number
WHERE p.subject_id = ANY(%s) GROUP BY p.subject_id
"""  # noqa: S608 - constants
_OWN_ACCOUNTS: Final = "SELECT id FROM billing_account WHERE organization_id = %s"
_OWN_METERS: Final = "SELECT subject_id FROM billing_meter WHERE organization_id = %s"
_STORE_ACCOUNTS: Final = "COPY billing_opening (fold_id, account_id, posted_debits, posted_credits)"
_STORE_METERS: Final = "COPY billing_meteropening (fold_id, subject_id, cost, byok)"
_KINDS: Final = (
    (_OWN_ACCOUNTS, _ACCOUNTS, _STORE_ACCOUNTS),
    (_OWN_METERS, _METERS, _STORE_METERS),
)
_STORE: Final = """
INSERT INTO billing_arrival (organization_id, number, cell, sums_digest, seal)
VALUES (%s, %s, %s, %s, %s)
"""

Connection = psycopg.Connection[Any]


def carry_openings(here: Connection, there: Connection, organization_id: UUID, cell: str) -> None:
    """Stores in the other cell what its own folds lack of an organization's opening balances.

    ``cell`` is the one that it leaves. Must run in a transaction of both, before which an earlier
    arrival there was deleted. Stores nothing for an organization without opening balances.
    """
    there.execute("LOCK TABLE billing_arrival IN SHARE ROW EXCLUSIVE MODE")
    row = there.execute("SELECT max(number) FROM billing_arrival").fetchone()
    number = max(FIRST_ARRIVAL, row[0] or 0 if row else 0) + 1
    stored = 0
    for owned, sums, store in _KINDS:
        keys = [key for (key,) in here.execute(owned, [organization_id])]
        wanted, own = (_read_sums(each, sums, keys) for each in (here, there))
        with there.cursor().copy(f"{store} FROM STDIN") as rows:
            for key in wanted.keys() | own.keys():
                first, second = wanted.get(key, (0, 0))
                known, other = own.get(key, (0, 0))
                if (first, second) != (known, other):
                    rows.write_row((number, key, first - known, second - other))
                    stored += 1
    if stored:
        _store_arrival(there, Arrival(organization_id=organization_id, number=number, cell=cell))


def _read_sums(cell: Connection, query: str, keys: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    return {key: (first, second) for key, first, second in cell.execute(query, [keys])}


def _store_arrival(there: Connection, arrival: Arrival) -> None:
    with there.cursor() as cursor:
        arrival.sums_digest = digest_sums(arrival.number, cursor)
    arrival.seal = seal_arrival(arrival)
    there.execute(
        _STORE,
        [
            arrival.organization_id, arrival.number, arrival.cell, arrival.sums_digest,
            arrival.seal,
        ],
    )  # fmt: skip
