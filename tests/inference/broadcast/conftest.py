"""Fixtures of broadcasting: receivers over HTTPS, and a duty of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from inference.broadcast.sender import Broadcaster
from tests.support.broadcast.traces import TraceReceiver, receiving


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
