"""Serves requests with an ``Idempotency-Key``: one upstream call and one charge for each key.

A repeat of a request joins the first one, or gets its kept answer, if the workspace keeps answers;
otherwise it is refused with the id of the first one's generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from django.conf import settings
from msgspec.structs import replace
from prometheus_client import Counter

from billing.rate_limits import RateRule, render_headers
from config.api.errors import Unavailable
from config.api.idempotency import IdempotencyKeyReused
from config.peppers import REQUEST, oldest_pepper
from config.server.bodies import ClientGone
from inference.admission.decide import AdmissionRequest
from inference.exchange.gateway import Exchange
from inference.exchange.tap import Tap
from inference.faces.connection import RETRY_COUNT, Connection
from inference.ids import new_generation_id
from inference.repeats.answers import KeptAnswers, KeptResponse, KeptRow
from inference.repeats.cache_use import CacheUse
from inference.repeats.keeper import FirstRequest
from inference.repeats.key_uses import KeyUse, KeyUses
from inference.repeats.retries import RetryMemory

_REPEATS: Final = Counter(
    "causeway_repeated_requests_total",
    "Requests that repeat an earlier one, by what they got: replayed, refused, or told as a retry.",
    ("answer",),
)
_REPLAYED: Final = (b"idempotency-replayed", b"true")

Run = Callable[[AdmissionRequest, Sequence[Tap]], Awaitable[None]]
Judge = Callable[[], Awaitable[Sequence[RateRule]]]


class Repeats:
    """Recognizes what a worker's requests repeat."""

    def __init__(self) -> None:
        self._uses = KeyUses()
        self._answers = KeptAnswers()
        self._retries = RetryMemory()

    async def close(self) -> None:
        await self._uses.close()
        await self._answers.close()

    def show_figures(self) -> None:
        """Sets the gauges of the queues of statements."""
        self._uses.show_figures()
        self._answers.show_figures()

    async def serve_once(
        self,
        connection: Connection,
        entry: AdmissionRequest,
        run: Run,
        judge: Judge,
    ) -> None:
        """Runs the first request with a key, and answers or refuses any other.

        Another one may have waited for a long time, so it is judged anew with ``judge``, and counts
        for the rate limits.
        Raises :class:`IdempotencyKeyReused` for another request with the key, and the refusals of
        :meth:`KeyUse.refusal`. A request that joined one that failed for free is run itself.
        """
        fingerprint, key = _fingerprint(connection, entry), connection.caller
        while True:
            use = await self._uses.begin(
                key.organization_id,
                key.key_id,
                connection.path,
                connection.idempotency_key(),
                fingerprint,
                new_generation_id(),
            )
            if use.state == "begun":
                break
            if use.state == "different":
                raise IdempotencyKeyReused
            if use.state == "running" and use.is_kept:
                await self._join(connection, use)
                continue
            await self._count(connection, key.organization_id, await judge())
            await self._replay(connection, use, key.organization_id)
            return
        first = FirstRequest(self._uses, self._answers, connection, use, key.organization_id)
        try:
            await run(replace(entry, generation_id=use.generation_id), (first,))
        finally:
            await first.finish()

    def use_cache(self, connection: Connection, exchange: Exchange) -> CacheUse:
        """Returns the use of the response cache by an exchange."""
        return CacheUse(self._answers, connection, exchange)

    def note_retry(self, connection: Connection, exchange: Exchange) -> None:
        """Tells the exchange of a request that an SDK has sent before, which one it was."""
        # How often the SDK says that it has sent the request before.
        count = connection.header(RETRY_COUNT) or ""
        authority = exchange.admission.authority
        marks = (authority.key_id, connection.path, connection.body_hash)
        exchange.admission.retry_of = self._retries.note(
            authority.organization_id, marks, count, exchange.generation_id
        )
        if exchange.admission.retry_of is not None:
            _REPEATS.labels("retry").inc()

    async def _join(self, connection: Connection, use: KeyUse) -> None:
        """Waits until the first request with a key has ended; a caller who leaves ends the wait."""
        try:
            connection.watch_caller()
            async with asyncio.timeout(settings.HOLD_TIMEOUT):
                await self._uses.wait(use.generation_id)
        except TimeoutError:
            raise use.refusal() from None
        except asyncio.CancelledError:
            if not connection.unwatch_caller():
                raise
            raise (use.refusal() if connection.is_late else ClientGone()) from None
        finally:
            connection.unwatch_caller()

    async def _count(
        self, connection: Connection, organization_id: UUID, rules: Sequence[RateRule]
    ) -> None:
        """Counts a repeat for the rate limits of all models; raises :class:`RateLimited`."""
        if not rules:
            return
        is_counted, budgets = await self._uses.count(organization_id, rules)
        if not is_counted:
            budgets.require_rates(rules, 0)
            # Its minute has ended meanwhile, or a meter is missing.
            raise Unavailable
        connection.rate_headers = render_headers(rules, budgets.readings, budgets.now)

    async def _replay(self, connection: Connection, use: KeyUse, organization_id: UUID) -> None:
        """Sends the kept answer; raises the refusal of a use without one."""
        answer: KeptResponse | None = None
        if use.answer_id is not None and use.state == "answered":
            row = KeptRow(use.answer_id, use.size, use.generation_id)
            answer = await self._answers.read(organization_id, row, connection.workload)
        if answer is None:
            _REPEATS.labels("refused").inc()
            raise use.refusal()
        _REPEATS.labels("replayed").inc()
        connection.generation_id, connection.left_out = use.generation_id, ()
        await connection.respond_pieces(200, [answer.body], [*answer.headers, _REPLAYED])


def _fingerprint(connection: Connection, entry: AdmissionRequest) -> bytes:
    """Returns what two requests with one key must have in common, beside key and route."""
    common = f"{connection.digest.hex()} {entry.region or ''}"
    return bytes.fromhex(oldest_pepper(REQUEST).digest(common))
