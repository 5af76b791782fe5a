"""The time that a caller waits in all: it begins once, however often the caller is watched."""

from __future__ import annotations

import asyncio
from typing import Any

from catalog.dialects.base import Operation
from inference.faces.connection import Connection


class Cycle:
    def __init__(self) -> None:
        self.is_expired = False

    def recognize(self) -> None:
        pass

    def watch(self) -> None:
        self.is_expired = False

    def expire(self) -> None:
        self.is_expired = True

    def unwatch(self) -> bool:
        return self.is_expired


async def never(*arguments: Any) -> Any:
    raise AssertionError


def test_a_second_watch_does_not_begin_the_time_again() -> None:
    async def run() -> bool:
        scope = {
            "method": "POST",
            "path": "/",
            "headers": [(b"x-request-timeout", b"0.05")],
            "causeway.cycle": Cycle(),
        }
        connection = Connection(Operation.CHAT, scope, never, never)
        connection.read_patience(is_stream=True)
        connection.watch_caller()
        assert not connection.unwatch_caller()
        await asyncio.sleep(0.1)
        assert not connection.is_late
        connection.watch_caller()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return connection.unwatch_caller() and connection.is_late

    assert asyncio.run(run())
