"""The catalogue and the operators come from the home cell, the directory goes to it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from config.local.bootstrap import PROJECT
from tests.support.cells.clusters import CellUnderTest, run_two_cells
from tests.support.database.pooler import needs_pgbouncer, run_pooler
from tests.support.machine.waiting import wait_until

pytestmark = pytest.mark.slow

CATALOGUE = str(PROJECT / "catalog" / "data" / "catalogue.json")
PROVIDER = {
    "slug": "acme",
    "name": "Acme AI",
    "dialect": "openai",
    "base_url": "https://api.acme.example/v1",
    "data_policy": {"training": False, "retains_prompts": False},
}
COUNT = "SELECT count(*) FROM catalog_modelendpoint"
VERSION = "SELECT version FROM catalog_catalogversion"


@pytest.fixture(scope="module")
def cells() -> Iterator[tuple[CellUnderTest, CellUnderTest]]:
    with run_two_cells() as pair:
        pair[0].manage("import_catalog", CATALOGUE)
        pair[1].wait_for(COUNT, pair[0].query(COUNT))
        add_operator(pair[0], "bob")
        pair[1].wait_for("SELECT username FROM auth_user", [("bob",)])
        yield pair


def test_a_new_price_moves_the_version_there(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    home, north = cells
    [(before,)] = north.query(VERSION)
    listener = psycopg.connect(north.url, autocommit=True)
    listener.execute("LISTEN causeway_versions")
    home.query(
        "WITH price AS (INSERT INTO catalog_priceversion "
        "SELECT (jsonb_populate_record(p, jsonb_build_object("
        "'id', nextval(pg_get_serial_sequence('catalog_priceversion', 'id')), "
        "'prompt', 0.5))).* FROM catalog_priceversion AS p ORDER BY p.id LIMIT 1 RETURNING id) "
        "UPDATE catalog_modelendpoint SET price_id = price.id FROM price "
        "WHERE catalog_modelendpoint.id = (SELECT min(id::text)::uuid FROM catalog_modelendpoint)"
    )
    priced = (
        "SELECT count(*) FROM catalog_modelendpoint AS e "
        "JOIN catalog_priceversion AS p ON e.price_id = p.id WHERE p.prompt = 0.5"
    )
    north.wait_for(priced, home.query(priced))
    wait_until(lambda: north.query(VERSION) != [(before,)])
    # Workers there hear of it too, and need not wait until they poll.
    heard = next(listener.notifies(timeout=60, stop_after=1))
    assert heard.payload == "catalog"
    listener.close()


def test_operators_come_with_their_roles(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    home, north = cells
    for table in ("django_content_type", "auth_permission", "auth_group", "auth_group_permissions"):
        rows = f"SELECT t::text FROM {table} AS t ORDER BY 1"
        north.wait_for(rows, home.query(rows))
    add_operator(home, "ann")
    north.wait_for("SELECT username FROM auth_user WHERE username = 'ann'", [("ann",)])


def test_the_maker_of_an_account_may_not_use_it_in_another_cell(
    cells: tuple[CellUnderTest, CellUnderTest],
) -> None:
    home, north = cells
    add_operator(home, "olga")
    with psycopg.connect(home.url) as connection:
        connection.execute("SELECT set_config('causeway.actor', 'operator olga', true)")
        connection.execute("SELECT set_config('causeway.action', 'test', true)")
        connection.execute("SELECT set_config('causeway.request_id', '', true)")
        connection.execute(
            "INSERT INTO auth_user (username, password, is_superuser, is_staff, is_active, email, "
            "first_name, last_name, date_joined) "
            "VALUES ('puppet', '!', true, true, true, '', '', '', now())"
        )
    entries = "SELECT actor, kind, after ->> 'username' FROM config_accountentry ORDER BY id"
    north.wait_for(entries, [("operator olga", "auth.user", "puppet")])
    judge = (
        "from django.utils import timezone\n"
        "from config.audit.approvals import find_objection\n"
        "for maker in ('olga', 'bob'):\n"
        "    print(find_objection('operator puppet', requester=f'operator {maker}', "
        "permission='billing.add_transfer', since=timezone.now()))"
    )
    done = north.run("shell", "--no-imports", "-c", judge)
    first, second = done.stdout.splitlines()[-2:]
    assert first.startswith("One of the two accounts was created by the other")
    assert second == "None"


def add_operator(home: CellUnderTest, name: str) -> None:
    home.query(
        "INSERT INTO auth_user (username, password, is_superuser, is_staff, is_active, email, "
        "first_name, last_name, date_joined) VALUES (%s, '!', false, true, true, '', '', '', "
        "now())",
        name,
    )


def test_only_aliases_of_all_organizations_come(
    cells: tuple[CellUnderTest, CellUnderTest],
) -> None:
    home, north = cells
    organization = home.manage("create_organization", "Aliased")["organization_id"]
    insert = (
        "INSERT INTO catalog_modelalias (id, created_at, updated_at, name, targets, "
        "organization_id) VALUES (gen_random_uuid(), now(), now(), %s, '{x}', %s)"
    )
    home.query(insert, "own", organization)
    home.query(insert, "first", None)
    home.query(insert, "second", None)
    north.wait_for("SELECT name FROM catalog_modelalias ORDER BY 1", [("first",), ("second",)])
    home.query("DELETE FROM catalog_modelalias WHERE name <> 'second'")
    north.wait_for("SELECT name FROM catalog_modelalias", [("second",)])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE catalog_provider SET name = name || 'x'",
        "DELETE FROM auth_permission",
        "UPDATE auth_user SET is_superuser = true",
        "INSERT INTO auth_group (name) VALUES ('x')",
        "UPDATE accounts_cell SET base_url = 'https://other.example.com'",
    ],
)
def test_rows_of_the_home_cell_cannot_be_written_elsewhere(
    cells: tuple[CellUnderTest, CellUnderTest], statement: str
) -> None:
    with pytest.raises(psycopg.OperationalError, match="kept in the home cell"):
        cells[1].query(statement)


def test_each_cell_numbers_its_own_rows(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    home, north = cells
    made = north.manage("create_organization", "Northern")
    assert made["api_key"].split("-")[2].startswith("01")
    [(least,)] = north.query("SELECT min(id) FROM billing_account")
    assert least == 2**43 + 1
    home.wait_for(
        "SELECT cell, name FROM accounts_directoryentry WHERE name = 'Northern'",
        [("north", "Northern")],
    )


def test_join_again_changes_nothing(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    home, north = cells
    made = "SELECT name, shard, fingerprint FROM accounts_cellidentity"
    before = north.query(made)
    assert home.manage("join_cell", "north") == {"cell": "north", "shard": "01"}
    assert north.query(made) == before


def test_a_cell_needs_its_own_name_and_the_secrets_of_the_home_cell(
    cells: tuple[CellUnderTest, CellUnderTest],
) -> None:
    home, north = cells
    wrong = CellUnderTest("south", north.url).run("work", "--once")
    assert (wrong.returncode, "belongs to the cell north" in wrong.stderr) == (1, True)
    assert CellUnderTest("home", north.url).run("work", "--once").returncode == 1
    north.query("UPDATE accounts_cellidentity SET fingerprint = 'x:y'")
    lost = north.run("work", "--once")
    assert "KEY_PEPPERS and CREDENTIAL_KEYS must list" in lost.stderr
    home.manage("join_cell", "north")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("south",), "CELL_DATABASE_URLS has no URL"),
        (("home",), "is not home"),
        (("No",), "at most 32"),
    ],
)
def test_join_refuses(
    cells: tuple[CellUnderTest, CellUnderTest], arguments: tuple[str, ...], message: str
) -> None:
    done = cells[0].run("join_cell", *arguments)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


@needs_pgbouncer
def test_a_pooler_gets_no_session_of_ours(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    """Checks that a setting of the session names no actor for changes of other processes."""
    home, north = cells
    made = home.manage("create_organization", "Pooled")["organization_id"]
    join, move = ("join_cell", "north"), ("move_organization", made, "--to", "north")
    with run_pooler(home.url) as before_home, run_pooler(north.url) as before_north:
        behind = dataclasses.replace(home, url=before_home.url(home.url))
        to_pooler = dataclasses.replace(home, others={"north": before_north.url(north.url)})
        for arguments in (join, move):
            refused = behind.run(*arguments)
            assert (refused.returncode, "DATABASE_DIRECT_URL" in refused.stderr) == (1, True)
            refused = to_pooler.run(*arguments)
            assert (refused.returncode, "leads to a pooler" in refused.stderr) == (1, True)
        for url in (behind.url, to_pooler.others["north"]):
            with psycopg.connect(url, autocommit=True) as session:
                [actor] = session.execute("SELECT current_setting('causeway.actor', true)")
                assert actor[0] in (None, "")
        past = dataclasses.replace(behind, settings={"DATABASE_DIRECT_URL": home.url})
        assert past.manage(*join) == {"cell": "north", "shard": "01"}
        assert past.manage(*move, "--dry-run")["residence"] == "here"


def test_each_side_hears_that_the_other_lives(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    _home, _north = cells
    for cell in cells:
        assert cell.run("work", "--once").returncode == 0
    beats = "SELECT cell FROM accounts_cellbeat ORDER BY cell"
    for cell in cells:
        cell.wait_for(beats, [("home",), ("north",)])


def test_a_lost_replication_is_begun_again(cells: tuple[CellUnderTest, CellUnderTest]) -> None:
    home, north = cells
    north.query("ALTER SUBSCRIPTION causeway_north DISABLE")
    wait_until(
        lambda: (
            not home.query(
                "SELECT FROM pg_replication_slots WHERE slot_name = 'causeway_north' AND active"
            )
        )
    )
    home.query("SELECT pg_drop_replication_slot('causeway_north')")
    renamed = "SELECT name FROM catalog_provider ORDER BY slug"
    home.query("UPDATE catalog_provider SET name = name || ' (renamed)'")
    [(version,)] = north.query(VERSION)
    home.manage("join_cell", "north")
    assert north.query(renamed) == home.query(renamed)
    assert north.query(VERSION) != [(version,)]
    home.query("UPDATE catalog_provider SET name = slug")
    north.wait_for(renamed, home.query(renamed))


def test_a_restored_cell_gets_all_shared_rows_again(
    cells: tuple[CellUnderTest, CellUnderTest],
) -> None:
    """Its subscription goes on where the slot is, and misses what came before."""
    home, north = cells
    names = "SELECT name FROM catalog_provider ORDER BY slug"
    directory = "SELECT count(*) FROM accounts_directoryentry WHERE cell = 'north'"
    north.manage("create_organization", "Listed")
    home.wait_for(directory, north.query(directory))
    for cell, statement in (
        (north, "UPDATE catalog_provider SET name = 'of the backup'"),
        (home, "DELETE FROM accounts_directoryentry WHERE cell = 'north'"),
    ):
        with psycopg.connect(cell.url) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(statement)
    home.manage("join_cell", "north")
    assert north.query(names) != home.query(names)
    home.manage("join_cell", "north", "--again")
    assert north.query(names) == home.query(names)
    assert home.query(directory) == north.query(directory)
    home.query("UPDATE catalog_provider SET name = slug || ' (later)'")
    north.wait_for(names, home.query(names))


def test_the_catalogue_is_not_changed_elsewhere(
    cells: tuple[CellUnderTest, CellUnderTest], tmp_path: Path
) -> None:
    _home, north = cells
    models = "SELECT name FROM catalog_provider ORDER BY slug"
    before = north.query(models)
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps({"providers": [{**PROVIDER, "name": "Other"}]}))
    done = north.run("import_catalog", str(file))
    assert done.returncode == 1
    assert "Rows of catalog_provider are kept in the home cell: change them there." in done.stderr
    assert north.query(models) == before
    synced = dataclasses.replace(north, settings={"CATALOG_SYNC": "litellm=https://a.example/x"})
    done = synced.run("work", "--once")
    assert (done.returncode, "CATALOG_SYNC is for the home cell" in done.stderr) == (1, True)
