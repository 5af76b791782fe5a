"""PostgreSQL stops under load: streams continue, new requests get 503, settlement catches up."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from config.local import postgres
from tests.support.inference.site import CHAT, content_of, events_of
from tests.support.processes import MANAGE, free_port
from tests.support.simulator.server import Simulator

pytestmark = pytest.mark.slow

AWAY_SECONDS = 20
# Words of a stream that ends during the outage, and of one that ends after it.
SHORT, LONG = 8, 60
EVERY_SECONDS = 0.5


@dataclass
class Standing:
    """A service with its own database server, which a test may stop."""

    data_dir: Path
    environment: dict[str, str]
    address: str
    supervisor: int
    api_key: str
    organization_id: str

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
            timeout=90,
        )


def run(environment: dict[str, str], *arguments: str, given: str | None = None) -> Any:
    """Runs a command; returns its parsed output if ``--json`` is among the arguments."""
    result = subprocess.run(
        [sys.executable, str(MANAGE), *arguments],
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, (arguments, result.stdout, result.stderr)
    return json.loads(result.stdout) if "--json" in arguments else None


def catalogue(base_url: str) -> dict[str, Any]:
    models = {"acme/slow": f"sim-slow:0,{EVERY_SECONDS}", "acme/quick": "sim-echo"}
    return {
        "providers": [{
            "slug": "acme", "name": "Acme", "dialect": "openai", "base_url": base_url,
            "data_policy": {"training": False, "retains_prompts": False}, "datacenters": ["US"],
            "headquarters": "US", "privacy_policy_url": None, "terms_of_service_url": None,
            "status_page_url": None,
        }],
        "models": [{
            "id": name, "canonical_slug": f"{name}-1", "name": name, "created": 1780272000,
            "description": "", "context_length": 1000,
            "architecture": {
                "input_modalities": ["text"], "output_modalities": ["text"],
                "modality": "text->text", "tokenizer": "Other", "instruct_type": None,
            },
            "supported_parameters": ["max_tokens"], "default_parameters": None,
            "expiration_date": None, "knowledge_cutoff": None, "supported_voices": None,
            "per_request_limits": None,
        } for name in models],
        "endpoints": [{
            "model": f"{name}-1", "provider": "acme", "upstream_model_id": behaviour,
            "pricing": {"prompt": "0.000001", "completion": "0.000002", "image": "0",
                        "request": "0"},
            "context_length": 1000, "max_completion_tokens": 1000, "quantization": "fp8",
            "is_moderated": False, "region": "us", "zdr": True,
            "supported_parameters": ["max_tokens"],
        } for name, behaviour in models.items()],
    }  # fmt: skip


@pytest.fixture
def standing(simulator: Simulator, tmp_path: Path) -> Iterator[Standing]:
    # PostgreSQL's account cannot enter pytest's own directory.
    data_dir = Path(tempfile.mkdtemp(prefix="causeway-"))
    data_dir.chmod(0o711)
    environment = {**os.environ, "DATABASE_URL": postgres.ensure_running(data_dir, durable=False)}
    # Deletes the files when the last process that uses them ends.
    (data_dir / "postgres" / "throwaway").touch()
    port = free_port()
    try:
        run(environment, "migrate")
        (tmp_path / "catalogue.json").write_text(json.dumps(catalogue(simulator.base_url)))
        run(environment, "import_catalog", str(tmp_path / "catalogue.json"))
        run(environment, "set_provider_credential", "acme", given=secrets.token_urlsafe(20))
        made = run(environment, "create_organization", "Acme", "--json")
        run(environment, "grant_credits", made["organization_id"], "1")
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "serve", "--port", str(port), "--workers", "2"],
            env=environment,
        )
        served = Standing(
            data_dir, environment, f"http://127.0.0.1:{port}", process.pid, made["api_key"],
            made["organization_id"],
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not answers(served):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    finally:
        postgres.stop(data_dir)


def workers_of(supervisor: int) -> list[int]:
    """Returns the process ids of a supervisor's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            if parent == supervisor and b"serve" in path.with_name("cmdline").read_bytes():
                found.append(int(path.parent.name))
    return found


def answers(served: Standing) -> bool:
    try:
        return requests.get(f"{served.address}/readyz", timeout=60).status_code == 200
    except requests.RequestException:
        return False


def test_streams_survive_a_stopped_database_and_settle_after_it_returns(standing: Standing) -> None:
    workers = sorted(workers_of(standing.supervisor))
    assert len(workers) == 2
    with ThreadPoolExecutor(20) as pool:
        streams = [
            pool.submit(standing.ask, words, stream=True) for words in (SHORT, LONG) for _ in "four"
        ]
        with psycopg.connect(standing.environment["DATABASE_URL"]) as watcher:
            deadline = time.monotonic() + 60
            while pending(watcher) < len(streams):
                assert time.monotonic() < deadline, "the streams do not begin"
                time.sleep(0.05)
        time.sleep(1.5)
        postgres.stop(standing.data_dir)
        stopped_at = time.monotonic()
        statuses: Counter[int] = Counter()
        slowest = 0.0
        while time.monotonic() < stopped_at + AWAY_SECONDS:
            asked_at = time.monotonic()
            for answer in [standing.ask(1, stream=True), standing.ask(1, stream=False)]:
                statuses[answer.status_code] += 1
                assert answer.json() == {
                    "error": {
                        "code": 503,
                        "message": answer.json()["error"]["message"],
                        "metadata": {"error_type": "server"},
                    }
                }
            slowest = max(slowest, time.monotonic() - asked_at)
            time.sleep(0.2)
        assert set(statuses) == {503}
        assert slowest < 20
        assert all(stream.done() for stream in streams[:4])
        assert not any(stream.done() for stream in streams[4:])
        postgres.ensure_running(standing.data_dir, durable=False)
        with psycopg.connect(standing.environment["DATABASE_URL"]) as outage:
            # Ages the heartbeats as if the outage had outlasted the lease.
            outage.execute("UPDATE inference_journal SET beat_at = beat_at - interval '2 minutes'")
        run(standing.environment, "work", "--once")
        for stream, words in zip(streams, [SHORT] * 4 + [LONG] * 4, strict=True):
            events = events_of(stream.result().text)
            text = "You said: " + " ".join(["word"] * words)
            events = [event for event in events if isinstance(event, dict)]
            assert content_of(events) == text

    assert sorted(workers_of(standing.supervisor)) == workers
    assert standing.ask(1, stream=False, model="acme/quick").status_code == 200
    with psycopg.connect(standing.environment["DATABASE_URL"], autocommit=True) as watcher:
        deadline = time.monotonic() + 60
        while pending(watcher):
            assert time.monotonic() < deadline, "not everything is settled"
            time.sleep(0.05)
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
    run(standing.environment, "verify_ledger")


def pending(watcher: psycopg.Connection[Any]) -> int:
    row = watcher.execute(
        "SELECT count(*) FROM inference_generation WHERE status = 'pending'"
    ).fetchone()
    watcher.rollback()
    assert row is not None
    return int(row[0])
