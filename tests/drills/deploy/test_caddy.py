"""A real Caddy, with our configuration, in front of a real `serve`."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from requests.adapters import HTTPAdapter

from config.audit.entries import AuditEntry
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.counters import read_metrics
from tests.support.deploy.caddy import CADDYFILE, PROGRAM, Caddy, run_caddy
from tests.support.inference.site import CHAT, Site, events_of
from tests.support.processes import Served, serve

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Caddy: apt-get install caddy")
GATES = 7


@pytest.fixture(scope="module")
def caddy(running_service: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caddy]:
    folder = tmp_path_factory.mktemp("caddy")
    with run_caddy(folder, running_service.address.removeprefix("http://")) as running:
        yield running


def ask(caddy: Caddy, method: str, path: str, **options: Any) -> requests.Response:
    options = {"verify": caddy.authority, "timeout": 30, "allow_redirects": False, **options}
    return requests.request(method, caddy.address + path, **options)


def test_the_configuration_is_valid_and_formatted() -> None:
    assert PROGRAM is not None
    checked = subprocess.run(
        [PROGRAM, "validate", "--config", CADDYFILE, "--adapter", "caddyfile"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert '"level":"warn"' not in checked.stderr
    formatted = subprocess.run(
        [PROGRAM, "fmt", CADDYFILE], capture_output=True, text=True, check=False
    )
    assert formatted.stdout == CADDYFILE.read_text()


def test_a_stream_comes_event_by_event(caddy: Caddy, service: Site) -> None:
    model = factories.make_model("acme/heron")
    service.publish("sim-gated", model=model)
    body = service.chat_body("one two", stream=True, model=model.slug)
    headers = {"Authorization": f"Bearer {service.tenant.api_key}"}
    answer = ask(caddy, "POST", CHAT, json=body, headers=headers, stream=True)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    chunks = answer.iter_content(None)
    [first] = events_of(next(chunks).decode())
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for word in ("You", " said:", " one"):
        # The provider sends no further event before this.
        service.upstream.release()
        [event] = events_of(next(chunks).decode())
        assert event["choices"][0]["delta"] == {"content": word}
    service.upstream.release(GATES)
    *_, done = events_of(b"".join(chunks).decode())
    assert done == "[DONE]"
    assert service.settled().status == Generation.Status.COMPLETED


def test_a_caller_who_leaves_ends_the_request(caddy: Caddy, service: Site) -> None:
    model = factories.make_model("acme/heron")
    service.publish("sim-gated", model=model)
    body = service.chat_body("one two", stream=True, model=model.slug)
    headers = {"Authorization": f"Bearer {service.tenant.api_key}"}
    answer = ask(caddy, "POST", CHAT, json=body, headers=headers, stream=True)
    next(answer.iter_content(None))
    answer.close()
    assert service.settled().status == Generation.Status.CANCELLED


def sign_in(caddy: Caddy, source: str, claimed: str) -> requests.Response:
    """Signs in from an address of this machine, and claims another one."""
    with requests.Session() as browser:
        adapter = HTTPAdapter()
        adapter.init_poolmanager(4, 4, source_address=(source, 0))
        browser.mount("https://", adapter)
        browser.headers["X-Forwarded-For"] = claimed
        # Caddy must replace this too, or a cookie would travel in the clear.
        browser.headers["X-Forwarded-Proto"] = "http"
        login = f"{caddy.address}/admin/login/?next=/admin/"
        page = browser.get(login, verify=caddy.authority, timeout=30)
        token = page.cookies["csrftoken"]
        return browser.post(
            login,
            data={"csrfmiddlewaretoken": token, "username": "ann", "password": "wrong"},
            # Believed only where the service knows that its caller speaks HTTPS.
            headers={"Origin": caddy.address, "Cookie": f"csrftoken={token}"},
            verify=caddy.authority,
            timeout=30,
        )


def test_the_service_knows_its_callers_address_and_scheme(caddy: Caddy, service: Site) -> None:
    User.objects.create_superuser("ann", password="a long enough password")
    for source in ("127.0.0.1", "127.0.0.2"):
        assert sign_in(caddy, source, "203.0.113.7").status_code == 200
    entries = AuditEntry.objects.filter(kind="sign_in").order_by("pk")
    assert [entry.after["address"] for entry in entries] == ["127.0.0.1", "127.0.0.2"]


def test_plain_http_is_sent_to_https(caddy: Caddy, service: Site) -> None:
    answer = requests.get(f"{caddy.plain_address}/docs", allow_redirects=False, timeout=30)
    assert answer.status_code == 308
    assert answer.headers["Location"].startswith("https://localhost")


def test_metrics_stay_inside(caddy: Caddy, service: Site) -> None:
    assert "causeway_" in read_metrics(service.server)
    assert ask(caddy, "GET", "/metrics").status_code == 404
    assert ask(caddy, "GET", "/metrics/").status_code == 404
    assert ask(caddy, "GET", "//metrics").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_the_console_can_be_kept_for_some_networks(tmp_path: Path) -> None:
    with (
        serve(CONSOLE_NETWORKS="192.0.2.0/24") as served,
        run_caddy(tmp_path, served.address.removeprefix("http://")) as caddy,
    ):
        for path in ("/admin/", "/admin/login/", "//admin/login/", "/%61dmin/login/"):
            assert ask(caddy, "GET", path).status_code in (403, 404), path
        assert ask(caddy, "GET", "/admin/login/").status_code == 403
        assert ask(caddy, "GET", "/healthz").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_server_that_drains_gets_no_new_request_and_none_fails(
    site: Site, tmp_path: Path
) -> None:
    """Two servers stand behind one Caddy; one of them is stopped while callers go on."""
    site.publish()
    stopped = threading.Event()
    with serve(DRAIN_SECONDS="8") as first, serve(DRAIN_SECONDS="0") as second:
        upstreams = " ".join(one.address.removeprefix("http://") for one in (first, second))
        with run_caddy(tmp_path, upstreams) as caddy:

            def call(_: int) -> list[int]:
                found = []
                while not stopped.is_set():
                    found.append(
                        ask(
                            caddy, "POST", CHAT, json=site.chat_body(),
                            headers={"Authorization": f"Bearer {site.tenant.api_key}"},
                        ).status_code
                    )  # fmt: skip
                return found

            with ThreadPoolExecutor(4) as pool:
                calls = [pool.submit(call, number) for number in range(4)]
                try:
                    code, log = first.stop()
                finally:
                    stopped.set()
                statuses = {status for done in calls for status in done.result()}
            assert ask(caddy, "GET", "/healthz").status_code == 200
    assert code == 0, log
    assert statuses == {200}
