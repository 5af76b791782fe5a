"""Natural batching: work that waits together is done together, and an idle service never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Collects items while one flush runs, and gives the next flush all that gathered.

    With ``pause`` each flush waits so many seconds first: for work that nobody waits for.
    ``flush`` gets the items in order and returns as many results; an exception in place of a result
    is raised to that item's waiter alone, and one raised by ``flush`` to all of its batch.
    """

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Result | BaseException]]],
        *,
        limit: int = 256,
        pause: float = 0,
    ) -> None:
        self._flush = flush
        self._pause = pause
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._worker: asyncio.Task[None] | None = None

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Queues an item and returns the future of its result; never blocks."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = loop.create_task(self._run())
        return future

    async def drain(self) -> None:
        """Waits until nothing is queued or under way."""
        while self._worker is not None:
            await asyncio.shield(self._worker)

    async def _run(self) -> None:
        try:
            while self._waiting:
                if self._pause and len(self._waiting) < self._limit:
                    await asyncio.sleep(self._pause)
                batch, self._waiting = (
                    self._waiting[: self._limit],
                    self._waiting[self._limit :],
                )
                await self._flush_batch(batch)
        finally:
            self._worker = None

    async def _flush_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._flush([item for item, _ in batch])
        except Exception as exc:  # handed to every waiter, which is where it belongs
            results = [exc] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
