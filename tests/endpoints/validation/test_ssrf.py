"""Forbidden addresses are refused by the API; listeners count that no connection arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog.models import LanguageModel
from config.egress.addresses import EgressPolicy
from endpoints.models import PrivateEndpoint, Validation
from tests.support.endpoints.creating import ROUTE, assert_refused
from tests.support.endpoints.validating import failed
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

pytestmark = pytest.mark.django_db

# Each URL is refused for its form or its address. PORT stands for the listener's port.
FORBIDDEN = [
    "https://127.0.0.1:PORT/v1", "https://127.0.0.2:PORT/v1", "https://127.1:PORT/v1",
    "https://127.0.1:PORT/v1", "https://0x7f000001:PORT/v1", "https://0x7f.0.0.1:PORT/v1",
    "https://0177.0.0.1:PORT/v1", "https://2130706433:PORT/v1", "https://017700000001:PORT/v1",
    "https://127.0.0.1.:PORT/v1", "https://１２７.0.0.1:PORT/v1", "https://127。0。0。1:PORT/v1",
    "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:PORT/v1", "https://[::1]:PORT/v1", "https://[0:0:0:0:0:0:0:1]:PORT/v1",
    "https://[::ffff:127.0.0.1]:PORT/v1", "https://[::ffff:7f00:1]:PORT/v1",
    "https://[::127.0.0.1]:PORT/v1", "https://[64:ff9b::7f00:1]:PORT/v1",
    "https://[64:ff9b:1::7f00:1]:PORT/v1", "https://[2002:7f00:1::]:PORT/v1",
    "https://[2001:0:7f00:1::]:PORT/v1", "https://[fe80::1%25lo]:PORT/v1",
    "https://[fe80::1]:PORT/v1", "https://[fc00::1]:PORT/v1", "https://[fd00:ec2::254]/v1",
    "https://[ff02::1]/v1", "https://[::]:PORT/v1", "https://0.0.0.0:PORT/v1", "https://0:PORT/v1",
    "https://10.0.0.1/v1", "https://172.16.0.1/v1", "https://172.31.255.255/v1",
    "https://192.168.1.1/v1", "https://100.64.0.1/v1", "https://169.254.169.254/latest/meta-data",
    "https://169.254.170.2/v2/credentials", "https://168.63.129.16/v1",
    "https://192.0.0.192/opc/v2", "https://192.0.2.1/v1", "https://198.18.0.1/v1",
    "https://198.51.100.1/v1", "https://203.0.113.1/v1", "https://224.0.0.1/v1",
    "https://240.0.0.1/v1", "https://255.255.255.255/v1", "http://api.example.com/v1",
    "http://127.0.0.1:PORT/v1", "HTTP://127.0.0.1:PORT/v1", "gopher://127.0.0.1:PORT/v1",
    "file:///etc/passwd", "//127.0.0.1:PORT/v1", "https:127.0.0.1:PORT/v1",
    "https:///127.0.0.1:PORT/v1", "https://user@127.0.0.1:PORT/v1",
    "https://user:pass@api.example.com/v1", "https://api.example.com@127.0.0.1:PORT/v1",
    "https://api.example.com\\@127.0.0.1:PORT/v1", "https://api.example.com#@127.0.0.1:PORT/v1",
    "https://api.example.com?@127.0.0.1:PORT/v1", "https://api.example.com:22/v1",
    "https://api.example.com:6379/v1", "https://api.example.com:0/v1",
    "https://api.example.com:65536/v1", "https://api.example.com/v1/../../admin",
    "https://api.example.com/v1/%2e%2e/admin", "https://api.example.com/v1 ",
    " https://api.example.com/v1",
]  # fmt: skip


class Canary:
    """Listens on the loopback addresses and counts connections."""

    def __init__(self) -> None:
        self.connections = 0
        self._listeners = []
        port = 0
        for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")):
            listener = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind((address, port))
            except OSError:  # The machine has no IPv6.
                listener.close()
                continue
            listener.listen()
            port = listener.getsockname()[1]
            self._listeners.append(listener)
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self.port = port

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    made = Canary()
    yield made
    made.close()


@pytest.fixture
def strict(settings: Any) -> None:
    """Sets an egress policy without allowed networks."""
    settings.EGRESS_POLICY = EgressPolicy(connect_timeout=10)


@pytest.mark.parametrize("url", FORBIDDEN)
def test_a_forbidden_url_is_refused_without_a_connection(
    url: str, management: APIClient, activating: dict[str, Any], canary: Canary, strict: None
) -> None:
    body = activating | {"base_url": url.replace("PORT", str(canary.port))}
    assert_refused(management.post(ROUTE, body), 422, "invalid_base_url")
    assert PrivateEndpoint.objects.count() == 0
    assert canary.connections == 0


def test_a_name_that_resolves_to_a_forbidden_address_fails_the_validation(
    management: APIClient, activating: dict[str, Any], canary: Canary, strict: None
) -> None:
    answer = management.post(ROUTE, activating | {"base_url": "https://localhost/v1"})
    assert answer.status_code == 422
    checks = answer.json()["data"]["validation"]["checks"]
    wrong = [check for check in checks if not check["passed"]]
    assert wrong == [failed("base_url", "invalid_base_url")]
    assert PrivateEndpoint.objects.get().status == "draft"
    assert canary.connections == 0


@pytest.fixture
def validate(management: APIClient, tenant: Tenant) -> Callable[[PrivateEndpoint], list[Any]]:
    """Asks the API for a validation; returns the checks."""

    def ask(draft: PrivateEndpoint) -> list[Any]:
        body = {"workspace_id": str(tenant.workspace.pk)}
        answer = management.post(f"{ROUTE}/{draft.pk}/validate", body)
        checks: list[Any] = answer.json()["data"]["checks"]
        return checks

    return ask


def test_a_stricter_policy_applies_to_stored_endpoints(
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
    validate: Callable[[PrivateEndpoint], list[Any]],
    upstream: Simulator,
    settings: Any,
) -> None:
    draft = make_draft(model)
    settings.EGRESS_POLICY = EgressPolicy()
    before = upstream.connections
    assert validate(draft)[-1] == failed("base_url", "invalid_base_url")
    assert upstream.connections == before


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    status: int,
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
    validate: Callable[[PrivateEndpoint], list[Any]],
    upstream: Simulator,
) -> None:
    checks = validate(make_draft(model, upstream_model_id=f"sim-redirect-{status}"))
    [wrong] = [check for check in checks if not check["passed"]]
    assert (wrong["name"], wrong["reason"]) == ("completion", "upstream_error")
    assert "upstream_status" not in wrong
    assert [request.path for request in upstream.requests] == ["/v1/chat/completions"]
    assert Validation.objects.get().outcome == "failed"
