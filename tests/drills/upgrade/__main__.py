"""Upgrades a database under load, as operators do: python -m tests.drills.upgrade

Checks out the commit that ``tests/drills/upgrade/base`` names, with its own locked environment, and
fills a database by running it. Then, under plain and streaming requests through HAProxy (Debian's):

1. the old release serves, with its ``work``;
2. the new ``migrate`` runs;
3. new services start beside the old one, and all serve;
4. the old service gets SIGTERM, and so does the old ``work``.

No request may fail. Each request of the clients' log must be in the ledger with the cost that its
caller was told; ``verify_ledger`` must be clean, old rows must read as before, every page of the
console must open, and the schema must be that of a new database.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg

from billing.topups.chains import Chain
from config.local import postgres
from config.local.certificates import ensure_certificates
from tests.drills.upgrade import examination
from tests.drills.upgrade.filling import World, fill
from tests.drills.upgrade.load import Caller, Load
from tests.drills.upgrade.releases import (
    HistoryMissing,
    Release,
    check_out,
    copy_present,
    proxy,
    read_base,
    serve,
    work,
)
from tests.support.chains.nodes import chain_of, deploy, start_eth_tester
from tests.support.machine.ports import reserved_port
from tests.support.simulator.server import Simulator

_LONG_WORDS: Final = 150
_BEGAN: Final = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.upgrade", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of load in each phase")
    parser.add_argument("--scale", default="0.01", help="of the fill; 1 is a million generations")
    options = parser.parse_args()
    if shutil.which("haproxy") is None:
        sys.exit("haproxy is missing; install it with: apt-get install haproxy")
    try:
        base = read_base()
    except HistoryMissing as exc:
        sys.exit(str(exc))
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="causeway-upgrade-")))
        certificates = ensure_certificates(logs / "tls")
        upstream = stack.enter_context(Simulator(certificates).run_in_thread())
        token = deploy(stack.enter_context(start_eth_tester()))
        database = postgres.throwaway()
        settings = _settings(database, certificates.ca, chain_of(token))
        old = check_out(base, logs / "base", settings)
        _say(f"the release {old.name} is installed")
        old.manage("migrate", "--verbosity", "0")
        _say("its tables are made")
        world = fill(old, logs, upstream.base_url, token, options.scale)
        _say("its database is filled")
        wrong = _upgrade(stack, old, world, logs, options.seconds)
    for each in wrong[:50]:
        print(each)
    sys.exit(f"{len(wrong)} findings" if wrong else 0)


def _upgrade(
    stack: contextlib.ExitStack, old: Release, world: World, logs: Path, seconds: float
) -> list[str]:
    """Upgrades under load, examines what is there afterwards, and returns what was wrong."""
    new = copy_present(logs / "this", old.settings)
    database = old.settings["DATABASE_URL"]
    ports = [stack.enter_context(reserved_port()) for _ in ("old", "new")]
    old_serve = stack.enter_context(serve(old, logs, ports[0]))
    old_work = stack.enter_context(work(old, logs))
    address = f"http://127.0.0.1:{stack.enter_context(proxy(logs, ports))}"
    with Load(address, _callers(world)) as load:
        time.sleep(seconds)
        began = time.monotonic()
        _say(f"slowest plain request before      {load.slowest(0, began) * 1000:.0f} ms")
        waits = new.run("manage.py", "migrate", "--verbosity", "1")
        ended = time.monotonic()
        assert waits.returncode == 0, waits.stderr
        applied = waits.stdout.count("... OK")
        _say(f"{applied} migrations took {ended - began:.1f} s, "
             f"{waits.stderr.count('tried again')} times a lock made one wait")  # fmt: skip
        _say(f"slowest plain request meanwhile   {load.slowest(began, ended) * 1000:.0f} ms")
        time.sleep(seconds)
        new_serve = stack.enter_context(serve(new, logs, ports[1]))
        new_work = stack.enter_context(work(new, logs))
        time.sleep(seconds)
        open_streams = load.open_at(f"s{ports[0]}")
        old_serve.stop()
        old_work.stop()
        _say(f"the old service ended with {open_streams} streams open")
        time.sleep(seconds)
    counts = load.servers()
    _say(f"{len(load.sent)} requests: {counts[f's{ports[0]}']} by the old service, "
         f"{counts[f's{ports[1]}']} by the new one")  # fmt: skip
    wrong = [
        f"{each.began_at - _BEGAN:.0f} s {each.server} {each.status}: "
        f"{' '.join((each.error or each.text[-80:]).split())}"
        for each in load.failed()
    ]
    if not (open_streams and counts[f"s{ports[0]}"] and counts[f"s{ports[1]}"]):
        wrong.append(f"both releases must have served, with streams open: {counts}")
    examination.wait_for_settlements(database)
    wrong += examination.account_for(database, load.sent, [world.busy, world.private])
    wrong += examination.compare_lists(new_serve.address, world)
    pages, failed = examination.visit_console(new_serve.address, world.password)
    _say(f"{pages} pages of the console opened")
    wrong += failed
    new_serve.stop()
    new_work.stop()
    verified = new.run("manage.py", "verify_ledger", "--json")
    _say(f"the ledger: {verified.stdout.strip()}")
    if verified.returncode:
        wrong.append(verified.stdout + verified.stderr)
    with _fresh_database(new) as fresh:
        wrong += examination.compare_schemas(database, fresh)
    return wrong


def _callers(world: World) -> list[Caller]:
    busy, private = world.busy.api_key, world.private.api_key
    return [
        *[Caller(busy, "sim/echo")] * 2,
        Caller(private, "sim/echo"),
        *[Caller(busy, "sim/slow", words=20, stream=True)] * 2,
        Caller(private, "sim/slow", words=20, stream=True),
        *[Caller(busy, "sim/long", words=_LONG_WORDS, stream=True)] * 2,
    ]


def _settings(database: str, ca: Path, chain: Chain) -> dict[str, str]:
    return {
        "DATABASE_URL": database,
        "SECRET_KEY": secrets.token_urlsafe(48),
        "CREDENTIAL_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
        "UPSTREAM_CA_BUNDLE": str(ca),
        "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
        "CHAIN_RPC_URLS": f"{chain.chain_id}={chain.rpc_url}",
        "CHAIN_TOKENS": f"{chain.chain_id}={chain.token.contract}:6:TUSD",
        "TOP_UP_RECIPIENTS": f"{chain.chain_id}={chain.recipient}",
    }


@contextlib.contextmanager
def _fresh_database(release: Release) -> Iterator[str]:
    """Yields a new database that this release has migrated."""
    parts = urlsplit(release.settings["DATABASE_URL"])
    fresh = urlunsplit(parts._replace(path="/fresh"))
    with psycopg.connect(release.settings["DATABASE_URL"], autocommit=True) as server:
        server.execute("CREATE DATABASE fresh")
        replace(release, settings={**release.settings, "DATABASE_URL": fresh}).manage("migrate")
        yield fresh
        server.execute("DROP DATABASE fresh WITH (FORCE)")


def _say(text: str) -> None:
    print(f"{time.monotonic() - _BEGAN:5.0f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
