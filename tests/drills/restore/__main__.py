"""Restores backups that were taken under load, with the commands of docs/backup.md.

``python -m tests.drills.restore`` starts a PostgreSQL of Debian's that archives its WAL, and a
service on it. While plain and streamed requests run, the blocks of the page take a dump and a base
backup, and then restore both. On each restored database the ledger must verify, before and after
the sweeper has ended the requests that ran at that moment; a key that was revoked before stays
revoked; one that was created later is unknown; a payment that came later is credited; and a chat
request is answered.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
import requests

from config.local.bootstrap import PROJECT
from config.local.certificates import ensure_certificates
from tests.drills.upgrade import examination
from tests.drills.upgrade.filling import Tenant, call, create_tenant, make_catalogue, open_top_up
from tests.drills.upgrade.load import Caller, Load
from tests.drills.upgrade.releases import Release, copy_present, serve, work
from tests.support.chains.nodes import Contract, chain_of, deploy, start_eth_tester
from tests.support.machine.ports import reserved_port
from tests.support.markdown import SHELL, Reader, read_blocks
from tests.support.simulator.server import Simulator

PAGE: Final = PROJECT / "docs" / "backup.md"
_BACKUPS: Final = "/var/backups/causeway"
_RECOVERED: Final = "postgres://causeway:secret@127.0.0.1:5433/causeway"
PROGRAMS: Final = Path("/usr/lib/postgresql/15/bin")
_USED: Final = (
    "initdb", "pg_ctl", "psql", "pg_dump", "pg_restore", "pg_basebackup", "pg_verifybackup",
)  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.drills.restore", description=__doc__).parse_args()
    if not (PROGRAMS / "postgres").exists():
        sys.exit("PostgreSQL 15 is missing; install it with: apt-get install postgresql-15")
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="causeway-restore-")))
        home.chmod(0o777)
        certificates = ensure_certificates(home / "tls")
        upstream = stack.enter_context(Simulator(certificates).run_in_thread())
        token = deploy(stack.enter_context(start_eth_tester()))
        chain = chain_of(token)
        path = _write_programs(home)
        database = stack.enter_context(_cluster(home))
        settings = {
            "DATABASE_URL": database,
            "SECRET_KEY": secrets.token_urlsafe(48),
            "CREDENTIAL_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
            "UPSTREAM_CA_BUNDLE": str(certificates.ca),
            "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
            "CHAIN_RPC_URLS": f"{chain.chain_id}={chain.rpc_url}",
            "CHAIN_TOKENS": f"{chain.chain_id}={chain.token.contract}:6:TUSD",
            "TOP_UP_RECIPIENTS": f"{chain.chain_id}={chain.recipient}",
        }
        release = copy_present(home / "this", settings)
        wrong = _restore_both(release, home, path, upstream.base_url, token)
    for each in wrong:
        print(each)
    sys.exit(f"{len(wrong)} findings" if wrong else 0)


def _restore_both(
    release: Release, home: Path, path: str, upstream: str, token: Contract
) -> list[str]:
    """Backs up under load, restores, and returns what is wrong with the restored databases."""
    setting, dump, restore, base, recover, prove = read_blocks(PAGE, SHELL)
    tenant = _begin(release, upstream)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        recovered = f"postgres://causeway@127.0.0.1:{port}/causeway"
        changes = {_RECOVERED: recovered, "5433": str(port)}
        reader = stack.enter_context(_reader(release, home, path, changes))
        with serve(release, home) as running, work(release, home):
            revoked = _create_key(running.address, tenant)
            told = {"disabled": True}
            call(running.address, tenant.management_key, "PATCH", f"keys/{revoked[1]}", told)
            units = open_top_up(running.address, tenant, token)
            with Load(running.address, _callers(tenant)) as load:
                load.wait_for(20)
                reader.run([setting, dump, base])
                load.wait_for(len(load.sent) + 10)
                moment, streams = _read_now(release), load.open_streams()
                time.sleep(1)
                late = _create_key(running.address, tenant)
            _say(f"{len(load.sent)} requests, {streams} streams open at the moment")
            token.pay(units)
        assert streams, "no stream was open"
        assert not load.failed(), load.failed()[:3]
        _switch_wal(release)
        reader.environment["MOMENT"] = moment
        try:
            _say(reader.run([setting, restore, recover, prove], timeout=300)[prove.line].strip())
            restored = release.settings["DATABASE_URL"].rpartition("/")[0] + "/restored"
            return [
                f"{name}: {finding}"
                for name, url in (("dump", restored), ("moment", recovered))
                for finding in _examine(
                    replace(release, settings={**release.settings, "DATABASE_URL": url}),
                    home,
                    tenant,
                    [revoked[0], late[0]],
                )
            ]
        finally:
            _run(home, "pg_ctl", "--pgdata", f"{home}/backups/restored", "stop")


def _begin(release: Release, upstream: str) -> Tenant:
    release.manage("migrate", "--verbosity", "0")
    release.manage_json("import_catalog", "-", data=make_catalogue(upstream))
    release.manage("set_provider_credential", "simulator", data="upstream-credential")
    # The chain must have been read before anybody can pay.
    release.manage("work", "--once")
    return create_tenant(release, "Acme")


def _callers(tenant: Tenant) -> list[Caller]:
    streams = [Caller(tenant.api_key, "sim/long", words=60, stream=True)] * 4
    return [Caller(tenant.api_key, "sim/echo"), *streams]


def _create_key(address: str, tenant: Tenant) -> tuple[str, str]:
    """Returns a new key and its hash."""
    made = call(address, tenant.management_key, "POST", "keys", {"name": "other"}, 201)
    return made["key"], made["data"]["hash"]


def _examine(release: Release, home: Path, tenant: Tenant, refused: list[str]) -> list[str]:
    """Returns what is wrong with a restored database, once its services run."""
    database = release.settings["DATABASE_URL"]
    with psycopg.connect(database) as connection:
        [[held]] = connection.execute(
            "SELECT count(*) FROM inference_generation WHERE status = 'pending'"
        ).fetchall()
    wrong = [] if held else ["no request ran at the moment"]
    with serve(release, home) as running, work(release, home):
        for key in refused:
            told = _chat(running.address, key).status_code
            if told != 401:
                wrong.append(f"a key that must be unknown or revoked was answered {told}")
        answer = _chat(running.address, tenant.api_key)
        if answer.status_code != 200:
            wrong.append(f"a chat request was answered {answer.status_code} {answer.text}")
        examination.wait_for_settlements(database)
        path = f"credits/crypto/{tenant.top_up}"
        deadline = time.monotonic() + 60
        while call(running.address, tenant.api_key, "GET", path)["data"]["status"] != "confirmed":
            if time.monotonic() > deadline:
                wrong.append("the payment that came later was not credited")
                break
            time.sleep(0.5)
    verified = release.run("manage.py", "verify_ledger", "--json")
    _say(f"{held} requests were swept; the ledger: {verified.stdout.strip()}")
    return wrong if verified.returncode == 0 else [*wrong, verified.stdout]


def _chat(address: str, key: str) -> requests.Response:
    return requests.post(
        f"{address}/api/v1/chat/completions",
        json={"model": "sim/echo", "messages": [{"role": "user", "content": "one two"}]},
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )


def _read_now(release: Release) -> str:
    with psycopg.connect(release.settings["DATABASE_URL"]) as connection:
        [[now]] = connection.execute("SELECT clock_timestamp()::text").fetchall()
    return str(now)


def _switch_wal(release: Release) -> None:
    """Lets the archive reach beyond the moment, as a minute of waiting would."""
    with psycopg.connect(release.settings["DATABASE_URL"], autocommit=True) as connection:
        [[name]] = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchall()
        deadline = time.monotonic() + 60
        while True:
            [[last]] = connection.execute(
                "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver"
            ).fetchall()
            if last >= name:
                return
            assert time.monotonic() < deadline, f"{name} is not archived"
            time.sleep(0.2)


@contextlib.contextmanager
def _reader(release: Release, home: Path, path: str, changes: dict[str, str]) -> Iterator[Reader]:
    """Yields a person who has the environment file and may read and write the backups."""
    changes = {**changes, _BACKUPS: f"{home}/backups"}
    variables = {name: text for name, text in release.settings.items() if name != "DATABASE_URL"}
    with Reader(changes=changes, PATH=path, CONFIG=str(home), **variables) as reader:
        (home / "env").write_text(f"DATABASE_URL={release.settings['DATABASE_URL']}\n")
        yield reader


def _write_programs(home: Path) -> str:
    """Writes commands that run PostgreSQL's programs, as nobody for root; returns a PATH."""
    folder = home / "programs"
    folder.mkdir()
    drop = "setpriv --reuid nobody --regid nogroup --clear-groups " if os.geteuid() == 0 else ""
    for name in _USED:
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {drop}{PROGRAMS / name} "$@"\n')
        command.chmod(0o755)
    for name in ("backups", "backups/wal"):
        (home / name).mkdir()
        (home / name).chmod(0o777)
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@contextlib.contextmanager
def _cluster(home: Path) -> Iterator[str]:
    """Runs PostgreSQL with the settings of the page; yields the address of a database."""
    [lines] = [block.text for block in read_blocks(PAGE, "text") if "archive_mode" in block.text]
    with reserved_port() as port:
        yield from _run_cluster(home, port, lines)


def _run_cluster(home: Path, port: int, lines: str) -> Iterator[str]:
    data = home / "cluster"
    _run(home, "initdb", "--pgdata", str(data), "--username", "causeway", "--auth", "trust")
    with (data / "postgresql.conf").open("a") as file:
        file.write(lines.replace(_BACKUPS, f"{home}/backups"))
        file.write(f"port = {port}\nlisten_addresses = '127.0.0.1'\nmax_connections = 200\n")
        file.write(f"unix_socket_directories = '{home}'\n")
    _run(home, "pg_ctl", "--pgdata", str(data), "--log", f"{home}/backups/log", "start")
    address = f"postgres://causeway@127.0.0.1:{port}"
    try:
        with psycopg.connect(f"{address}/postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE causeway")
        yield f"{address}/causeway"
    finally:
        _run(home, "pg_ctl", "--pgdata", str(data), "--mode", "immediate", "stop")


def _run(home: Path, name: str, *arguments: str) -> None:
    # A server that starts would keep a pipe open.
    done = subprocess.run(
        [str(home / "programs" / name), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert done.returncode == 0 or "stop" in arguments, f"{name} ended with {done.returncode}"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
