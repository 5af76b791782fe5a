"""Two cells behind one proxy: an organization moves under load, and nothing is lost or double."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import requests

from config.local.simulator.server import Simulator
from config.secrets import generate_api_key
from tests.support.cells.clusters import CellUnderTest, run_two_cells, wait_until
from tests.support.cells.proxy import run_proxy
from tests.support.processes import MANAGE, free_port

MODEL: Final = "acme/falcon"
SLOW: Final = "acme/snail"
# The commands that have found a running request, and look again in a moment.
PAUSING: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND state = 'idle' AND query LIKE 'SELECT COUNT(*)%%FROM \"billing_transfer\"%%'"
)
BALANCE: Final = (
    "SELECT posted_credits - posted_debits, pending_debits FROM billing_account "
    "WHERE kind = 'credits' AND organization_id = %s"
)


def describe(model: str, upstream: str) -> dict[str, list[dict[str, Any]]]:
    """Returns a model of the catalogue and its endpoint."""
    described = {
        "id": model,
        "canonical_slug": model,
        "name": model,
        "created": 1780272000,
        "description": "",
        "context_length": 131072,
        "architecture": {
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "modality": "text->text",
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "supported_parameters": ["temperature"],
    }
    endpoint = {
        "model": model,
        "provider": "acme",
        "upstream_model_id": upstream,
        "pricing": {"prompt": "0.000001", "completion": "0.000002"},
        "context_length": 131072,
        "max_completion_tokens": 1000,
    }
    return {"models": [described], "endpoints": [endpoint]}


FALCON: Final = describe(MODEL, "sim-slow:0.1")
# Its requests run until the test releases them.
SNAIL: Final = describe(SLOW, "sim-held")
CATALOGUE: Final = {name: [*FALCON[name], *SNAIL[name]] for name in FALCON}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="haproxy is missing: apt-get install haproxy"
    ),
]


@dataclass
class World:
    """Two cells that serve, a proxy before them, and an organization of the home cell."""

    home: CellUnderTest
    north: CellUnderTest
    upstream: Simulator
    proxy: Any
    organization: str
    key: str

    @property
    def code(self) -> str:
        return self.key.split("-")[2]


@dataclass
class Load:
    """Sends chats through the proxy, one after another in each thread, and keeps every answer."""

    world: World
    paid: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    is_over: bool = False

    def run(self) -> None:
        while not self.is_over:
            answer = chat(self.world)
            if answer.status_code == 200:
                self.paid.append(answer.json()["id"])
            elif answer.status_code == 503 and "organization_moving" in answer.text:
                self.refused.append(answer.headers["Retry-After"])
                time.sleep(0.2)
            else:
                self.odd.append(f"{answer.status_code} {answer.text}")


def chat(world: World, model: str = MODEL, **headers: str) -> requests.Response:
    return requests.post(
        f"http://127.0.0.1:{world.proxy.port}/api/v1/chat/completions",
        headers=headers or {"Authorization": f"Bearer {world.key}"},
        json={"model": model, "messages": [{"role": "user", "content": "one two three"}]},
        timeout=120,
    )


@contextmanager
def serve_cell(cell: CellUnderTest, log: Path) -> Iterator[int]:
    port = free_port()
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "serve", "--port", str(port)],
            env=cell.environment,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: process.poll() is not None or _answers(port))
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def world(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("cells")
    provider = {
        "slug": "acme",
        "name": "Acme AI",
        "dialect": "openai",
        "base_url": simulator.base_url,
        "data_policy": {"training": False, "retains_prompts": False},
    }
    file = directory / "catalogue.json"
    file.write_text(json.dumps({"providers": [provider], **CATALOGUE}))
    with run_two_cells() as (home, north):
        home.manage("import_catalog", str(file))
        subprocess.run(
            [sys.executable, str(MANAGE), "set_provider_credential", "acme"],
            env=home.environment,
            input="operator-secret-0123456789",
            text=True,
            check=True,
        )
        north.wait_for(
            "SELECT count(*) FROM catalog_provider WHERE sealed_credential IS NOT NULL", [(1,)]
        )
        made = home.manage("create_organization", "Acme")
        home.manage("grant_credits", made["organization_id"], "100")
        lines = home.run("cell_map").stdout
        assert lines == "00 home\n01 north\n"
        with (
            serve_cell(home, directory / "home.log") as home_port,
            serve_cell(north, directory / "north.log") as north_port,
            run_proxy(home_port, north_port, lines) as proxy,
        ):
            yield World(home, north, simulator, proxy, made["organization_id"], made["api_key"])


def everything(cell: CellUnderTest) -> dict[str, list[Any]]:
    """Returns the rows that a refused command may not change."""
    return {
        table: cell.query(f"SELECT t::text FROM {table} AS t ORDER BY 1")
        for table in (
            "accounts_organization", "accounts_apikey", "billing_account", "billing_transfer",
            "inference_generation", "accounts_directoryentry", "config_auditentry",
        )
    }  # fmt: skip


def test_a_move_under_load_loses_and_doubles_nothing(world: World) -> None:
    load = Load(world)
    threads = [threading.Thread(target=load.run, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(load.paid) > 20)

    dry = world.home.manage("move_organization", world.organization, "--to", "north", "--dry-run")
    assert dry["rows"]["accounts_apikey"] == 2
    moved = world.home.manage("move_organization", world.organization, "--to", "north")
    assert moved["map"] == f"{world.code} north"
    wait_until(lambda: len(load.refused) > 0)
    before = len(load.paid)
    world.proxy.add_line(world.code, "north")
    wait_until(lambda: len(load.paid) > before + 20)
    load.is_over = True
    for thread in threads:
        thread.join(60)

    assert load.odd == []
    assert set(load.refused) == {"1"}
    settled = "SELECT count(*) FROM inference_journal"
    world.north.wait_for(settled, [(0,)])
    rows = world.north.query(
        "SELECT id, status, cost_nano FROM inference_generation WHERE organization_id = %s",
        world.organization,
    )
    assert sorted(row[0] for row in rows) == sorted(load.paid)
    assert {row[1] for row in rows} == {"completed"}
    [(balance, held)] = world.north.query(BALANCE, world.organization)
    assert (balance, held) == (100 * 10**9 - sum(row[2] for row in rows), 0)
    # What was done before the move has the same ids in both cells, and nothing was added here.
    mine = "SELECT id FROM inference_generation WHERE organization_id = %s"
    stayed = {row[0] for row in world.home.query(mine, world.organization)}
    assert stayed < set(load.paid)
    for cell in (world.home, world.north):
        assert cell.manage("verify_ledger") == {"differences": []}
    directory = "SELECT cell, residence FROM accounts_directoryentry WHERE name = 'Acme' ORDER BY 1"
    world.home.wait_for(directory, [("home", "left"), ("north", "here")])
    assert f"{world.code} north" in world.home.run("cell_map").stdout


def make_organization(world: World, name: str) -> str:
    made = world.home.manage("create_organization", name)
    world.home.manage("grant_credits", made["organization_id"], "7")
    organization: str = made["organization_id"]
    return organization


def test_a_repetition_changes_nothing_more(world: World) -> None:
    organization = make_organization(world, "Repeated")
    arguments = "move_organization", organization, "--to", "north"
    world.home.manage(*arguments)
    before = everything(world.north)
    again = world.home.manage(*arguments)
    assert (again["residence"], again["rows"]) == ("left", {})
    refused = world.home.run(*arguments, "--give-up")
    assert (refused.returncode, "only one that is leaving can stay" in refused.stderr) == (1, True)
    assert everything(world.north) == before


# A transaction that holds one of these lets the command come so far and no further.
STEPS: Final = {
    "while it copies": (
        "north", "LOCK TABLE accounts_keydigest IN ACCESS EXCLUSIVE MODE", ("leaving", None),
    ),
    "before it leaves": (
        "home", "SELECT FROM accounts_organization WHERE id = %s FOR KEY SHARE",
        ("leaving", "arriving"),
    ),
    "before it arrives": (
        "north", "LOCK TABLE accounts_directoryentry IN SHARE MODE", ("left", "arriving"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_was_killed_goes_on(world: World, step: str) -> None:
    organization = make_organization(world, f"Killed {step}")
    cell, statement, expected = STEPS[step]
    url = {"home": world.home, "north": world.north}[cell].url
    with psycopg.connect(url) as blocker:
        blocker.execute(statement, [organization] if "%s" in statement else None)
        command = world.home.start("move_organization", organization, "--to", "north")
        wait_until(lambda: residences(world, organization) == expected and is_blocked(url))
        command.kill()
        command.wait(30)
    # PostgreSQL may still do the statement that waited, which here is the last step.
    assert residences(world, organization) in (expected, ("left", "here"))
    moved = world.home.manage("move_organization", organization, "--to", "north")
    assert moved["residence"] == "left"
    assert residences(world, organization) == ("left", "here")
    assert world.north.query(BALANCE, organization) == [(7 * 10**9, 0)]
    for each in (world.home, world.north):
        assert each.manage("verify_ledger") == {"differences": []}


def begin_slow_request(world: World, made: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    """Sends a request of a new organization, and returns when it is admitted."""
    # Another module may have released more requests than it sent.
    world.upstream.clear()
    answers: list[requests.Response] = []
    headers = {"Authorization": f"Bearer {made['api_key']}"}
    caller = threading.Thread(
        target=lambda: answers.append(chat(world, model=SLOW, **headers)), daemon=True
    )
    caller.start()
    query = "SELECT count(*) FROM inference_generation WHERE organization_id = %s"
    admitted = [(1,)]
    wait_until(
        lambda: bool(answers) or world.home.query(query, made["organization_id"]) == admitted
    )
    assert [answer.text for answer in answers] == []
    return caller, answers


def test_a_move_that_was_killed_while_a_request_ran_waits_for_it(world: World) -> None:
    """The request was admitted before, so it is paid here, once, and moves with the others."""
    made = world.home.manage("create_organization", "Runs")
    organization = made["organization_id"]
    world.home.manage("grant_credits", organization, "7")
    caller, answers = begin_slow_request(world, made)
    command = world.home.start("move_organization", organization, "--to", "north")
    wait_until(lambda: residences(world, organization) == ("leaving", None))
    command.kill()
    command.wait(30)
    refused = chat(world, Authorization=f"Bearer {made['api_key']}")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    world.home.wait_for(PAUSING, [(0,)])
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(world.home.manage, "move_organization", organization, "--to", "north")
        try:
            world.home.wait_for(PAUSING, [(1,)])
        finally:
            world.upstream.release(1)
        assert moved.result()["residence"] == "left"
    caller.join(60)
    [answer] = answers
    assert answer.status_code == 200
    [(cost,)] = world.north.query(
        "SELECT cost_nano FROM inference_generation WHERE id = %s", answer.json()["id"]
    )
    assert world.north.query(BALANCE, organization) == [(7 * 10**9 - cost, 0)]
    assert cost > 0


def test_a_move_that_finds_no_quiet_leaves_it_served(world: World) -> None:
    made = world.home.manage("create_organization", "Busy")
    organization = made["organization_id"]
    world.home.manage("grant_credits", organization, "7")
    caller, answers = begin_slow_request(world, made)
    done = world.home.run("move_organization", organization, "--to", "north", "--wait", "0.5")
    assert (done.returncode, "It did not become quiet within 0.5 s" in done.stderr) == (1, True)
    assert residences(world, organization) == ("here", None)
    assert chat(world, Authorization=f"Bearer {made['api_key']}").status_code == 200
    world.upstream.release(1)
    caller.join(60)
    assert [answer.status_code for answer in answers] == [200]


def test_a_ledger_that_differs_there_stops_the_move(world: World) -> None:
    organization = make_organization(world, "Unlucky")
    wrong = world.north.manage("create_organization", "Wrong")["organization_id"]
    change = (
        "UPDATE billing_account SET posted_debits = %s "
        "WHERE kind = 'grants' AND organization_id = %s"
    )
    world.north.query(change, 1, wrong)
    done = world.home.run("move_organization", organization, "--to", "north")
    world.north.query(change, 0, wrong)
    assert done.returncode == 1
    assert "verify_ledger finds 2 differences in the cell north" in done.stderr
    assert residences(world, organization) == ("here", None)


def residences(world: World, organization: str) -> tuple[str | None, str | None]:
    """Returns where an organization is, at home and in the north."""
    query = "SELECT residence FROM accounts_organization WHERE id = %s"
    found = [cell.query(query, organization) for cell in (world.home, world.north)]
    home, north = (rows[0][0] if rows else None for rows in found)
    return home, north


def is_blocked(url: str) -> bool:
    """Returns whether a command waits for a lock in a cell."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        ).fetchone()
    return row is not None and row[0] > 0


def test_a_forged_code_opens_nothing(world: World) -> None:
    """The checksum is public, so anybody can make a key with any code that reaches any cell."""
    for code in ("01abcdef", "00abcdef", world.code):
        forged = generate_api_key(is_management=False, code=code).reveal()
        answer = chat(world, Authorization=f"Bearer {forged}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, 401)
    body = world.key.rpartition("-")[2]
    assert chat(world, Authorization=f"Bearer sk-cw-01abcdef-{body}").status_code == 401


def test_a_move_is_given_up(world: World) -> None:
    organization = make_organization(world, "Stays")
    before = world.home.query(BALANCE, organization)
    leave = "UPDATE accounts_organization SET residence = %s, other_cell = %s WHERE id = %s"
    world.home.manage("move_organization", organization, "--to", "north")
    world.north.query(leave, "arriving", "home", organization)
    world.home.query(leave, "leaving", "north", organization)
    given_up = world.home.manage("move_organization", organization, "--to", "north", "--give-up")
    assert given_up["residence"] == "here"
    assert world.home.query(BALANCE, organization) == before
    gone = "SELECT count(*) FROM accounts_organization WHERE id = %s"
    assert world.north.query(gone, organization) == [(0,)]
    assert world.north.query(BALANCE, organization) == []


def test_a_move_is_given_up_while_the_other_cell_is_away(world: World) -> None:
    made = world.home.manage("create_organization", "Stranded")
    organization = made["organization_id"]
    world.home.manage("grant_credits", organization, "7")
    with psycopg.connect(world.home.url) as blocker:
        blocker.execute(
            "SELECT FROM accounts_organization WHERE id = %s FOR KEY SHARE", [organization]
        )
        command = world.home.start("move_organization", organization, "--to", "north")
        wait_until(
            lambda: (
                residences(world, organization) == ("leaving", "arriving")
                and is_blocked(world.home.url)
            )
        )
        command.kill()
        command.wait(30)
        # PostgreSQL must notice that before the lock is free, or it would do the last statement.
        world.home.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
    nowhere = f"postgres://causeway@127.0.0.1:{free_port()}/causeway"
    alone = dataclasses.replace(world.home, others={"north": nowhere})
    arguments = "move_organization", organization, "--to", "north", "--give-up"
    assert alone.manage(*arguments)["residence"] == "here"
    refused = alone.run(*arguments)
    assert (refused.returncode, "is not leaving for north" in refused.stderr) == (1, True)
    assert residences(world, organization) == ("here", "arriving")
    assert chat(world, Authorization=f"Bearer {made['api_key']}").status_code == 200
    # Wherever the proxy sends a request, the copy serves nobody.
    world.proxy.add_line(made["api_key"].split("-")[2], "north")
    elsewhere = chat(world, Authorization=f"Bearer {made['api_key']}")
    assert (elsewhere.status_code, "organization_moving" in elsewhere.text) == (503, True)

    assert world.home.manage(*arguments)["residence"] == "here"
    assert residences(world, organization) == ("here", None)
    for cell in (world.home, world.north):
        assert cell.manage("verify_ledger") == {"differences": []}


def test_it_is_purged_and_comes_back(world: World) -> None:
    organization = make_organization(world, "Returns")
    world.home.manage("move_organization", organization, "--to", "north")
    world.home.manage("move_organization", organization, "--to", "north", "--purge")
    for table, column in (
        ("accounts_organization", "id"), ("billing_transfer", "organization_id"),
        ("billing_account", "organization_id"), ("accounts_apikey", "organization_id"),
    ):  # fmt: skip
        rows = f"SELECT count(*) FROM {table} WHERE {column} = %s"
        assert world.home.query(rows, organization) == [(0,)]
    assert world.home.manage("verify_ledger") == {"differences": []}
    balance = world.north.query(BALANCE, organization)
    back = world.north.manage("move_organization", organization, "--to", "home")
    assert back["cell"] == "home"
    assert world.home.query(BALANCE, organization) == balance == [(7 * 10**9, 0)]
    for cell in (world.home, world.north):
        assert cell.manage("verify_ledger") == {"differences": []}


def test_the_shares_of_hours_come_too(world: World) -> None:
    organization = make_organization(world, "Hourly")
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=9)
    hour = "INSERT INTO inference_hourlyusage VALUES (%s, 0, 0, 0, 0, 0, 0, 0)"
    for cell, summed in ((world.home, 2), (world.north, 5)):
        cell.query("DELETE FROM inference_hourlyusage")
        for number in range(summed):
            cell.query(hour, first + timedelta(hours=number))
    share = (
        "INSERT INTO inference_hourlyshare (hour, organization_id, endpoint_id, model, "
        "provider_name, requests, failed, tokens, cost_nano, upstream_nano, latency_ms, timed) "
        "VALUES (%s, %s, gen_random_uuid(), %s, '', 3, 0, 0, 0, 0, 0, 0)"
    )
    world.home.query(share, first, organization, "of the organization")
    world.home.query(share, first, None, "of the cell")
    mine = "SELECT id, hour, model FROM inference_hourlyshare WHERE hour = %s"
    [wanted] = world.home.query(f"{mine} AND organization_id IS NOT NULL", first)

    moved = world.home.manage("move_organization", organization, "--to", "north")
    assert moved["rows"]["inference_hourlyshare"] == 1
    assert world.north.query(mine, first) == [wanted]
    # North sums the later hours again, with what the organization did in them at home.
    hours = "SELECT hour FROM inference_hourlyusage ORDER BY 1"
    assert world.north.query(hours) == [(first,), (first + timedelta(hours=1),)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "home"), "home is this cell"),
        (("--to", "south"), "CELL_DATABASE_URLS has no URL for the cell south"),
        (("--to", "north", "--purge"), "lives in the other cell"),
        (("--to", "north", "--wait", "0"), "top-ups wait for a payment"),
    ],
)
def test_a_refused_move_changes_nothing(
    world: World, arguments: tuple[str, ...], message: str
) -> None:
    made = world.home.manage("create_organization", "Waits")
    organization = made["organization_id"]
    world.home.query(
        "INSERT INTO billing_topup (id, created_at, updated_at, organization_id, chain_id, token, "
        "token_symbol, token_decimals, sender, recipient, units, amount_nano, status, expires_at, "
        "payable_until, is_reserved, requested_by, "
        "request_fingerprint, tx_hash) "
        "VALUES (gen_random_uuid(), now(), now(), %s, 1, "
        "'0x1', 'USDC', 6, '0x2', '0x3', %s, 1, 'open', now() + interval '1 h', "
        "now() + interval '2 h', true, '', '', '')",
        organization,
        time.time_ns() % 10**9,
    )
    before = everything(world.home), everything(world.north)
    done = world.home.run("move_organization", organization, *arguments)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert (everything(world.home), everything(world.north)) == before


def test_keys_without_a_code_are_named(world: World) -> None:
    made = world.home.manage("create_organization", "Old")
    world.home.query(
        "UPDATE accounts_apikey SET label = 'sk-cw-abc…xyz' WHERE organization_id = %s "
        "AND NOT is_management",
        made["organization_id"],
    )
    done = world.home.run("move_organization", made["organization_id"], "--to", "north")
    assert "The keys sk-cw-abc…xyz have no routing code" in done.stderr
    assert residences(world, made["organization_id"]) == ("here", None)

    arguments = "move_organization", made["organization_id"], "--to", "north", "--revoke-old-keys"
    world.home.manage(*arguments)
    keys = (
        "SELECT label, deleted_at IS NOT NULL FROM accounts_apikey "
        "WHERE organization_id = %s AND NOT is_management"
    )
    for cell in (world.home, world.north):
        assert cell.query(keys, made["organization_id"]) == [("sk-cw-abc…xyz", True)]
    answer = chat(world, Authorization=f"Bearer {made['api_key']}")
    assert answer.status_code == 401


# As the retention leaves them: an account has what left, and a fold proves it.
FOLD: Final = """
from django.db import transaction
from billing import folds
from billing.models import Account, Fold, Meter, MeterOpening, Opening
from accounts.models import ApiKey, Organization
with transaction.atomic():
    tenant = Organization.objects.get(pk="{organization}")
    last = Fold.objects.order_by("number").last()
    number = last.number + 1 if last else 1
    for kind, debits, credits in (("credits", 2_000_000_000, 0), ("usage", 0, 2_000_000_000)):
        account = Account.objects.get(organization=tenant, kind=kind)
        Account.objects.filter(pk=account.pk).update(
            posted_debits=account.posted_debits + debits,
            posted_credits=account.posted_credits + credits,
        )
        Opening.objects.create(
            fold_id=number, account_id=account.pk, posted_debits=debits, posted_credits=credits
        )
    key = ApiKey.objects.filter(organization=tenant, is_management=False).get()
    meter = Meter.objects.get(subject_id=key.pk)
    Meter.objects.filter(pk=meter.pk).update(cost=meter.cost + 2_000_000_000)
    MeterOpening.objects.create(fold_id=number, subject_id=key.pk, cost=2_000_000_000, byok=0)
    fold = Fold(number=number, begin=f"gen-{{number:010}}", end=f"gen-{{number + 1:010}}", files=[])
    folds.seal(fold)
    fold.save(force_insert=True)
"""
OPENINGS: Final = (
    "SELECT a.kind, sum(p.posted_debits)::bigint, sum(p.posted_credits)::bigint "
    "FROM billing_opening AS p JOIN billing_account AS a ON p.account_id = a.id "
    "WHERE a.organization_id = %s GROUP BY a.kind ORDER BY a.kind"
)
ARRIVALS: Final = "SELECT cell FROM billing_arrival WHERE organization_id = %s"


def test_folded_months_come_as_opening_balances(world: World) -> None:
    organization = make_organization(world, "Folded")

    def fold(cell: CellUnderTest) -> None:
        done = cell.run("shell", "--no-imports", "-c", FOLD.format(organization=organization))
        assert done.returncode == 0, done.stderr

    def verify() -> None:
        for cell in (world.home, world.north):
            assert cell.manage("verify_ledger") == {"differences": []}

    def sums(billions: int) -> list[tuple[str, int, int]]:
        return [("credits", billions * 10**9, 0), ("usage", 0, billions * 10**9)]

    fold(world.home)
    world.home.manage("move_organization", organization, "--to", "north")
    verify()
    assert world.north.query(OPENINGS, organization) == sums(2)
    assert world.north.query(ARRIVALS, organization) == [("home",)]
    assert world.north.query(BALANCE, organization) == [(5 * 10**9, 0)]
    # The home cell's fold still proves the account that has left, so the rows must stay.
    done = world.home.run("move_organization", organization, "--to", "north", "--purge")
    assert "must stay too" in done.stderr

    # It comes back with what the north has folded since, and brings nothing twice.
    fold(world.north)
    world.north.manage("move_organization", organization, "--to", "home")
    verify()
    assert world.home.query(OPENINGS, organization) == sums(4)
    assert world.home.query(BALANCE, organization) == [(3 * 10**9, 0)]
    world.home.manage("move_organization", organization, "--to", "north")
    verify()
    assert world.north.query(OPENINGS, organization) == sums(4)

    # Whoever alters what arrived is found out.
    world.north.query("ALTER TABLE billing_opening DISABLE TRIGGER USER")
    change = "UPDATE billing_opening SET posted_debits = posted_debits + %s WHERE fold_id > 2 ^ 30"
    world.north.query(change, 1)
    found = world.north.manage("verify_ledger", check=False)["differences"]
    world.north.query(change, -1)
    world.north.query("ALTER TABLE billing_opening ENABLE TRIGGER USER")
    altered = f"arrival of {organization}: its opening balances are not those that were sealed"
    assert altered in found
    verify()
