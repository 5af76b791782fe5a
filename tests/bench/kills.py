"""Kills loaded workers again and again: python -m tests.bench.kills --times 200

Two workers serve streams of some seconds, and ``work`` sweeps beside them. Each kill (SIGKILL) ends
a worker that has at least five admitted streams. Afterwards every stream is compared with the
ledger. Exits with 1 if a hold stayed open, a generation was charged twice or wrongly, text was
delivered more than a journal's interval before a kill and not billed, or the ledger contradicts
itself. With ``--pooled`` the workers and ``work`` reach the database through PgBouncer.
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

import subprocess

from tests.support import factories
from tests.support.bulkheads.kills import BEHAVIOUR, LEASE, LOADED, PRICES, StreamsUnderFire
from tests.support.database.pooler import pool_services
from tests.support.inference.site import Site, own_site
from tests.support.ledger import differences
from tests.support.processes import MANAGE, environment, manage, serve

# The journal's interval, and the time of its statement on a busy machine.
_UNBILLED_SECONDS = 1.0 + 1.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kills", description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--pooled", action="store_true")
    options = parser.parse_args()
    with own_site() as site, contextlib.ExitStack() as stack:
        if options.pooled:
            stack.enter_context(pool_services(os.environ["DATABASE_URL"]))
        site.publish(BEHAVIOUR, price=factories.make_price(*PRICES))
        sys.exit(_run(site, options.times))


def _run(site: Site, times: int) -> int:
    started = time.monotonic()
    sweeper = subprocess.Popen(
        [sys.executable, str(MANAGE), "work"],
        env=environment(HOLD_TIMEOUT=LEASE, LOG_LEVEL="WARNING"),
    )
    try:
        with (
            serve("--workers", "2", HOLD_TIMEOUT=LEASE, LOG_LEVEL="WARNING") as served,
            StreamsUnderFire(site, served) as fire,
        ):
            for number in range(1, times + 1):
                fire.kill()
                if number % 20 == 0:
                    wrong = len(differences())
                    print(f"{number} kills, {len(fire.streams)} streams, {wrong} contradictions",
                          flush=True)  # fmt: skip
    finally:
        sweeper.terminate()
        sweeper.wait(60)
    time.sleep(float(LEASE) + 0.5)
    swept = manage("work", "--once", HOLD_TIMEOUT=LEASE)
    verified = manage("verify_ledger")
    found = fire.examine()
    unbilled = sorted(found.unbilled)
    middle, most = unbilled[len(unbilled) // 2], unbilled[len(unbilled) * 99 // 100]
    whole = sum(stream.is_whole for stream in fire.streams)
    print(f"kills               {len(fire.hits)} in {time.monotonic() - started:,.0f} s, each of "
          f"{min(fire.hits)} to {max(fire.hits)} admitted streams")  # fmt: skip
    print(f"streams             {len(fire.streams)}: {whole} whole, {len(unbilled)} killed")
    print(f"open holds          {found.open_holds}, open journals {found.open_journals}")
    print(f"charged twice       {found.charged_twice}")
    print(f"unbilled            {middle:.2f} s p50, {most:.2f} s p99, {unbilled[-1]:.2f} s at most")
    print(f"verify_ledger       {verified.stdout.strip() or verified.stderr.strip()}")
    contradictions = [*found.wrong, *differences()]
    for text in contradictions[:20]:
        print(f"wrong               {text}")
    is_right = (
        not contradictions
        and (found.open_holds, found.open_journals, found.charged_twice) == (0, 0, 0)
        and unbilled[-1] <= _UNBILLED_SECONDS
        and min(fire.hits) >= LOADED
        and (swept.returncode, verified.returncode) == (0, 0)
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    main()
