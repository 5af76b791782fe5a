"""Who may read the metrics, and where they are served."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.db import connections
from django.test import Client

from config.management.commands.serve import bind_metrics
from config.server.metrics import MetricsListener, render_metrics
from tests.support.bulkheads.counters import authorization
from tests.support.machine.ports import reserved_port
from tests.support.processes import serve
from tests.support.settings import read_settings

TOKEN = "a-token-of-the-metrics"


def get(port: int, path: str = "/metrics", **headers: str) -> requests.Response:
    return requests.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=60)


@pytest.mark.parametrize(
    "offered", [None, "Bearer", "Bearer wrong", f"bearer {TOKEN}", TOKEN, f"Bearer {TOKEN}é"]
)
def test_metrics_refuse_a_reader_without_the_token(
    db: None, settings: object, offered: str | None
) -> None:
    settings.METRICS_TOKEN = TOKEN
    answer = Client().get("/metrics", headers={"Authorization": offered} if offered else {})
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["message"] == "Send 'Authorization: Bearer <METRICS_TOKEN>'."


def test_metrics_answer_a_reader_with_the_token(db: None, settings: object) -> None:
    settings.METRICS_TOKEN = TOKEN
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert b"causeway_chain_halted" in answer.content


def test_only_the_embedded_mode_shows_metrics_without_a_token(
    db: None, settings: LazySettings
) -> None:
    settings.METRICS_TOKEN = ""
    refused = Client().get("/metrics", headers={"Authorization": "Bearer "})
    assert refused.status_code == 401
    assert refused.json()["error"]["message"] == "The metrics need a token: set METRICS_TOKEN."
    settings.EMBEDDED = True
    assert Client().get("/metrics").status_code == 200


def test_a_port_of_its_own_serves_the_metrics_alone(
    transactional_db: None, settings: object
) -> None:
    settings.METRICS_TOKEN = TOKEN
    listener = MetricsListener("127.0.0.1", 0)
    port = listener.server_port
    listener.start()
    try:
        assert get(port).status_code == 401
        answer = get(port, Authorization=f"Bearer {TOKEN}")
        assert (answer.status_code, answer.headers["Content-Type"][:10]) == (200, "text/plain")
        assert "causeway_chain_halted" in answer.text
        assert get(port, "/healthz").json()["error"]["code"] == 404
        refused = requests.post(f"http://127.0.0.1:{port}/metrics", timeout=60)
        assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD")
        with pytest.raises(CommandError) as refusal:
            settings.METRICS_PORT = port
            bind_metrics("127.0.0.1")
        assert str(refusal.value) == (
            f"Cannot listen on 127.0.0.1:{port} (METRICS_PORT): Address already in use. "
            "Each serve and each work on one machine needs a METRICS_PORT of its own."
        )
    finally:
        listener.shutdown()
        listener.server_close()


def test_the_main_port_has_no_metrics_when_they_have_their_own(transactional_db: None) -> None:
    with reserved_port() as port, serve("--workers", "2", METRICS_PORT=str(port)) as served:
        missing = requests.get(f"{served.address}/metrics", timeout=60)
        assert missing.json()["error"]["code"] == missing.status_code == 404
        assert requests.get(f"{served.address}/api/v1/models", timeout=60).status_code == 200
        counted = get(port, **authorization())
        assert counted.status_code == 200
        assert "causeway_chain_halted" in counted.text


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(
        ImproperlyConfigured, match=r"^METRICS_PORT must be a port from 1 to 65535\."
    ):
        read_settings(METRICS_PORT="70000")


def test_gauges_of_ended_workers_are_deleted(
    db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for process in (ended.pid, os.getpid()):
        (tmp_path / f"gauge_livesum_{process}.db").write_bytes(bytes(8))
    render_metrics()
    assert [file.name for file in tmp_path.iterdir()] == [f"gauge_livesum_{os.getpid()}.db"]


def test_a_worker_that_was_killed_at_its_start_breaks_no_page(
    db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    (tmp_path / "counter_1.db").touch()
    assert b"causeway_chain_halted" in render_metrics()


@pytest.mark.parametrize(("room", "is_told"), [(4_096, True), (65_536, True), (1 << 20, False)])
def test_a_worker_counts_in_memory_where_its_file_gets_no_room(
    tmp_path: Path, room: int, *, is_told: bool
) -> None:
    """A file starts with 64 KiB and doubles; the limit of the system refuses more than its room."""
    program = (
        "import resource, sys\n"
        "sys.dont_write_bytecode = True\n"
        "import config.server.counter_files\n"
        "from prometheus_client import Counter\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "counter = Counter('asked', 'text', ['by'])\n"
        "for number in range(1000): counter.labels(f'{number:0100}').inc()\n"
        "samples = [each for family in counter.collect() for each in family.samples]\n"
        "print(sum(each.value for each in samples if each.name == 'asked_total'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.stdout == "1000.0\n", result.stderr
    text = f"figures of this worker are missing in the metrics, because {tmp_path} cannot be"
    assert result.stderr.count(text) == is_told


def test_a_silent_database_is_waited_for_once(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters, which tell of it, come before Prometheus gives up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        port = str(silent.getsockname()[1])
        away = {**connections.settings["default"], "HOST": "127.0.0.1", "PORT": port}
        away["OPTIONS"] = {"connect_timeout": 2}
        monkeypatch.setitem(connections.settings, "default", away)
        # A new thread has no connection yet.
        with ThreadPoolExecutor(1) as threads:
            rendered = threads.submit(render_metrics).result()
        tried, _ = silent.accept()
        tried.close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert b"causeway_database_failures_total" in rendered
    assert b"causeway_chain_halted" not in rendered


def test_the_next_start_removes_what_a_killed_service_left(
    transactional_db: None, tmp_path: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """A service that runs keeps its own; a folder without a lock is somebody else's."""
    foreign = tmp_path / "causeway-metrics-other"
    foreign.mkdir()

    def folders() -> set[Path]:
        return set(tmp_path.glob("*causeway-metrics-*")) - {foreign}

    with serve("--workers", "2", TMPDIR=str(tmp_path)) as first:
        [left] = folders()
        first.process.kill()
        first.process.wait()
    # Its workers end with their parent.
    eventually(lambda: not is_locked(left))
    with serve("--workers", "2", TMPDIR=str(tmp_path)) as second:
        [own] = folders()
        assert own != left
        with serve("--workers", "2", TMPDIR=str(tmp_path)):
            assert own in folders()
            assert len(folders()) == 2
        assert folders() == {own}
        assert requests.get(f"{second.address}/healthz", timeout=60).status_code == 200
    assert folders() == set()
    assert foreign.exists()


def is_locked(folder: Path) -> bool:
    with (folder / "in-use").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
