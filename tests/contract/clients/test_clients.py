"""Every cell of the table: a client, a face, and what it does."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from inference.models import Generation
from tests.contract.clients.drivers.driver import WEATHER, Driver, Failure
from tests.contract.clients.table import COLUMNS, ROWS, Row
from tests.support import factories
from tests.support.inference.site import Site

CELLS = [pytest.param(row, column, id=f"{row.id}-{column}") for row in ROWS for column in COLUMNS]
# Frameworks warn about each other, and keep clients that nobody closes.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize(("row", "column"), CELLS),
]


@pytest.fixture
def driver_class(row: Row) -> type[Driver]:
    try:
        module = importlib.import_module(f"tests.contract.clients.drivers.{row.module}")
    except ModuleNotFoundError as missing:
        pytest.skip(f"needs {missing.name}; see `python -m tests.contract.clients`")
    found: type[Driver] = getattr(module, row.driver)
    return found


def test_client(site: Site, driver_class: type[Driver], row: Row, column: str) -> None:
    CHECKS[column](site, driver_class, row)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())


def driver_of(site: Site, kind: type[Driver], key: str | None = None) -> Driver:
    return kind(site.server, key or site.tenant.api_key)


def check_plain(site: Site, kind: type[Driver], row: Row) -> None:
    site.publish("sim-echo")
    assert driver_of(site, kind).plain("acme/falcon") == "You said: one two"
    assert site.settled().cost_nano > 0


def check_stream(site: Site, kind: type[Driver], row: Row) -> None:
    site.publish("sim-echo")
    pieces = driver_of(site, kind).stream("acme/falcon")
    assert [piece for piece in pieces if piece] == ["You", " said:", " one", " two"]
    assert site.settled().streamed


def check_tools(site: Site, kind: type[Driver], row: Row) -> None:
    site.publish("sim-tools:2")
    found = driver_of(site, kind).tools("acme/falcon")
    # A client may run both tools at once, and either may end first.
    found = sorted(found, key=lambda call: call["number"])
    assert found == [{"city": "Zürich", "number": number} for number in (0, 1)]
    messages = site.upstream.requests[1].body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert WEATHER in str(messages[-1]["content"])


def check_structured(site: Site, kind: type[Driver], row: Row) -> None:
    site.publish("sim-mirror")
    found = driver_of(site, kind).structured("acme/falcon")
    wanted = found["body"]["response_format"]
    assert wanted["type"] == "json_schema"
    assert "body" in wanted["json_schema"]["schema"]["properties"]


def check_error(site: Site, kind: type[Driver], row: Row) -> None:
    """Nobody's model, a caller without credits, and a provider that refuses."""
    poor = factories.make_tenant("Poor", credits_usd=0)
    site.publish("sim-status-429")
    told = {
        404: driver_of(site, kind).error("acme/none"),
        402: driver_of(site, kind, poor.api_key).error("acme/falcon"),
        429: driver_of(site, kind).error("acme/falcon"),
    }
    assert told == {
        status: Failure(name, status) for status, name in zip(told, row.errors, strict=True)
    }


def check_cancel(site: Site, kind: type[Driver], row: Row) -> None:
    site.publish("sim-gated")
    # Not more than is read: any-llm 1.27 leaves the connection open when it has another piece.
    site.upstream.release(1)
    driver_of(site, kind).cancel("acme/falcon")
    [request] = site.upstream.requests
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert site.settled().status == Generation.Status.CANCELLED


CHECKS: dict[str, Any] = {
    "plain": check_plain,
    "stream": check_stream,
    "tools": check_tools,
    "structured": check_structured,
    "error": check_error,
    "cancel": check_cancel,
}
