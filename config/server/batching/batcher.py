"""Natural batching: items that arrive during one flush share the next, and none wait when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Collects items while one flush runs, and passes all of them to the next flush.

    ``pause`` delays each flush by this many seconds, for items that nobody waits for. ``flush``
    gets the items in order and returns one result for each. An exception in place of a result is
    raised to the waiter of that item; an exception that ``flush`` raises goes to the whole batch.
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
            # In no request's context, whose id the log lines of all would have.
            self._worker = loop.create_task(self._run(), context=Context())
        return future

    async def drain(self) -> None:
        """Waits until no item is queued and no flush is running."""
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
        except Exception as exc:  # every waiter of the batch raises it
            results = [exc] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
