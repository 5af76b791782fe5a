"""A database that has lost what workers had stored: they notice it, stop, and settle it again."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from django.db import connection as django_connection
from django.test import Client
from psycopg.sql import SQL, Identifier

from billing import ledger
from billing.models import Excess, Transfer
from config.api.errors import Unavailable
from config.clocks.clock import clock
from config.database.pool import find_pool
from config.server.readiness import HistoryLost, Readiness, readiness
from inference.models import Generation, HistoryLoss, Journal, WorkerBeat
from inference.settlement import collector
from inference.settlement.history import FIND_UNSTORED, Beat, History
from inference.settlement.journal import BEAT, GAP_SECONDS
from inference.settlement.sweeper import may_believe_silence
from inference.store import (
    KEPT_BYTES,
    KEPT_SECONDS,
    CommitMemory,
    Committed,
    DataPlaneConnection,
    run_in_thread,
)
from tests.support import factories
from tests.support.database.migrated import own_database
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, events_of
from tests.support.ledger import differences
from tests.support.machine.waiting import wait_until
from tests.support.operators.catalogue_files import describe_catalogue
from tests.support.processes import Served, manage, serve, set_up
from tests.support.simulator.server import Simulator

QUICK, SLOW = "acme/quick", "acme/slow"
BEHAVIOURS = {QUICK: "sim-echo", SLOW: "sim-slow:0,0.5"}
# The database of the service, a copy, and one that was put aside; each process has its own.
NAME = f"history_{os.getpid()}"
COPY, ASIDE = f"{NAME}_copy", f"{NAME}_aside"


@dataclass
class Installation:
    """A database that a test copies and puts back, and the services on it."""

    url: str
    key: str = ""
    management_key: str = ""
    organization_id: str = ""
    services: list[Served] = field(default_factory=list)

    def post(self, server: str, model: str, path: str = CHAT, **fields: Any) -> requests.Response:
        words = " ".join(["word"] * 16)
        body = {"model": model, "messages": [{"role": "user", "content": words}], **fields}
        headers = {"Authorization": f"Bearer {self.key}"}
        return requests.post(f"{server}{path}", json=body, headers=headers, timeout=60)

    def manage_key(self, server: str, method: str) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.management_key}"}
        body = {"name": "another"} if method == "POST" else None
        return requests.request(
            method, f"{server}/api/v1/keys", json=body, headers=headers, timeout=60
        )

    def reason(self, server: str) -> str | None:
        found: str | None = requests.get(f"{server}/readyz", timeout=60).json().get("reason")
        return found

    def manage(self, *arguments: str) -> dict[str, Any]:
        """Runs a command and returns what it prints as JSON."""
        done = manage(*arguments, "--json", DATABASE_URL=self.url)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns what was stored of each generation, and what was paid for it."""
        return self.query(
            "SELECT g.id, g.status, g.model, g.prompt_tokens, g.completion_tokens, g.cost_nano, "
            "t.posted_nano FROM inference_generation AS g "
            "LEFT JOIN billing_transfer AS t ON t.reference = g.id ORDER BY g.id"
        )

    def balance(self) -> list[tuple[Any, ...]]:
        return self.query(
            "SELECT posted_credits, posted_debits, pending_debits FROM billing_account "
            "WHERE kind = 'credits'"
        )

    def replace(self, target: str, source: str) -> None:
        """Puts a copy of one database in the place of another, as a restore does."""
        with self._taking(source) as server:
            server.execute(
                SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(target))
            )
            create = SQL("CREATE DATABASE {} TEMPLATE {}")
            server.execute(create.format(Identifier(target), Identifier(source)))
            allow(server, source, True)

    def rename(self, name: str, new: str) -> None:
        """Takes a database away, with all that was ever written to it."""
        with self._taking(name) as server:
            alter = SQL("ALTER DATABASE {} RENAME TO {}")
            server.execute(alter.format(Identifier(name), Identifier(new)))
            allow(server, new, True)

    @contextmanager
    def _taking(self, name: str) -> Iterator[Any]:
        """Yields a connection to the server, while nobody is connected to a database of it."""
        with psycopg.connect(self.url, dbname="template1", autocommit=True) as server:
            allow(server, name, False)
            end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
            # One that was connecting before that is seen only afterwards.
            while server.execute(end, [name]).fetchall():
                pass
            yield server


def allow(server: Any, name: str, is_allowed: bool) -> None:
    """Lets others connect to a database, or nobody."""
    alter = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    server.execute(alter.format(Identifier(name), SQL(str(is_allowed))))


@pytest.fixture
def installation(
    django_db_setup: None, simulator: Simulator, tmp_path: Path
) -> Iterator[Installation]:
    with own_database(NAME, is_migrated=True) as url, ExitStack() as stack:
        found = Installation(url)
        file = tmp_path / "catalogue.json"
        file.write_text(json.dumps(describe_catalogue(simulator.base_url, BEHAVIOURS)))
        made = set_up(file, "1", DATABASE_URL=url)
        found.key, found.management_key = made["api_key"], made["management_key"]
        found.organization_id = made["organization_id"]
        found.services.append(stack.enter_context(serve(DATABASE_URL=url)))
        yield found
        with psycopg.connect(url, dbname="template1", autocommit=True) as server:
            server.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(COPY)))


def test_a_backup_restored_under_a_running_service_is_noticed_and_settled_again(
    installation: Installation,
) -> None:
    [served] = installation.services
    server = served.address
    assert installation.post(server, QUICK).status_code == 200
    wait_until(lambda: installation.rows()[-1][1] == "completed")
    installation.replace(COPY, NAME)

    for _ in range(3):
        assert installation.post(server, QUICK).status_code == 200
    wait_until(lambda: [row[1] for row in installation.rows()] == ["completed"] * 4)
    answers: list[requests.Response] = []
    stream = threading.Thread(
        target=lambda: answers.append(installation.post(server, SLOW, stream=True))
    )
    stream.start()
    wait_until(lambda: len(installation.rows()) == 5)
    before = [row for row in installation.rows() if row[1] == "completed"]
    assert len(before) == 4
    installation.replace(NAME, COPY)

    wait_until(lambda: installation.reason(server) == "history")
    refused = installation.post(server, QUICK)
    assert (refused.status_code, refused.json()) == (503, HistoryLost().body())
    assert refused.headers["Retry-After"] == "1"
    assert installation.manage_key(server, "POST").status_code == 503
    assert installation.manage_key(server, "GET").status_code == 200
    assert "manage.py accept_history" in served.log
    told = "SELECT count(*) FROM config_event WHERE kind = 'history.lost'"
    wait_until(lambda: installation.query(told) == [(1,)])
    # A worker that starts now remembers nothing, and reads it.
    with serve(DATABASE_URL=installation.url) as late:
        second = late.address
        assert installation.reason(second) == "history"
        assert installation.post(second, QUICK).status_code == 503
        # Its answer ends while nothing of it is stored.
        stream.join(60)
        assert [answer.status_code for answer in answers] == [200]
        assert len(installation.rows()) == 1

        [lost] = installation.manage("accept_history")["lost"]
        assert lost["since"] < lost["until"]
        assert installation.manage("accept_history") == {"lost": []}
        wait_until(lambda: installation.reason(server) is None)
        wait_until(lambda: installation.reason(second) is None)
        assert installation.post(second, QUICK).status_code == 200
    wait_until(lambda: all(row[1] == "completed" for row in installation.rows()))
    rows = installation.rows()
    assert set(before) < set(rows)
    *_, last, done = events_of(answers[0].text)
    assert done == "[DONE]"
    told = last["usage"]
    assert [(row[3], row[4]) for row in rows if row[2] == SLOW] == [
        (told["prompt_tokens"], told["completion_tokens"])
    ]
    assert len(rows) == 6
    paid = sum(row[5] for row in rows)
    assert installation.balance() == [(10**9, paid, 0)]
    assert installation.manage("verify_ledger") == {"differences": []}


def test_history_that_comes_back_needs_no_operator(installation: Installation) -> None:
    [served] = installation.services
    server = served.address
    installation.replace(COPY, NAME)
    assert installation.post(server, QUICK).status_code == 200
    wait_until(lambda: [row[1] for row in installation.rows()] == ["completed"])
    rows = installation.rows()
    # No heartbeat may reach it after it was copied.
    installation.rename(NAME, ASIDE)
    installation.replace(NAME, COPY)
    wait_until(lambda: installation.reason(server) == "history")
    assert installation.post(server, QUICK).status_code == 503
    told = "SELECT id, worker, since, until FROM inference_historyloss"
    wait_until(lambda: installation.query(told))
    [loss] = installation.query(told)
    # A loss may be told while the rows come back.
    with psycopg.connect(installation.url, dbname=ASIDE, autocommit=True) as good:
        good.execute(
            "INSERT INTO inference_historyloss (id, worker, since, until) VALUES (%s, %s, %s, %s)",
            loss,
        )
    installation.replace(NAME, ASIDE)
    wait_until(lambda: installation.reason(server) is None)
    assert installation.rows() == rows
    assert installation.post(server, QUICK).status_code == 200
    assert installation.manage("accept_history") == {"lost": []}
    assert installation.manage("verify_ledger") == {"differences": []}
    with psycopg.connect(installation.url, dbname="template1", autocommit=True) as other:
        other.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(ASIDE)))


@pytest.fixture(scope="module", autouse=True)
def _nothing_lost(_running_server: str) -> Iterator[None]:
    """Waits until the service in this process knows of no loss: it refuses requests meanwhile."""
    yield
    # Its next heartbeat finds none.
    readiness.is_history_lost = True
    wait_until(lambda: not readiness.is_history_lost)


def make_history(
    memory: CommitMemory | None = None, find_running: Callable[[], list[str]] = list
) -> History:
    """Returns a history that tells a loss to nobody else."""
    return History(memory or CommitMemory(), find_running, Readiness())


@pytest.fixture
def followed(transactional_db: None) -> Callable[..., History]:
    """Returns a function that lets a history follow heartbeats, with changes of their rows."""

    def follow(history: History, *changes: dict[str, Any]) -> History:
        async def run() -> None:
            connection = DataPlaneConnection()
            for change in changes:
                parameters = [GAP_SECONDS, *history.parameters()]
                [row] = await connection.execute(BEAT, parameters)
                await history.follow(Beat(*row)._replace(**change), connection)
            await connection.close()

        asyncio.run(run())
        return history

    return follow


def test_each_heartbeat_of_a_worker_is_higher(followed: Callable[..., History]) -> None:
    history = followed(make_history(), {}, {}, {})
    assert WorkerBeat.objects.get(pk=history.worker).number == 3
    assert not history.readiness.is_history_lost


def test_a_heartbeat_that_arrives_late_is_no_loss(followed: Callable[..., History]) -> None:
    """A server that hung may run one whose worker has sent the next on another connection."""
    history = followed(make_history(), {}, {}, {})

    async def beat_late() -> None:
        connection = DataPlaneConnection()
        [row] = await connection.execute(BEAT, [GAP_SECONDS, history.worker, 2, 1, None])
        assert Beat(*row).written is None
        await connection.close()

    asyncio.run(beat_late())
    assert WorkerBeat.objects.get(pk=history.worker).number == 3
    followed(history, {})
    assert not history.readiness.is_history_lost


def test_a_server_that_takes_no_writes_cannot_record_a_loss(transactional_db: None) -> None:
    """It was demoted after the heartbeat; the next one tries again."""

    def record() -> None:
        with django_connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        HistoryLoss.objects.record(HistoryLoss(worker="w", since=clock.now(), until=clock.now()))

    with pytest.raises(Unavailable):
        asyncio.run(run_in_thread(record))
    assert not HistoryLoss.objects.exists()


@pytest.mark.parametrize("loss", ["gone", "older", "timeline"])
def test_a_lost_heartbeat_is_noticed_by_the_next_one(
    followed: Callable[..., History], loss: str
) -> None:
    history = followed(make_history(), {"timeline": 7}, {"timeline": 7})
    row = WorkerBeat.objects.filter(pk=history.worker)
    if loss == "gone":
        row.delete()
    elif loss == "older":
        row.update(number=1)
    followed(history, {"timeline": 6 if loss == "timeline" else 7})
    found = HistoryLoss.objects.get()
    assert (found.worker, found.accepted_at) == (history.worker, None)
    assert found.since <= found.until
    assert history.readiness.is_history_lost
    assert not may_believe_silence()
    # Its own heartbeats say nothing more, until somebody has accepted the loss.
    followed(history, {"timeline": 6 if loss == "timeline" else 7, "number": 0})
    assert history.readiness.is_history_lost
    assert list(HistoryLoss.objects.values_list("pk", flat=True)) == [found.pk]
    HistoryLoss.objects.accept()
    followed(history, {}, {})
    assert not history.readiness.is_history_lost
    assert not HistoryLoss.objects.filter(accepted_at=None).exists()


def test_the_record_of_a_loss_is_made_again_when_it_is_lost_itself(
    followed: Callable[..., History],
) -> None:
    history = followed(make_history(), {})
    WorkerBeat.objects.filter(pk=history.worker).delete()
    followed(history, {})
    found = HistoryLoss.objects.get()
    HistoryLoss.objects.all().delete()
    followed(history, {})
    assert HistoryLoss.objects.get().pk == found.pk


def test_a_loss_that_another_worker_noticed_stops_this_one(
    followed: Callable[..., History],
) -> None:
    history, other = make_history(), make_history()
    followed(other, {})
    WorkerBeat.objects.filter(pk=other.worker).delete()
    followed(other, {})
    followed(history, {})
    assert history.readiness.is_history_lost
    HistoryLoss.objects.accept()
    followed(history, {})
    assert not history.readiness.is_history_lost


def test_the_console_says_what_was_lost_since_when(
    followed: Callable[..., History], operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_alerts() -> list[str]:
        alerts = operator.get("/admin/").context["inbox"].alerts
        return [alert.text for alert in alerts if "lost" in alert.text]

    history = followed(make_history(), {})
    monkeypatch.setattr(collector, "readiness", history.readiness)
    assert find_alerts() == []
    WorkerBeat.objects.filter(pk=history.worker).delete()
    followed(history, {})
    loss = HistoryLoss.objects.get()
    [text] = find_alerts()
    assert text == (
        f"The database lost what the worker {history.worker} had stored since "
        f"{loss.since:%Y-%m-%d %H:%M:%S} UTC, until {loss.until:%H:%M:%S}: nothing is admitted. "
        "Bring the right database back, or run `manage.py accept_history`."
    )
    HistoryLoss.objects.accept()
    followed(history, {}, {})
    assert find_alerts() == []


def test_each_new_connection_asks_for_a_heartbeat(transactional_db: None) -> None:
    """It may lead to another server, and a second is long there."""

    async def run() -> list[bool]:
        pool, told = find_pool(), list[bool]()
        pool.on_open = lambda: told.append(True)
        store = DataPlaneConnection()
        for _ in range(2):
            await store.execute(FIND_UNSTORED, [[], [], "", ""])
        assert told == [True]
        pool.drop_idle()
        await store.execute(FIND_UNSTORED, [[], [], "", ""])
        await store.close()
        return told

    assert asyncio.run(run()) == [True, True]


def note(memory: CommitMemory, kind: Committed, rows: str) -> None:
    memory.note((time.monotonic(), kind, rows))


def make_rows(tenant: Tenant, generation_id: str, hold: int) -> str:
    """Returns the rows of an admission, as a worker sends and remembers them."""
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    held, used = (tenant.organization.accounts.get(kind=kind).pk for kind in ("credits", "usage"))
    row = {
        "id": generation_id, "organization_id": str(tenant.organization.pk),
        "workspace_id": str(tenant.workspace.pk),
        "api_key_id": str(tenant.organization.api_keys.get(is_management=False).pk),
        "region": "global", "operation": "chat/completions", "streamed": False,
        "model": endpoint.model.slug, "model_endpoint_id": str(endpoint.pk),
        "provider_name": endpoint.provider.name, "price_id": endpoint.price.pk, "is_byok": False,
        "request_id": "r", "hold_nano": hold, "upstream_hold_nano": 0, "held_tokens": 9,
        "images": 0, "credits_id": held, "usage_id": used,
    }  # fmt: skip
    return json.dumps([row])


def make_end(generation_id: str, cost: int) -> str:
    row = {
        "id": generation_id, "status": "completed", "prompt_tokens": 3, "completion_tokens": 4,
        "is_estimated": False, "cost_nano": cost, "upstream_cost_nano": cost, "attempts": [],
        "excess_nano": 0, "upstream_excess_nano": 0,
    }  # fmt: skip
    return json.dumps([row])


def test_less_than_a_heartbeat_is_missed_when_the_server_was_started(
    followed: Callable[..., History],
) -> None:
    """An asynchronous standby may lack what came after the last heartbeat that it got."""
    tenant = factories.make_tenant()
    memory = CommitMemory()
    history = followed(make_history(memory), {}, {})
    note(memory, Committed.ADMITTED, make_rows(tenant, "gen-1780000000-aa", 500))
    note(memory, Committed.SETTLED, make_end("gen-1780000000-aa", 300))
    followed(history, {})
    assert not history.readiness.is_history_lost
    followed(history, {"server": "1/2/3"})
    assert history.readiness.is_history_lost
    HistoryLoss.objects.accept()
    followed(history, *[{"server": "1/2/3"}] * 3, {"server": "1/2/4"})
    assert not history.readiness.is_history_lost
    generation = Generation.objects.get()
    stored = (generation.status, generation.cost_nano, generation.hold_nano)
    assert stored == ("completed", 300, 300)
    assert generation.created_at.timestamp() == 1780000000
    assert (generation.prompt_tokens, generation.completion_tokens) == (3, 4)
    assert [
        (each.status, each.amount_nano, each.posted_nano)
        for each in Transfer.objects.filter(kind="usage")
    ] == [("posted", 300, 300)]
    assert differences() == []


def test_what_the_balance_does_not_cover_any_more_goes_under_review(
    followed: Callable[..., History],
) -> None:
    """A grant may be lost too: nothing is overdrawn, and nothing is forgotten."""
    tenant = factories.make_tenant(credits_usd=0)
    ledger.grant(tenant.organization.pk, 400, actor="test")
    memory = CommitMemory()
    history = followed(make_history(memory), {})
    for number in (1, 2):
        key = f"gen-178000000{number}-aa"
        note(memory, Committed.ADMITTED, make_rows(tenant, key, 500))
        note(memory, Committed.SETTLED, make_end(key, 300))
    followed(history, {"server": "1/2/3"})
    HistoryLoss.objects.accept()
    followed(history, {"server": "1/2/3"})
    assert list(Generation.objects.order_by("pk").values_list("cost_nano", flat=True)) == [300, 0]
    excess = Excess.objects.get()
    assert (excess.reference, excess.amount_nano) == ("gen-1780000002-aa", 300)
    assert excess.status == "under_review"
    assert differences() == []


def test_a_running_generation_is_admitted_again_and_settles_later(
    followed: Callable[..., History],
) -> None:
    tenant = factories.make_tenant()
    memory = CommitMemory()
    name = "gen-1780000000-aa"
    history = followed(make_history(memory, lambda: [name]), {})
    note(memory, Committed.ADMITTED, make_rows(tenant, name, 500))
    # It was moved to another candidate before it was lost.
    other = factories.make_endpoint(
        factories.make_model("acme/other"), factories.make_provider("other")
    )
    moved = {"id": name, "model_endpoint_id": str(other.pk), "price_id": other.price.pk,
             "provider_name": other.provider.name, "model": "acme/other"}  # fmt: skip
    note(memory, Committed.MOVED, json.dumps([moved]))
    followed(history, {"server": "1/2/3"})
    HistoryLoss.objects.accept()
    followed(history, {"server": "1/2/3"})
    generation = Generation.objects.get()
    assert (generation.status, generation.hold_nano) == ("pending", 500)
    assert (generation.model_endpoint_id, generation.model) == (other.pk, "acme/other")
    assert Journal.objects.get().pk == name
    assert differences() == []


def test_what_ends_while_it_is_stored_again_is_charged(followed: Callable[..., History]) -> None:
    tenant = factories.make_tenant()
    memory = CommitMemory()
    name, searches = "gen-1780000000-aa", iter(range(9))

    def find_running() -> list[str]:
        # The fourth search is the one after the generation was stored again.
        if (search := next(searches)) == 3:
            note(memory, Committed.SETTLED, make_end(name, 300))
        return [name] if search < 3 else []

    history = followed(make_history(memory, find_running), {})
    note(memory, Committed.ADMITTED, make_rows(tenant, name, 500))
    followed(history, {"server": "1/2/3"})
    HistoryLoss.objects.accept()
    followed(history, {"server": "1/2/3"})
    assert Generation.objects.get().status == "pending"
    followed(history, {"server": "1/2/3"}, {"server": "1/2/3"})
    generation = Generation.objects.get()
    assert (generation.status, generation.cost_nano) == ("completed", 300)
    assert not history.readiness.is_history_lost
    assert differences() == []


def test_a_generation_whose_price_is_gone_is_named(
    followed: Callable[..., History], caplog: pytest.LogCaptureFixture
) -> None:
    tenant = factories.make_tenant()
    memory = CommitMemory()
    name = "gen-1780000000-aa"
    history = followed(make_history(memory), {})
    [row] = json.loads(make_rows(tenant, name, 500))
    note(memory, Committed.ADMITTED, json.dumps([{**row, "price_id": 2**40}]))
    note(memory, Committed.SETTLED, make_end(name, 300))
    followed(history, {"server": "1/2/3"})
    HistoryLoss.objects.accept()
    followed(history, *[{"server": "1/2/3"}] * 3, {"server": "1/2/4"})
    assert not Generation.objects.exists()
    assert f"1 lost for good ({name})" in caplog.text
    # It is told once.
    assert not history.readiness.is_history_lost


def test_the_memory_is_bounded_until_history_is_lost() -> None:
    memory = CommitMemory()
    text = json.dumps([{"id": "x", "rest": "y" * (KEPT_BYTES // 4)}])
    for number in range(5):
        note(memory, Committed.SETTLED, text.replace('"x"', f'"{number}"'))
    memory.forget_old()
    assert list(memory.read(Committed.SETTLED)) == ["2", "3", "4"]
    memory.is_kept = True
    note(memory, Committed.SETTLED, text.replace('"x"', '"5"'))
    memory.forget_old()
    assert list(memory.read(Committed.SETTLED)) == ["2", "3", "4", "5"]
    memory.is_kept = False
    memory.note((time.monotonic() - KEPT_SECONDS - 1, Committed.MOVED, "[]"))
    memory.forget_old()
    assert list(memory.read(Committed.SETTLED)) == ["3", "4", "5"]
    # A character may take four bytes.
    note(memory, Committed.SETTLED, text.replace('"x"', '"😀"'))
    memory.forget_old()
    assert memory.read(Committed.SETTLED) == {}
