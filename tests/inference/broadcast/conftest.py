"""Fixtures of broadcasting: receivers over HTTPS, and a duty of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from inference.broadcast.sender import Broadcaster
from tests.support.broadcast.destinations import broadcast_to
from tests.support.broadcast.feeds import Feed
from tests.support.broadcast.traces import TraceReceiver, receiving
from tests.support.factories import Tenant


@pytest.fixture
def make_receiver() -> Iterator[Callable[[], TraceReceiver]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(receiving())


@pytest.fixture
def receiver(make_receiver: Callable[[], TraceReceiver]) -> TraceReceiver:
    return make_receiver()


@pytest.fixture
def broadcaster() -> Broadcaster:
    return Broadcaster()


@pytest.fixture
def feed(tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster) -> Feed:
    destination = broadcast_to(tenant.workspace, receiver.url)
    return Feed(tenant, receiver, destination, broadcaster)
