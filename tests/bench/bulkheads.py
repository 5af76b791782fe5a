"""Measures what a locked row or a change does to all others: python -m tests.bench.bulkheads

Two services have the first core; PostgreSQL, the provider and the load generators (``wrk``) share
the second. Every case has a control run of the same load before it and another one after it.

* ``account``, ``key``, ``meter``: another connection holds that row of one organization locked for
  as long as the load runs. That organization asks too, over four connections; the figures are those
  of sixteen other organizations.
* ``open``: another connection has written a row that nobody needs, and does not commit for as long
  as the load runs. It locks nothing, but PostgreSQL keeps all versions of all rows meanwhile.
* ``price``: a price of the catalogue changes every 0.3 s, in turn that of a model that nobody asks
  for and that of the model that everybody asks for. The figures are those of 64 organizations, or
  of ``--organizations``; each of them has been served before. ``--crowded`` adds 20,000 endpoints.

Prints the rate and the latency with their ratios to the control run before; what failed of the
measured requests; how many requests of the locked organization were served and refused; and the
timeouts that the services counted. With ``--rounds`` the cases alternate, and the medians of the
ratios follow, because a shared machine drifts.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

_DIRECTORY: Final = tempfile.TemporaryDirectory(prefix="causeway-bench-")
# Where PostgreSQL's account cannot enter, the cluster would lie elsewhere, and stay.
os.chmod(_DIRECTORY.name, 0o711)
# The benchmark creates made-up data, so it never uses the database of the caller's environment.
os.environ["DATABASE_URL"] = "embedded"
os.environ["DATA_DIR"] = f"{_DIRECTORY.name}/data"
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
os.environ["UPSTREAM_ALLOWED_NETWORKS"] = "127.0.0.0/8"

import django

django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import QuerySet

from accounts.models import ApiKey, Organization, workspace_for
from billing import ledger
from billing.models import Account, Meter
from catalog.models import ModelEndpoint, PriceVersion
from catalog.pricing import NANO
from config.secrets import digest_api_key
from tests.bench.__main__ import (
    OTHER_CORE,
    PROJECT,
    SYSTEM_CORE,
    causeway,
    parse_load,
    process_on,
    upstream_provider,
    wait_for,
)
from tests.support.bulkheads.counters import read_counter
from tests.support.database.locks import locked
from tests.support.machine.ports import reserved_port

_OTHERS: Final = 16
_WARM: Final = 64
_PRICE_SECONDS: Final = 0.3
_MODEL: Final = "bench/bench-whole"
_PATH: Final = "/api/v1/chat/completions"
# Connections of the measured organizations, and of the one whose row is locked, to each host.
_CONNECTIONS: Final = 16
_LOCKED_CONNECTIONS: Final = 2
_BODY: Final = {
    "model": _MODEL,
    "messages": [{"role": "user", "content": "one two three four"}],
}
# Each request is the next key's; a key's bytes are prepared once.
_SCRIPT: Final = """
local keys = {KEYS}
local requests, last = {}, 0
wrk.method = "POST"
wrk.body = BODY
wrk.headers["Content-Type"] = "application/json"
init = function(args)
  for number, key in ipairs(keys) do
    wrk.headers["Authorization"] = "Bearer " .. key
    requests[number] = wrk.format()
  end
  last = OFFSET
end
request = function()
  last = last % #requests + 1
  return requests[last]
end
"""


@dataclass(frozen=True)
class Figures:
    """The load of all hosts: answers a second, the worst host's latency, and what failed."""

    rate: float
    p50: float
    p99: float
    failed: int
    # The answers of the organization whose row is locked.
    locked_served: int = 0
    locked_failed: int = 0


class Hosts:
    """Two services on one database, and the load on them."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def measure(self, keys: list[str], seconds: int, locked_key: str = "") -> Figures:
        """Sends requests of these keys to all hosts; those of ``locked_key`` beside them."""
        loads = [
            self._start(address, keys, _CONNECTIONS, seconds, number)
            for number, address in enumerate(self.addresses)
        ]
        sides = [
            self._start(address, [locked_key], _LOCKED_CONNECTIONS, seconds, 9)
            for address in self.addresses
            if locked_key
        ]
        found = [parse_load(process.communicate()[0]) for process in loads]
        beside = [parse_load(process.communicate()[0]) for process in sides]
        failed = sum(each.failed for each in beside)
        return Figures(
            rate=sum(each.rate for each in found),
            p50=max(each.p50 for each in found) * 1000,
            p99=max(each.p99 for each in found) * 1000,
            failed=sum(each.failed for each in found),
            locked_served=sum(each.count for each in beside) - failed,
            locked_failed=failed,
        )

    def warm(self, keys: list[str]) -> None:
        """Sends requests until every host has had every key at least twice."""
        for address in self.addresses:
            asked = 0
            while asked < 2 * len(keys):
                process = self._start(address, keys, 8, 3, 0, asked % len(keys))
                asked += parse_load(process.communicate()[0]).count

    def timeouts(self) -> float:
        name = "causeway_lock_timeouts_total"
        return sum(read_counter(address, name) for address in self.addresses)

    def _start(
        self,
        address: str,
        keys: list[str],
        connections: int,
        seconds: int,
        number: int,
        offset: int = 0,
    ) -> subprocess.Popen[str]:
        script = Path(_DIRECTORY.name) / f"load-{number}-{address.rpartition(':')[2]}.lua"
        texts = ", ".join(f'"{key}"' for key in keys)
        script.write_text(
            _SCRIPT.replace("KEYS", texts)
            .replace("BODY", json.dumps(json.dumps(_BODY)))
            .replace("OFFSET", str(offset or number * len(keys) // 2))
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
        return subprocess.Popen(
            [*command, "--timeout", "30s", "-s", str(script), f"{address}{_PATH}"],
            stdout=subprocess.PIPE,
            text=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bulkheads", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1, help="of every case")
    parser.add_argument("--only", default="account,key,meter,open,price", metavar="CASES")
    parser.add_argument("--organizations", type=int, default=_WARM, help="warm in the case price")
    parser.add_argument("--crowded", action="store_true", help="with 20,000 endpoints")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with contextlib.ExitStack() as stack:
        stack.enter_context(_DIRECTORY)
        directory = Path(_DIRECTORY.name)
        upstream = stack.enter_context(upstream_provider())
        system = stack.enter_context(causeway(directory, upstream, crowded=options.crowded))
        first = system.url.removesuffix(_PATH)
        hosts = Hosts([first, stack.enter_context(_another_host())])
        cases = options.only.split(",")
        keys = make_keys(max(options.organizations if "price" in cases else 0, _OTHERS + 1))
        hosts.warm(keys)
        print(f"{'case':<10}{'rate':>8}{'before':>8}{'after':>8}{'share':>7}{'p50':>8}{'p99':>8}"
              f"{'before':>8}{'after':>8}{'ratio':>7}{'failed':>8}{'locked':>14}"
              f"{'timeouts':>10}  must hold")  # fmt: skip
        ratios: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        for case in cases * options.rounds:
            if case == "price":
                found = _compare(hosts, case, keys, options.seconds, "", change_prices)
            else:
                found = _compare_locked(hosts, case, keys, options.seconds)
            ratios[case].append(found)
        for case, found_ratios in ratios.items() if options.rounds > 1 else ():
            share, ratio = (statistics.median(each) for each in zip(*found_ratios, strict=True))
            print(f"{case:<10}{options.rounds} rounds: share {share:.2f}, p99 ratio {ratio:.2f}")
        time.sleep(2)
        call_command("verify_ledger")
        connection.close()


def _compare_locked(hosts: Hosts, case: str, keys: list[str], seconds: int) -> tuple[float, float]:
    owner = ApiKey.objects.get(digest=digest_api_key(keys[0]))
    rows: dict[str, QuerySet[Any]] = {
        "account": Account.objects.filter(
            organization_id=owner.organization_id, kind=Account.Kind.CREDITS
        ),
        "key": ApiKey.objects.filter(pk=owner.pk),
        "meter": Meter.objects.filter(subject_id=owner.pk),
    }

    def disturb() -> contextlib.AbstractContextManager[None]:
        return stay_open() if case == "open" else locked(rows[case].order_by())

    return _compare(hosts, case, keys[1 : _OTHERS + 1], seconds, keys[0], disturb)


@contextlib.contextmanager
def stay_open() -> Iterator[None]:
    """Writes in a session of its own, and does not commit."""
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("INSERT INTO config_lease (name, until) VALUES ('bench', now())")
        yield
    finally:
        session.close()


def _compare(
    hosts: Hosts,
    case: str,
    keys: list[str],
    seconds: int,
    locked_key: str,
    disturb: Callable[[], contextlib.AbstractContextManager[None]],
) -> tuple[float, float]:
    """Measures a load without, with and again without a disturbance, and prints a line.

    Returns the share of the rate and the ratio of the p99 to the control run before.
    """
    before = hosts.measure(keys, seconds, locked_key)
    timeouts = hosts.timeouts()
    with disturb():
        found = hosts.measure(keys, seconds, locked_key)
        timeouts = hosts.timeouts() - timeouts
    # What was set aside ends, and what was thrown away is made again.
    time.sleep(2)
    after = hosts.measure(keys, seconds, locked_key)
    share, ratio = found.rate / before.rate, found.p99 / (before.p99 or 1)
    bounds = "share 0.8" if case == "price" else "share 0.9, ratio 2"
    answers = f"{found.locked_served}+{found.locked_failed}" if locked_key else ""
    print(f"{case:<10}{found.rate:>8,.0f}{before.rate:>8,.0f}{after.rate:>8,.0f}{share:>7.2f}"
          f"{found.p50:>8.1f}{found.p99:>8.1f}{before.p99:>8.1f}{after.p99:>8.1f}{ratio:>7.2f}"
          f"{found.failed + before.failed + after.failed:>8}{answers:>14}{timeouts:>10.0f}"
          f"  {bounds}", flush=True)  # fmt: skip
    return share, ratio


@contextlib.contextmanager
def change_prices() -> Iterator[None]:
    """Changes a price every 0.3 s, in a thread: an unused model's and the used one's in turn."""
    is_over = threading.Event()
    took: list[float] = []

    def run() -> None:
        used = ModelEndpoint.objects.select_related("price").get(model__slug=_MODEL)
        unused = ModelEndpoint.objects.select_related("price").get(model__slug="bench/bench-drip")
        try:
            for number, endpoint in enumerate(itertools.cycle((unused, used))):
                if is_over.wait(_PRICE_SECONDS):
                    return
                began = time.monotonic()
                _reprice(endpoint, Decimal(number % 9 + 1) / 10**7)
                took.append(time.monotonic() - began)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        middle, most = statistics.median(took) * 1000, max(took) * 1000
        print(f"          {len(took)} changes, each in {middle:.0f} ms p50, {most:.0f} ms at most")


def _reprice(endpoint: ModelEndpoint, rate: Decimal) -> None:
    with transaction.atomic():
        price = PriceVersion.of(subject_id=endpoint.pk, price=endpoint.price.price)
        price.prompt = rate
        price.save()
        endpoint.price = price
        endpoint.save_fields("price")


def make_keys(count: int) -> list[str]:
    """Creates organizations with credits and a key each; returns the keys."""
    keys = []
    with transaction.atomic():
        for number in range(count):
            organization = Organization.objects.create_organization(name=f"Tenant {number}")
            ledger.grant(organization.pk, 10_000 * NANO, actor="benchmark")
            workspace = workspace_for(organization.pk, None)
            _, secret = ApiKey.objects.create_key(workspace=workspace, name="load")
            keys.append(secret.reveal())
    return keys


@contextlib.contextmanager
def _another_host() -> Iterator[str]:
    with reserved_port() as port:
        command = [sys.executable, str(PROJECT / "manage.py"), "serve", "--port", str(port)]
        with process_on(command, SYSTEM_CORE, {"LOG_LEVEL": "WARNING"}):
            wait_for(f"http://127.0.0.1:{port}/readyz")
            yield f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    main()
