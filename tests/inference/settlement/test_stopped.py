"""PostgreSQL stops under load: streams continue, new requests get 503, settlement catches up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest
import requests

from config.local import postgres
from tests.support.database.migrated import own_server
from tests.support.inference.site import CHAT, content_of, events_of
from tests.support.machine.waiting import wait_until
from tests.support.operators.catalogue_files import describe_catalogue
from tests.support.processes import MANAGE, Served, manage, set_up, wait_until_started
from tests.support.simulator.server import Simulator

# Words of a stream that ends during the outage, and of one that ends after it.
SHORT, LONG = 8, 20
# A stream has two words more than its prompt, and some events without a word.
SHORT_EVENTS = SHORT + 8
# Running requests of which a heartbeat has arrived, and those that are not settled.
JOURNALLED: Final = (
    "inference_journal JOIN inference_generation ON id = generation_id WHERE beat_at > created_at"
)
PENDING: Final = "inference_generation WHERE status = 'pending'"
BEHAVIOURS = {"acme/slow": "sim-gated", "acme/quick": "sim-echo"}


@dataclass
class Standing:
    """A service with its own database server, which a test may stop."""

    data_dir: Path
    url: str
    address: str
    supervisor: int
    api_key: str
    upstream: Simulator

    def ask(self, words: int, *, stream: bool, model: str = "acme/slow") -> requests.Response:
        content = " ".join(["word"] * words)
        return requests.post(
            f"{self.address}{CHAT}",
            json={
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "stream": stream,
                "max_tokens": 300,
            },
            headers={"Authorization": f"Bearer {self.api_key}"},
            timeout=60,
        )


@pytest.fixture
def standing(simulator: Simulator, tmp_path: Path) -> Iterator[Standing]:
    # A release that an earlier test did not use would let a stream of this one pass.
    simulator.clear()
    with own_server() as (data_dir, url):
        file = tmp_path / "catalogue.json"
        file.write_text(json.dumps(describe_catalogue(simulator.base_url, BEHAVIOURS)))
        made = set_up(file, "1", DATABASE_URL=url)
        log = tmp_path / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, str(MANAGE), "serve", "--port", "0", "--workers", "2"],
                env={**os.environ, "DATABASE_URL": url},
                stderr=output,
                text=True,
            )
        try:
            served = Served("", process, log)
            wait_until_started(served, 2, has_metrics=False)
            yield Standing(data_dir, url, served.address, process.pid, made["api_key"], simulator)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def workers_of(supervisor: int) -> list[int]:
    """Returns the process ids of a supervisor's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            if parent == supervisor and b"serve" in path.with_name("cmdline").read_bytes():
                found.append(int(path.parent.name))
    return found


def test_streams_survive_a_stopped_database_and_settle_after_it_returns(standing: Standing) -> None:
    workers = sorted(workers_of(standing.supervisor))
    assert len(workers) == 2
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(20))

        @stack.callback
        def release_all() -> None:
            standing.upstream.release(1000)

        streams = [
            pool.submit(standing.ask, words, stream=True) for words in (SHORT, LONG) for _ in "four"
        ]
        with psycopg.connect(standing.url) as watcher:

            def are_journalled() -> bool:
                ended = [stream.result() for stream in streams if stream.done()]
                assert not ended, [(answer.status_code, answer.text) for answer in ended]
                return count(watcher, JOURNALLED) == len(streams)

            wait_until(are_journalled)
        postgres.stop(standing.data_dir)
        # The streams get their events in turn, so the long ones are not over.
        standing.upstream.release(len(streams) * SHORT_EVENTS)
        for is_stream in [True, False] * 10:
            answer = standing.ask(1, stream=is_stream)
            assert answer.status_code == 503
            assert answer.json() == {
                "error": {
                    "code": 503,
                    "message": answer.json()["error"]["message"],
                    "metadata": {"error_type": "server"},
                }
            }
        wait_until(lambda: all(stream.done() for stream in streams[:4]))
        assert not any(stream.done() for stream in streams[4:])
        postgres.ensure_running(standing.data_dir, durable=False)
        with psycopg.connect(standing.url) as outage:
            # Ages the heartbeats as if the outage had outlasted the lease.
            outage.execute("UPDATE inference_journal SET beat_at = beat_at - interval '2 minutes'")
        assert manage("work", "--once", DATABASE_URL=standing.url).returncode == 0
        release_all()
        for stream, words in zip(streams, [SHORT] * 4 + [LONG] * 4, strict=True):
            events = events_of(stream.result().text)
            text = "You said: " + " ".join(["word"] * words)
            events = [event for event in events if isinstance(event, dict)]
            assert content_of(events) == text

    assert sorted(workers_of(standing.supervisor)) == workers
    assert standing.ask(1, stream=False, model="acme/quick").status_code == 200
    with psycopg.connect(standing.url, autocommit=True) as watcher:
        wait_until(lambda: not count(watcher, PENDING), "not everything is settled")
        found = watcher.execute(
            "SELECT status, prompt_tokens, completion_tokens, cost_nano, count(*) "
            "FROM inference_generation GROUP BY 1, 2, 3, 4 ORDER BY 2"
        ).fetchall()
    # A prompt token costs 1,000 nano-USD, a completion token 2,000.
    assert found == [
        ("completed", 1, 3, 7_000, 1),
        ("completed", SHORT, SHORT + 2, 1000 * SHORT + 2000 * (SHORT + 2), 4),
        ("completed", LONG, LONG + 2, 1000 * LONG + 2000 * (LONG + 2), 4),
    ]
    assert manage("verify_ledger", DATABASE_URL=standing.url).returncode == 0


def count(watcher: psycopg.Connection[Any], rows: LiteralString) -> int:
    row = watcher.execute(f"SELECT count(*) FROM {rows}").fetchone()
    watcher.rollback()
    assert row is not None
    return int(row[0])
