"""Makes the database fail under load, in five ways: python -m tests.drills.faults

The primary becomes read-only; a client takes all connection slots; statements run into their time
limit, those of the console and those of the data plane; the disk is full, until PostgreSQL stops.
One of the two ``serve`` hosts is two hours ahead of the database all the time, and ``work`` two
hours behind it.

Prints one JSON object. Exits with 1 if a request got anything but a whole answer or 503 with
``Retry-After``, if a refused one was charged, if ``/readyz`` said that all is well while admissions
failed, if log or metrics did not name the fault or the log repeated it, if the service did not
recover by itself, or if the ledger contradicts itself.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tests.support.clusters import ports

DATABASE = ports.reserve()
SERVICES = [ports.reserve(), ports.reserve()]
# Made-up data never goes into the database that the caller's environment names.
os.environ["DATABASE_URL"] = f"postgres://causeway@127.0.0.1:{DATABASE}/causeway"
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - makes secrets and certificates, before settings are read

django.setup()

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import requests
from django.db import connection

from inference.models import Journal
from tests.support import factories
from tests.support.bulkheads.clocks import HAS_COMPILER, shifted
from tests.support.bulkheads.counters import read_counter
from tests.support.clusters.callers import Callers, examine
from tests.support.clusters.managers import Managers, Readiness
from tests.support.clusters.programs import find_missing
from tests.support.clusters.services import run_service
from tests.support.clusters.single import MAX_CONNECTIONS, Engine, run_engine
from tests.support.inference.site import Site, own_site
from tests.support.ledger import differences
from tests.support.machine.waiting import wait_until
from tests.support.processes import manage

STREAMS: Final = 6
PLAIN: Final = 3
SECONDS: Final = 15
FAILURES: Final = "causeway_database_failures_total"
_NAMED: Final = re.compile(r"no statements \((\w+).*")
# What a process may write into its log during a fault, however many requests it refuses.
MOST_LINES: Final = 30
# A fault lasts so long after the first request was refused.
_LASTS: Final = 6.0
# Those of the service; this module's own come back by themselves.
_END_SESSIONS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE usename = 'causeway' AND application_name <> 'greedy'"
)
_SLOW: Final = """
CREATE FUNCTION causeway_be_slow() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_sleep(20); RETURN NEW; END $$;
CREATE TRIGGER causeway_be_slow BEFORE INSERT ON inference_journal
FOR EACH STATEMENT EXECUTE FUNCTION causeway_be_slow();
"""


@contextlib.contextmanager
def become_read_only(engine: Engine) -> Iterator[None]:
    """What a demoted primary is to those who are still connected to it."""
    engine.administer("ALTER SYSTEM SET default_transaction_read_only = on")
    engine.administer("SELECT pg_reload_conf()")
    yield
    engine.administer("ALTER SYSTEM RESET default_transaction_read_only")
    engine.administer("SELECT pg_reload_conf()")


@contextlib.contextmanager
def take_all_slots(engine: Engine) -> Iterator[None]:
    """Another client of the same role takes every slot, and each one that becomes free."""
    taken: list[psycopg.Connection[Any]] = []
    url = os.environ["DATABASE_URL"]

    def take() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            while len(taken) < MAX_CONNECTIONS:
                options = {"application_name": "greedy", "connect_timeout": 5}
                taken.append(psycopg.connect(url, **options))

    for _ in range(20):
        take()
        engine.administer(_END_SESSIONS)
        take()
    yield
    for each in taken:
        each.close()


@contextlib.contextmanager
def limit_the_role(engine: Engine) -> Iterator[None]:
    """The role's own limit of time is a millisecond; the data plane brings its own."""
    engine.administer("ALTER ROLE causeway SET statement_timeout = '1ms'")
    engine.administer(_END_SESSIONS)
    yield
    engine.administer("ALTER ROLE causeway RESET statement_timeout")
    engine.administer(_END_SESSIONS)


@contextlib.contextmanager
def slow_down_admissions(engine: Engine) -> Iterator[None]:
    """The statement of admissions runs into the limit that the data plane brings."""
    engine.administer(_SLOW, "causeway")
    yield
    engine.administer(
        "DROP TRIGGER causeway_be_slow ON inference_journal; DROP FUNCTION causeway_be_slow()",
        "causeway",
    )


@contextlib.contextmanager
def fill_the_disk(engine: Engine) -> Iterator[None]:
    is_over = threading.Event()

    def keep_full() -> None:
        while not is_over.wait(0.1):
            engine.fill_disk()

    filling = threading.Thread(target=keep_full)
    filling.start()
    try:
        yield
    finally:
        is_over.set()
        filling.join()
        engine.free_disk()


@dataclass(frozen=True)
class Fault:
    """A fault, what it stops, and what log and metrics call it."""

    make: Callable[[Engine], contextlib.AbstractContextManager[None]]
    reasons: frozenset[str]
    stops_admissions: bool = True


FAULTS: Final[dict[str, Fault]] = {
    "read_only_primary": Fault(become_read_only, frozenset(["read_only"])),
    "all_slots_taken": Fault(take_all_slots, frozenset(["connections"])),
    "statement_timeout_of_the_role": Fault(
        limit_the_role, frozenset(["timeout"]), stops_admissions=False
    ),
    # An admission that hangs holds the row of its organization, which a new key waits for.
    "statement_timeout_of_admissions": Fault(slow_down_admissions, frozenset(["timeout", "lock"])),
    # PostgreSQL stops when it cannot write its log.
    "disk_full": Fault(fill_the_disk, frozenset(["disk_full", "stopped", "unreachable"])),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=FAULTS, action="append")
    options = parser.parse_args()
    if missing := find_missing("pg_rewind"):
        sys.exit(missing)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(run_engine(DATABASE))
        faults = options.only or list(FAULTS)
        if not engine.has_disk and "disk_full" in faults:
            say("only root may mount a small disk: disk_full is left out")
            faults.remove("disk_full")
        site = stack.enter_context(own_site())
        skews = [2, 0, -2] if HAS_COMPILER else [0, 0, 0]
        logs = [
            stack.enter_context(run_service("serve", "--port", str(port), **clock_of(hours))).log
            for port, hours in zip(SERVICES, skews, strict=False)
        ]
        logs.append(stack.enter_context(run_service("work", **clock_of(skews[2]))).log)
        wait_until(is_served, "the two hosts do not answer", seconds=180)
        report = run(engine, site, faults, logs)
        report["hours_of_wrong_clocks"] = skews
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["is_passed"] else 1)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def clock_of(hours: int) -> dict[str, str]:
    return shifted(hours) if hours else {}


def addresses() -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in SERVICES]


def is_served() -> bool:
    with contextlib.suppress(requests.RequestException):
        # The first request to the control plane loads it.
        paths = ("/readyz", "/api/v1/key")
        statuses = [requests.get(f"{each}{path}", timeout=60).status_code
                    for each in addresses() for path in paths]  # fmt: skip
        return statuses == [200, 401] * 2
    return False


def run(engine: Engine, site: Site, faults: list[str], logs: list[Path]) -> dict[str, Any]:
    """Makes one fault after another under load, and returns what callers and ledger say."""
    site.publish("sim-slow:0,1", price=factories.make_price())
    short = factories.make_model("acme/swift")
    site.publish("sim-echo", model=short, price=factories.make_price())
    words = {"role": "user", "content": " ".join(["word"] * SECONDS)}
    callers = Callers(
        addresses(),
        site.tenant.api_key,
        streams=STREAMS,
        plain=PLAIN,
        stream_body={"model": site.model.slug, "messages": [words], "max_tokens": 100},
        plain_body={"model": short.slug, "messages": [words], "max_tokens": 100},
        spread=SECONDS,
    )
    connection.close()
    managers = Managers(addresses(), site.tenant.management_key)
    readiness = Readiness(addresses())
    found: dict[str, Any] = {}
    with callers, managers, readiness:
        for name in faults:
            wait_until(lambda: are_over(logs), "the last fault does not end", seconds=60)
            callers.wait_for_open_streams(STREAMS // 2)
            begins = [log.stat().st_size for log in logs]
            found[name] = suffer(engine, name, callers, managers, readiness)
            seconds = found[name]["seconds"]
            found[name] |= read_logs(logs, begins, FAULTS[name].reasons, seconds)
            say(f"{name}: {found[name]}")
    wait_until(lambda: not Journal.objects.exists(), "not everything is settled", seconds=240)
    return describe(callers, managers, site, found)


def are_over(logs: list[Path]) -> bool:
    """Returns whether the hosts have logged the end of each reason.

    A reason that is met again before that is the same outage, and is not named again.
    """
    for log in logs[: len(SERVICES)]:
        text = log.read_text()
        for reason in set(_NAMED.findall(text)):
            if text.rfind(f"no statements ({reason}") > text.rfind(f"statements again ({reason}"):
                return False
    return True


def suffer(
    engine: Engine, name: str, callers: Callers, managers: Managers, readiness: Readiness
) -> dict[str, Any]:
    """Makes a fault, ends it, and waits until all is well again; returns what was seen."""
    fault = FAULTS[name]
    before = len(callers.log), len(managers.log)
    opened = len(callers.open_streams())
    began = time.monotonic()
    with fault.make(engine):
        if fault.stops_admissions:
            wait_until(lambda: readiness.is_down, "no 503 of /readyz on both hosts", seconds=60)
        time.sleep(_LASTS)
        was_down = readiness.is_down
        counted = [
            sum(read_counter(each, FAILURES, reason=reason) for reason in fault.reasons)
            for each in addresses()
        ]
    ended = time.monotonic()
    back = callers.wait_for_success(ended)
    wait_until(lambda: readiness.is_up, "no 200 of /readyz on both hosts", seconds=60)
    wait_until(
        lambda: managers.succeeded_after(ended), "the control plane does not answer", seconds=60
    )
    managed = managers.count_since(before[1])
    outcomes = [asked.outcome for asked in callers.log[before[0] :] if asked.ended_at]
    return {
        "seconds": round(ended - began, 1),
        "is_not_ready": was_down,
        "is_as_expected": was_down == fault.stops_admissions
        and "POST 503" in managed
        and max(counted) > 0,
        "statements_failed": counted,
        "open_streams": opened,
        "whole": outcomes.count("whole"),
        "refused": outcomes.count("refused"),
        "management": managed,
        "seconds_until_back": round(back, 1),
    }


def read_logs(
    logs: list[Path], begins: list[int], reasons: frozenset[str], seconds: float
) -> dict[str, Any]:
    """Returns how often the processes named each reason, and how long their logs are.

    Reasons that the fault does not explain come with their lines. ``seconds`` is how long the fault
    lasted: an outage is named again every minute.
    """
    most = 2 + int(seconds // 60)
    named, lengths, others = [], [], []
    for log, begin in zip(logs, begins, strict=True):
        with log.open() as file:
            file.seek(begin)
            # Slow statements have a limit of their own, and a busy machine has many.
            told = [line for line in file if "batching.waits" not in line]
        lines = [*_NAMED.finditer("".join(told))]
        named.append(Counter(line[1] for line in lines))
        others += [line[0] for line in lines if line[1] not in reasons]
        lengths.append(len(told))
    return {
        "named": [dict(each) for each in named],
        "others": others[:MOST_LINES],
        "lines": lengths,
        # A reason that was quiet for a while is named again.
        "is_named": any(reasons & each.keys() for each in named[: len(SERVICES)])
        and all(count <= most for each in named for count in each.values())
        and max(lengths) <= MOST_LINES,
    }


def describe(
    callers: Callers, managers: Managers, site: Site, faults: dict[str, Any]
) -> dict[str, Any]:
    found = examine(callers.log, site.tenant.organization)
    verified = manage("verify_ledger", "--json")
    contradictions = [*map(str, differences())]
    problems = [*found.lost, *found.charged_twice, *found.refused_and_charged, *found.other,
                *managers.problems(), *contradictions]  # fmt: skip
    return {
        "faults": faults,
        "requests": len(callers.log),
        "outcomes": dict(found.outcomes),
        "management_requests": len(managers.log),
        "acknowledged_lost": len(found.lost),
        "charged_twice": len(found.charged_twice),
        "refused_and_charged": len(found.refused_and_charged),
        "open_holds": found.open_holds,
        "verify_ledger": json.loads(verified.stdout),
        "problems": problems[:20],
        "is_passed": found.is_clean
        and not problems
        and verified.returncode == 0
        and all(each["is_as_expected"] and each["is_named"] for each in faults.values()),
    }


if __name__ == "__main__":
    main()
