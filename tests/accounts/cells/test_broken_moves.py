"""Moves that were broken off, given up or undone by a restore: one cell serves, and never two."""

from __future__ import annotations

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID

import psycopg
import pytest

from accounts.cells.rows import delete_rows
from tests.support.cells.world import (
    BALANCE,
    PAUSING,
    World,
    begin_slow_request,
    chat,
    is_blocked,
    make_organization,
    residences,
)
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="haproxy is missing: apt-get install haproxy"
    ),
]


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
    arguments = "move_organization", organization, "--to", "north", "--give-up"
    with reserved_port() as nobody:
        nowhere = f"postgres://causeway@127.0.0.1:{nobody}/causeway"
        alone = dataclasses.replace(world.home, others={"north": nowhere})
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


def test_a_move_is_undone_after_a_restore(world: World) -> None:
    """Each of two cells is put back to a moment before the move, by the rows that differ then."""
    organization = make_organization(world, "Restored")
    arguments = "move_organization", organization, "--to", "north"
    refused = world.home.run(*arguments, "--lives-there")
    assert (refused.returncode, "both cells have as theirs" in refused.stderr) == (1, True)
    world.home.manage(*arguments)
    balance = world.north.query(BALANCE, organization)
    reside = "UPDATE accounts_organization SET residence = %s, other_cell = %s WHERE id = %s"

    # The home cell is restored.
    world.home.query(reside, "here", "", organization)
    directory = "SELECT residence FROM accounts_directoryentry WHERE organization_id = %s"
    world.home.wait_for(directory, [("here",), ("here",)], organization)
    assert "Restored lives in home and north" in world.home.run("cell_map").stderr
    for more in ((), ("--give-up",)):
        refused = world.home.run(*arguments, *more)
        assert (refused.returncode, "restored from before a move" in refused.stderr) == (1, True)
    assert residences(world, organization) == ("here", "here")
    assert world.home.manage(*arguments, "--lives-there")["residence"] == "left"
    assert residences(world, organization) == ("left", "here")
    assert world.home.run("cell_map").returncode == 0
    refused = world.home.run(*arguments, "--give-up")
    assert (refused.returncode, "only one that is leaving can stay" in refused.stderr) == (1, True)

    # The other one is restored. Until the directory knows, nobody can tell that no cell has it.
    with psycopg.connect(world.north.url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        delete_rows(connection, UUID(organization))
    refused = world.home.run(*arguments, "--give-up")
    assert (refused.returncode, residences(world, organization)) == (1, ("left", None))
    world.north.query(
        "DELETE FROM accounts_directoryentry WHERE organization_id = %s", organization
    )
    world.home.wait_for(directory, [("left",)], organization)
    assert world.home.manage(*arguments, "--give-up")["residence"] == "here"
    assert world.home.query(BALANCE, organization) == balance
    for cell in (world.home, world.north):
        assert cell.manage("verify_ledger") == {"differences": []}
