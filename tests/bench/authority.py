"""Takes rights away while two hosts are asked for them: python -m tests.bench.authority --each 200

Revokes keys, disables endpoints, tightens policies and spends budgets, one after another, while
callers ask two services for them. Prints the requests of each kind, and how many were served that
began after the change was acknowledged. Exits with 1 unless that number is 0, every right was
served before and both hosts refused it afterwards.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time

# Made-up data never goes into the database that the caller's environment names.
os.environ["DATABASE_URL"] = ""
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - starts a database of its own, before settings are read

django.setup()

from tests.support.bulkheads.authority import Race, make_rights
from tests.support.database.pooler import pool_services
from tests.support.inference.site import Site, own_site
from tests.support.ledger import differences
from tests.support.processes import serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.authority", description=__doc__)
    parser.add_argument("--each", type=int, default=200)
    parser.add_argument("--pooled", action="store_true")
    options = parser.parse_args()
    print(f"{'change':<10}{'rights':>8}{'requests':>10}{'served':>8}{'refused':>9}{'stale':>7}"
          f"{'other':>7}{'seconds':>9}")  # fmt: skip
    with own_site() as site, contextlib.ExitStack() as stack:
        if options.pooled:
            stack.enter_context(pool_services(os.environ["DATABASE_URL"]))
        one, other = (stack.enter_context(serve(LOG_LEVEL="WARNING")) for _ in range(2))
        hosts = (one.address, other.address)
        kinds = ("disable", "revoke", "tighten", "spend")
        results = [_race(site, hosts, kind, options.each) for kind in kinds]
        time.sleep(2)
        contradictions = differences()
    print(f"contradictions of the ledger: {len(contradictions)}")
    sys.exit(0 if all(results) and not contradictions else 1)


def _race(site: Site, hosts: tuple[str, str], kind: str, each: int) -> bool:
    """Prints a line; returns whether nothing was stale and everything was served and refused."""
    rights = make_rights(site, kind, each)
    started = time.monotonic()
    Race(hosts, rights).run()
    sent = sum(len(right.sent) for right in rights)
    served = sum(right.served() for right in rights)
    stale = sum(right.stale() for right in rights)
    other = [status for right in rights for status in right.unexpected()]
    print(f"{kind:<10}{each:>8}{sent:>10,}{served:>8,}{sent - served - len(other):>9,}{stale:>7}"
          f"{len(other):>7}{time.monotonic() - started:>9.0f}", flush=True)  # fmt: skip
    return (
        stale == 0
        and not other
        and all(right.served() > 0 for right in rights)
        and all(right.refused_by()[host] >= 2 for right in rights for host in (0, 1))
    )


if __name__ == "__main__":
    main()
