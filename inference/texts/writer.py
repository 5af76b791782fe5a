"""Stores the texts of ended generations in the background: no request waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from config.api.errors import Unavailable
from config.secrets import DecryptionFailed, seal_key, unseal_key
from config.sql import load_statement
from inference.requests.parsing import InferenceRequest
from inference.store import DataPlaneConnection
from inference.stored_texts import associate_key, make_key
from inference.texts.buffers import STORED, Loss, TextBuffers
from inference.texts.capture import Capture, TextSubject
from inference.texts.contents import seal_content

logger = logging.getLogger(__name__)

READ_KEYS: Final = load_statement("inference", "read_text_keys")
CREATE_KEYS: Final = load_statement("inference", "create_text_keys")
STORE: Final = load_statement("inference", "store_texts")

# Texts gather for this time, so that a transaction stores several.
_PAUSE_SECONDS: Final = 0.2
_BATCH: Final = 64
_BATCH_BYTES: Final = 4 * 1024 * 1024
# How long texts wait after a failure of the database, at first and at most.
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 15.0
# How long texts wait whose key is locked or has moved, because texts are being deleted.
_PARKED_SECONDS: Final = 1.0
# How long a stopping worker goes on storing.
_DRAIN_SECONDS: Final = 5.0
_encode = msgspec.json.Encoder().encode


class TextKeyRow(NamedTuple):
    """A row of ``read_text_keys.sql``."""

    id: int
    organization_id: UUID
    sealed: str
    epoch: int


class NewKey(msgspec.Struct, frozen=True):
    """A key as ``create_text_keys.sql`` reads it."""

    organization_id: UUID
    sealed: str


class TextRow(msgspec.Struct, frozen=True):
    """A text as ``store_texts.sql`` reads it; ``place`` is that of its ciphertext, from 1 on."""

    place: int
    generation_id: str
    organization_id: UUID
    workspace_id: UUID
    api_key_id: UUID
    text_key_id: int
    epoch: int
    input_bytes: int
    output_bytes: int
    is_truncated: bool
    admitted_at: int


class TextWriter:
    """Encrypts texts in a thread and stores them in batches, on a connection of its own."""

    def __init__(self) -> None:
        self._buffers = TextBuffers()
        self._connection = DataPlaneConnection()
        self._waiting: deque[Capture] = deque()
        # Those whose key is locked or has moved; they are tried again together.
        self._parked: list[Capture] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._worker: asyncio.Task[None] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, subject: TextSubject, request: InferenceRequest) -> Capture:
        """Copies the input of an admitted request, and returns what copies its output."""
        return Capture(subject, request, self._buffers)

    def submit(self, capture: Capture) -> None:
        """Queues the copies of an ended generation, unless they are lost already."""
        capture.request = None
        if capture.is_lost:
            return
        self._queue([capture])

    async def close(self) -> None:
        """Stores what waits, for five seconds at most; what is left is lost."""
        self._unpark()
        if self._worker is not None:
            with suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await asyncio.shield(self._worker)
        if (worker := self._worker) is not None:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
        if self._alarm is not None:
            self._alarm.cancel()
        for capture in (*self._waiting, *self._parked):
            capture.drop(Loss.STOPPED)
        self._waiting.clear()
        self._parked.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        await self._connection.close()

    def _queue(self, captures: Iterable[Capture]) -> None:
        self._waiting.extend(captures)
        if self._waiting and self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._run())

    def _park(self, captures: Sequence[Capture]) -> None:
        """Queues texts again after a while, so that those of others do not wait for their keys."""
        self._parked.extend(captures)
        if self._parked and self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(_PARKED_SECONDS, self._unpark)

    def _unpark(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        parked, self._parked = self._parked, []
        self._queue(parked)

    async def _run(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < _BATCH:
                    await asyncio.sleep(_PAUSE_SECONDS)
                await self._store_all(self._take_batch())
        finally:
            self._worker = None

    def _take_batch(self) -> list[Capture]:
        batch, size = [self._waiting[0]], self._waiting.popleft().held
        while self._waiting and len(batch) < _BATCH:
            size += self._waiting[0].held
            if size > _BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _store_all(self, batch: list[Capture]) -> None:
        """Stores a batch, however long the database is away; a cancelled one is queued again."""
        wait = _FIRST_WAIT_SECONDS
        try:
            while True:
                try:
                    self._park(await self._store(batch))
                    return
                except Unavailable:
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        except asyncio.CancelledError:
            self._waiting.extend(batch)
            raise
        except Exception:
            # What the database rejects, or a bug, must not end the storing of all other texts.
            logger.exception("%d inputs and outputs cannot be stored", len(batch))
        for capture in batch:
            capture.drop(Loss.REFUSED)

    async def _store(self, batch: Sequence[Capture]) -> list[Capture]:
        """Stores a batch once; returns what is to be tried again: its key is locked, or has moved.

        A deletion locks the key of its organization, and a batch has texts of many.
        """
        keys = await self._read_keys({each.subject.organization_id for each in batch})
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "texts")
        rows, sealed = await asyncio.get_running_loop().run_in_executor(
            self._threads, _seal_all, batch, keys
        )
        by_id = {each.subject.generation_id: each for each in batch}
        for generation_id in by_id.keys() - {row.generation_id for row in rows}:
            by_id[generation_id].drop(Loss.REFUSED)
        again: list[Capture] = []
        if not rows:
            return again
        for generation_id, is_current, is_stored in await self._connection.execute(
            STORE, (_encode(rows).decode(), sealed)
        ):
            capture = by_id[generation_id]
            if is_stored:
                STORED.inc()
                capture.release()
            elif is_current:
                capture.drop(Loss.DELETED)
            else:
                again.append(capture)
        return again

    async def _read_keys(self, organizations: set[UUID]) -> Mapping[UUID, TextKeyRow]:
        """Returns the keys of organizations; one that has none gets one."""
        keys: dict[UUID, TextKeyRow] = {}
        for _ in range(2):
            rows = await self._connection.execute(READ_KEYS, (list(organizations),))
            keys = {row.organization_id: row for row in (TextKeyRow(*columns) for columns in rows)}
            if not (missing := organizations - keys.keys()):
                break
            made = [
                NewKey(each, seal_key(make_key(), associated=associate_key(each)))
                for each in missing
            ]
            await self._connection.execute(CREATE_KEYS, (_encode(made).decode(),))
        return keys


def _seal_all(
    batch: Sequence[Capture], keys: Mapping[UUID, TextKeyRow]
) -> tuple[list[TextRow], list[bytes]]:
    """Returns the rows of a batch and their ciphertexts, without those whose key is lost."""
    rows: list[TextRow] = []
    ciphertexts: list[bytes] = []
    unsealed: dict[UUID, bytes | None] = {}
    for capture in batch:
        subject = capture.subject
        organization_id = subject.organization_id
        key = keys.get(organization_id)
        if organization_id not in unsealed:
            unsealed[organization_id] = None if key is None else _unseal(key)
        secret = unsealed[organization_id]
        if key is None or secret is None:
            continue
        content, output_bytes = capture.assemble()
        ciphertexts.append(seal_content(content, secret, organization_id, subject.generation_id))
        rows.append(
            TextRow(
                len(ciphertexts),
                subject.generation_id,
                organization_id,
                subject.workspace_id,
                subject.api_key_id,
                key.id,
                key.epoch,
                capture.input_bytes,
                output_bytes,
                capture.is_truncated,
                subject.admitted_at,
            )
        )
    return rows, ciphertexts


def _unseal(key: TextKeyRow) -> bytes | None:
    try:
        return unseal_key(key.sealed, associated=associate_key(key.organization_id))
    except DecryptionFailed:
        logger.warning("the key of the texts of organization %s is lost", key.organization_id)
        return None
