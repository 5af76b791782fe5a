"""``serve`` and ``work`` as real processes: startup checks, signals and exit codes."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import requests
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from accounts.models import Organization
from config.database.replaced import REPLACED
from config.egress.rules import tls_context
from config.management.commands.serve import address_of, listen, load_what_workers_share
from inference.admission.copies.organizations import _prepare, load_organizations
from inference.models import Generation, Uptime
from tests.support import factories
from tests.support.bulkheads.counters import authorization, read_counter
from tests.support.inference.site import Site, content_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.processes import manage, serve


def test_serve_refuses_an_unmigrated_database(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE app = 'inference' RETURNING app, name, applied"
        )
        rows = cursor.fetchall()
    try:
        with pytest.raises(CommandError) as refusal:
            call_command("serve", port=0)
    finally:
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, %s)", rows
            )
    assert refusal.value.returncode == 1
    lacking = {name for _, name, _ in rows}.difference(REPLACED["inference"])
    assert str(refusal.value) == (
        f"The database lacks {len(lacking)} migrations (inference.0001_first_release, …); "
        "run: python3 manage.py migrate"
    )


def test_workers_share_certificates_and_statements(db: None, settings: LazySettings) -> None:
    """Each would make its own after the fork otherwise, and write to most pages for it."""
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, ca_bundle=None)
    tls_context.cache_clear()
    _prepare.cache_clear()
    load_what_workers_share()
    tls_context(None)
    load_organizations([Organization.objects.create(name="Acme", slug="acme").pk])
    # Hits and misses.
    assert tls_context.cache_info()[:2] == _prepare.cache_info()[:2] == (1, 1)


def test_serve_refuses_a_taken_port(transactional_db: None) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = manage("serve", "--port", str(port))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[1] == (
        f"CommandError: Cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Choose another port with --port, or stop what uses this one."
    )


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_service_on_any_port_says_which(host: str, shown: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        assert port != 0
        assert address_of(listener) == f"http://{shown}:{port}"


def test_serve_drains_its_streams_before_it_ends(site: Site) -> None:
    site.publish("sim-gated")
    with serve() as served:
        site.server = served.address
        answer = site.post(site.chat_body("one two", stream=True), stream=True)
        chunks = answer.iter_content(None)
        first = next(chunks)
        stopper = threading.Thread(target=lambda: stopped.append(served.stop()))
        stopped: list[tuple[int, str]] = []
        stopper.start()
        time.sleep(0.3)
        assert stopper.is_alive()
        site.upstream.release(20)
        events = events_of((first + b"".join(chunks)).decode())
        assert content_of(events) == "You said: one two"
        assert events[-1] == "[DONE]"
        answer.close()
        stopper.join(60)
        assert stopped[0][0] == 0, stopped[0][1]
        assert "Traceback" not in stopped[0][1]
    assert Generation.objects.get().status == "completed"


def test_two_workers_stream_without_buffering_and_settle_every_generation(site: Site) -> None:
    site.publish("sim-gated")
    with serve("--workers", "2") as served:
        site.server = served.address

        def stream(word: str) -> str:
            answer = site.post(site.chat_body(word, stream=True), stream=True)
            chunks = answer.iter_content(None)
            text = next(chunks).decode()
            assert content_of(events_of(text)) == ""
            ready.wait(60)
            text += b"".join(chunks).decode()
            return content_of(events_of(text))

        ready = threading.Barrier(7)
        with ThreadPoolExecutor(6) as pool:
            words = [f"word-{number}" for number in range(6)]
            texts = pool.map(stream, words)
            # All six clients have the first event; the upstream still holds the second.
            ready.wait(60)
            site.upstream.release(100)
            assert list(texts) == [f"You said: {word}" for word in words]

        site.eventually(lambda: Generation.objects.filter(status="completed").count() == 6)
        assert requests.get(f"{served.address}/healthz", timeout=60).json() == {"status": "ok"}
        assert requests.get(f"{served.address}/readyz", timeout=60).json() == {"status": "ok"}

        def count_completed() -> float:
            return read_counter(served.address, "causeway_generations_total", status="completed")

        site.eventually(lambda: count_completed() == 6)
        metrics = requests.get(f"{served.address}/metrics", headers=authorization(), timeout=60)
        assert metrics.headers["Content-Type"].startswith("text/plain")
        code, errors = served.stop()
        assert code == 0, errors
        assert "Traceback" not in errors


def test_work_once_ends_generations_of_a_dead_worker(site: Site) -> None:
    long_ago = timezone.now() - timedelta(seconds=90)
    row = factories.make_generation(site.tenant, status="pending", created_at=long_ago)
    # Heartbeats have reached the database for two minutes.
    Uptime.objects.update_or_create(
        pk=1, defaults={"since": long_ago - timedelta(minutes=1), "beat_at": timezone.now()}
    )
    call_command("work", once=True)
    row.refresh_from_db()
    assert (row.status, row.error_type) == ("failed", "abandoned")
    assert_in_order()
