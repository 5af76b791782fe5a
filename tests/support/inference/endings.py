"""How a request ended: its status, its charge and what its caller saw."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import requests

from billing.models import Account, Meter, Transfer
from catalog.dialects.base import Operation
from inference.requests import parsing
from tests.support.bodies.lines import dial, post_bytes
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order

CREDITS = 1_000 * 10**9


@dataclass(frozen=True)
class Ending:
    """Stores the expected end of a generation in the ledger; amounts in nano-USD."""

    status: str
    usage: tuple[int, int] | None
    is_estimated: bool
    error_type: str | None = None

    @property
    def cost(self) -> int:
        """Returns 1,000 nano-USD for each prompt token and 2,000 for each completion token."""
        return 0 if self.usage is None else 1000 * self.usage[0] + 2000 * self.usage[1]


def wanted(site: Site, **fields: Any) -> dict[str, Any]:
    return site.chat_body("one two", **{"stream": True, "max_tokens": 100, **fields})


def assert_ended(site: Site, ending: Ending, **fields: Any) -> None:
    """Asserts the end of the only generation; ``fields`` are those of its request."""
    row = site.settled()
    body = json.dumps(wanted(site, **fields)).encode()
    prompt_bound = parsing.parse(Operation.CHAT, body).prompt_bound
    usage = None if row.prompt_tokens is None else (row.prompt_tokens, row.completion_tokens)
    assert (row.status, usage, row.is_estimated, row.error_type) == (
        ending.status,
        ending.usage,
        ending.is_estimated,
        ending.error_type,
    )
    hold = 1000 * prompt_bound + 2000 * 100
    assert (row.hold_nano, row.cost_nano, row.upstream_cost_nano) == (
        hold,
        ending.cost,
        ending.cost,
    )
    transfer = Transfer.objects.get(reference=row.pk)
    posted = ending.cost or None
    assert (transfer.amount_nano, transfer.posted_nano) == (hold, posted)
    assert transfer.status == ("posted" if posted else "voided")
    account = Account.objects.get(organization=row.organization, kind="credits")
    assert (account.posted_debits, account.pending_debits) == (ending.cost, 0)
    assert account.available == CREDITS - ending.cost
    meter = Meter.objects.get(subject_id=row.api_key_id)
    assert (meter.cost, meter.held_cost, meter.requests) == (ending.cost, 0, 1)
    assert_in_order()


def connected(site: Site, **fields: Any) -> AbstractContextManager[socket.socket]:
    """A connection that has asked for a stream, and read nothing of it yet."""
    return dial(site, post_bytes(site, wanted(site, **fields)))


def read_until(line: socket.socket, mark: bytes) -> None:
    text = b""
    while mark not in text:
        received = line.recv(65_536)
        assert received, text[-500:]
        text += received


def hang_up(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def notice(site: Site) -> None:
    """Waits for a turn of the service's event loop, which sees every connection that was closed."""
    assert requests.get(f"{site.server}/healthz", timeout=60).status_code == 200
