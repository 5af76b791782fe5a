"""Recognition: finds the key of a caller before anything of its request's body is read.

Admission reads the whole authority of a key again, and it decides. So a key that was found a few
seconds ago may be believed here, and a warm request costs no statement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from accounts.bearers import require_active, require_usable
from config.api.errors import GatewayError, Unauthenticated
from config.secrets import KeyDigests
from config.server.batching.batcher import Batcher
from config.server.bulkheads import BulkheadBudget
from config.sql import load_statement
from inference.admission.renewal import DigestRenewal
from inference.store import DataPlaneConnection

Value = TypeVar("Value")

RECOGNIZE: Final = load_statement("inference", "recognize")

# How long a key is believed after PostgreSQL knew it; every admission renews it. A revoked key can
# occupy its organization's budgets for so long.
_BELIEVED_SECONDS: Final = 10.0
# How long an unknown key is refused without a statement.
_REFUSED_SECONDS: Final = 3.0
# Keys that a worker remembers, at half a kilobyte each, and unknown keys, at a quarter. Each has a
# memory of its own, so that strangers displace no key that exists.
_REMEMBERED: Final = 10_000
_REFUSED: Final = 10_000
# Lookups of keys that the worker has never seen. Keys that it knows wait in a queue of their own.
_WAITING: Final = 2_000


class KeyRow(msgspec.Struct, frozen=True):
    """A row of ``recognize.sql``; ``read_at`` is the database's time.

    ``digest`` is the public hash of the key, ``found_by`` one of the digests that find it.
    """

    found_by: str
    pepper: str | None
    digest: str
    key_id: UUID
    organization_id: UUID
    is_management: bool
    disabled: bool
    expires_at: datetime | None
    read_at: datetime
    suspension_reason: str


@dataclass(slots=True)
class RecognizedKey:
    """An API key that exists and was usable when PostgreSQL was asked.

    ``digest`` is its public hash. ``confirmed_at`` is the monotonic time of the last confirmation.
    ``may_cache`` is ``False`` if the last admission has found that the workspace uses no response
    cache by itself; the bodies of the key's requests are then not digested for it.
    """

    digest: str
    key_id: UUID
    organization_id: UUID
    is_management: bool
    confirmed_at: float = field(default_factory=time.monotonic)
    may_cache: bool = True

    def confirm(self) -> None:
        """Records that an admission has just found the key usable."""
        self.confirmed_at = time.monotonic()

    def doubt(self) -> None:
        """Lets the next request ask PostgreSQL, because an admission has refused the key."""
        self.confirmed_at = -_BELIEVED_SECONDS


class Recognizer:
    """Finds keys in a worker's memory, or in PostgreSQL by batches.

    It has a connection of its own, so that lookups never wait for a batch of admissions.
    """

    def __init__(self, refuse: Callable[[BulkheadBudget], GatewayError]) -> None:
        self._refuse = refuse
        self._connection = DataPlaneConnection()
        self._lock = asyncio.Lock()
        self._known: dict[str, RecognizedKey] = {}
        # Until when an unknown key is refused, by its first digest; oldest first.
        self._unknown: dict[str, float] = {}
        self._renewals: Batcher[KeyDigests, KeyRow | None] = Batcher(self._read)
        self._lookups: Batcher[KeyDigests, KeyRow | None] = Batcher(self._read)
        self._digest_renewal = DigestRenewal()
        self._waiting = 0

    async def close(self) -> None:
        await self._connection.close()
        await self._digest_renewal.close()

    def forget(self) -> None:
        """Forgets every key that is known and every one that is not."""
        self._known.clear()
        self._unknown.clear()

    async def recognize(
        self, digests: KeyDigests, *, must_be_current: bool = False
    ) -> RecognizedKey:
        """Returns the key that has one of these digests.

        Raises :class:`Unauthenticated` for a key that does not exist, is disabled or has expired,
        :class:`OrganizationSuspended`, and :class:`Unavailable` when PostgreSQL or the queue of
        lookups cannot take more.
        ``must_be_current`` asks PostgreSQL in any case, where no admission follows.
        """
        presented = digests.first
        known = self._known.get(presented)
        now = time.monotonic()
        if known is None:
            if self._unknown.get(presented, 0.0) > now:
                raise Unauthenticated("The API key is not valid.")
            row = await self._look_up(digests)
        elif must_be_current or known.confirmed_at + _BELIEVED_SECONDS < now:
            row = await self._renewals.submit(digests)
        else:
            return known
        return self._remember(presented, row)

    async def _look_up(self, digests: KeyDigests) -> KeyRow | None:
        """Finds a key that the worker has not seen, if not too many others wait."""
        if self._waiting >= _WAITING:
            raise self._refuse(BulkheadBudget.LOOKUPS)
        self._waiting += 1
        try:
            return await self._lookups.submit(digests)
        finally:
            self._waiting -= 1

    def _remember(self, presented: str, row: KeyRow | None) -> RecognizedKey:
        """Remembers the result of a lookup and returns the key.

        Raises :class:`Unauthenticated` and :class:`OrganizationSuspended`.
        """
        self._known.pop(presented, None)
        if row is None:
            _store(self._unknown, presented, time.monotonic() + _REFUSED_SECONDS, _REFUSED)
            raise Unauthenticated("The API key is not valid.")
        self._unknown.pop(presented, None)
        # A key or an organization that can be enabled again is not remembered as refused.
        require_usable(disabled=row.disabled, expires_at=row.expires_at, now=row.read_at)
        require_active(row.suspension_reason)
        key = RecognizedKey(row.digest, row.key_id, row.organization_id, row.is_management)
        _store(self._known, presented, key, _REMEMBERED)
        return key

    async def _read(self, batch: list[KeyDigests]) -> list[KeyRow | None]:
        """Reads the keys of a batch with one statement."""
        wanted = {digest for digests in batch for digest in digests}
        # The lock is fair: renewals wait for one batch of lookups at most.
        async with self._lock:
            rows = await self._connection.execute(RECOGNIZE, [list(wanted)])
        found = {row.found_by: row for row in (KeyRow(*columns) for columns in rows)}
        return [self._choose(found, digests) for digests in batch]

    def _choose(self, found: Mapping[str, KeyRow], digests: KeyDigests) -> KeyRow | None:
        """Returns the row that the newest pepper found; renews the digest of another one."""
        row = next((found[digest] for digest in digests if digest in found), None)
        if row is not None and (row.found_by != digests[0] or row.pepper is None):
            self._digest_renewal.submit(row.digest, digests)
        return row


def _store(memory: dict[str, Value], name: str, value: Value, limit: int) -> None:
    """Stores a value; drops the oldest one if the memory is full."""
    if len(memory) >= limit:
        del memory[next(iter(memory))]
    memory[name] = value
