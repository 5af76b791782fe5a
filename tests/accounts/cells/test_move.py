"""Two cells behind one proxy: an organization moves under load, and nothing is lost or double."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from config.secrets import generate_api_key
from tests.support.cells.clusters import CellUnderTest
from tests.support.cells.world import (
    BALANCE,
    World,
    begin_slow_request,
    chat,
    everything,
    make_organization,
    residences,
)
from tests.support.machine.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="haproxy is missing: apt-get install haproxy"
    ),
]


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


def test_a_forged_code_opens_nothing(world: World) -> None:
    """The checksum is public, so anybody can make a key with any code that reaches any cell."""
    for code in ("01abcdef", "00abcdef", world.code):
        forged = generate_api_key(is_management=False, code=code).reveal()
        answer = chat(world, Authorization=f"Bearer {forged}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, 401)
    body = world.key.rpartition("-")[2]
    assert chat(world, Authorization=f"Bearer sk-cw-01abcdef-{body}").status_code == 401


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
