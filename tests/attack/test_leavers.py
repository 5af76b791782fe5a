"""Callers leave before the end: what they pay, and what becomes of the upstream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from billing.models import Account
from inference.models import Generation
from tests.support import factories
from tests.support.attack import Line, connect, post_of
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.endings import hang_up, read_until
from tests.support.inference.site import CHAT, Site
from tests.support.ledger import assert_in_order
from tests.support.processes import serve

CREDITS = 1_000 * 10**9
MAX_TOKENS = 100
# The message's 7 bytes and 16 for its role, at four bytes a token.
PROMPT = 6


@pytest.fixture
def attacked(service: Site) -> Site:
    """The service with a model of its own; the neighbour's model has another endpoint."""
    return replace(service, model=factories.make_model("attacked/model"))


def publish(site: Site, behaviour: str) -> None:
    site.publish(behaviour, price=factories.make_price("0.000001", "0.000002"))


def ask(site: Site, line: Line, *, stream: bool) -> None:
    body = json.dumps(site.chat_body(stream=stream, max_tokens=MAX_TOKENS)).encode()
    line.send(post_of(CHAT, site.tenant.api_key, body))


def leave(site: Site, *, stream: bool, mark: bytes = b"", release: int = 0) -> None:
    """Asks, and resets the connection once the upstream was asked and ``mark`` was read."""
    asked = len(site.dialled())
    with connect(site.server) as line:
        ask(site, line, stream=stream)
        site.eventually(lambda: len(site.dialled()) == asked + 1)
        if release:
            read_until(line.socket, b'"role"')
            site.upstream.release(release)
        if mark:
            read_until(line.socket, mark)
        hang_up(line.socket)


def available(site: Site) -> int:
    account = Account.objects.get(organization=site.tenant.organization, kind="credits")
    return account.available


def charged(prompt: int, completion: int) -> int:
    return 1000 * prompt + 2000 * completion


@pytest.mark.parametrize(
    ("behaviour", "stream", "mark", "release", "ended"),
    [
        # At byte 0, while the upstream still thinks.
        ("sim-stall", True, b"", 0, ("cancelled", PROMPT, 0, True)),
        ("sim-stall", False, b"", 0, ("cancelled", PROMPT, 0, True)),
        # At the first byte, in the middle, and after the last one.
        ("sim-gated", True, b"HTTP/1.1 200", 0, ("cancelled", PROMPT, 0, True)),
        ("sim-gated", True, b" said:", 2, ("cancelled", PROMPT, 3, True)),
        ("sim-echo", True, b"data: [DONE]\n\n", 0, ("completed", 2, 4, False)),
    ],
)
def test_a_caller_who_leaves_pays_for_the_prompt_and_what_was_delivered(
    attacked: Site,
    is_served: Callable[[], bool],
    behaviour: str,
    stream: bool,
    mark: bytes,
    release: int,
    ended: tuple[str, int, int, bool],
) -> None:
    publish(attacked, behaviour)
    name = "causeway_cancelled_generations_total"
    before = read_counter(attacked.server, name, usage="estimated")

    leave(attacked, stream=stream, mark=mark, release=release)

    row = attacked.settled()
    found = (row.status, row.prompt_tokens, row.completion_tokens, row.is_estimated)
    assert found == ended
    assert row.cost_nano == charged(*ended[1:3])
    assert available(attacked) == CREDITS - row.cost_nano
    counted = read_counter(attacked.server, name, usage="estimated") - before
    assert counted == (ended[0] == "cancelled")
    assert is_served()
    assert_in_order()


def test_a_caller_who_leaves_pays_what_the_upstream_reports_within_two_seconds(
    attacked: Site, is_served: Callable[[], bool]
) -> None:
    publish(attacked, "sim-slow:0.7,0.01")
    name = "causeway_cancelled_generations_total"
    before = read_counter(attacked.server, name, usage="reported")

    leave(attacked, stream=False)

    row = attacked.settled()
    found = (row.status, row.prompt_tokens, row.completion_tokens, row.is_estimated)
    assert found == ("cancelled", 2, 4, False)
    assert available(attacked) == CREDITS - charged(2, 4)
    assert read_counter(attacked.server, name, usage="reported") - before == 1
    assert is_served()
    assert_in_order()


def test_a_plain_request_that_is_given_up_three_times_is_paid_three_times(
    attacked: Site, is_served: Callable[[], bool]
) -> None:
    publish(attacked, "sim-stall")
    for _ in range(3):
        leave(attacked, stream=False)
    attacked.eventually(
        lambda: Generation.objects.filter(status="cancelled", prompt_tokens=PROMPT).count() == 3
    )
    assert available(attacked) == CREDITS - 3 * charged(PROMPT, 0)
    assert is_served()
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_never_ends_is_closed_soon_after_its_caller_left(
    attacked: Site, is_served: Callable[[], bool], stream: bool
) -> None:
    publish(attacked, "sim-endless")

    leave(attacked, stream=stream, mark=b"200 OK" if stream else b"")

    row = attacked.settled()
    # What came after the caller had left is not counted, and never more than was allowed.
    assert (row.status, row.prompt_tokens) == ("cancelled", PROMPT)
    assert row.completion_tokens in range(MAX_TOKENS + 1)
    assert row.cost_nano <= row.hold_nano
    [request] = attacked.dialled()
    sizes = [-1, request.sent_bytes]
    while sizes[-1] != sizes[-2]:
        time.sleep(0.2)
        sizes.append(request.sent_bytes)
    assert is_served()
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_refuses_costs_nothing_whoever_leaves(
    attacked: Site, is_served: Callable[[], bool], stream: bool
) -> None:
    publish(attacked, "sim-status:500")
    with connect(attacked.server) as line:
        ask(attacked, line, stream=stream)
        attacked.eventually(lambda: len(attacked.dialled()) == 1)
        hang_up(line.socket)
    row = attacked.settled()
    assert (row.prompt_tokens, row.cost_nano) == (None, 0)
    assert available(attacked) == CREDITS
    assert is_served()
    assert_in_order()


def test_a_worker_that_stops_settles_whom_it_drains(attacked: Site) -> None:
    publish(attacked, "sim-stall")
    with serve("--workers", "2", DRAIN_SECONDS="0") as served:
        attacked.server = served.address
        leave(attacked, stream=False)
        status, text = served.stop()
    assert status == 0, text
    row = Generation.objects.get()
    assert (row.status, row.prompt_tokens) == ("cancelled", PROMPT)
    assert_in_order()
