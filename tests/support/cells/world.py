"""Two cells that serve behind one proxy, and an organization that may move between them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import requests

from tests.support.cells.clusters import CellUnderTest, run_two_cells
from tests.support.cells.proxy import run_proxy
from tests.support.machine.waiting import wait_until
from tests.support.processes import MANAGE, Served, wait_until_started
from tests.support.simulator.server import Simulator

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


@contextmanager
def run_world(simulator: Simulator, directory: Path) -> Iterator[World]:
    """Runs two cells with a proxy before them, and yields them with an organization at home."""
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


@contextmanager
def serve_cell(cell: CellUnderTest, log: Path) -> Iterator[int]:
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "serve", "--port", "0"],
            env=cell.environment,
            stdout=file,
            stderr=file,
            text=True,
        )
    try:
        served = Served("", process, log)
        wait_until_started(served, 1, has_metrics=False)
        port = int(served.address.rpartition(":")[2])
        wait_until(lambda: _answers(port))
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def chat(world: World, model: str = MODEL, **headers: str) -> requests.Response:
    return requests.post(
        f"http://127.0.0.1:{world.proxy.port}/api/v1/chat/completions",
        headers=headers or {"Authorization": f"Bearer {world.key}"},
        json={"model": model, "messages": [{"role": "user", "content": "one two three"}]},
        timeout=120,
    )


def make_organization(world: World, name: str) -> str:
    made = world.home.manage("create_organization", name)
    world.home.manage("grant_credits", made["organization_id"], "7")
    organization: str = made["organization_id"]
    return organization


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


def everything(cell: CellUnderTest) -> dict[str, list[Any]]:
    """Returns the rows that a refused command may not change."""
    return {
        table: cell.query(f"SELECT t::text FROM {table} AS t ORDER BY 1")
        for table in (
            "accounts_organization", "accounts_apikey", "billing_account", "billing_transfer",
            "inference_generation", "accounts_directoryentry", "config_auditentry",
        )
    }  # fmt: skip
