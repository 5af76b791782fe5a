"""Waits for the usage of an answer whose caller has left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Final

from config.egress.errors import TooLarge
from inference.exchange.attempts import FAILURES, Attempts
from inference.exchange.rendering import read_reported_cost
from inference.exchange.tally import Tally

# An upstream that works on, or sends without end, is cut off after this time.
_SECONDS: Final = 2.0
# Longer streams are charged by their prompt and by what was delivered.
_BYTES: Final = 1_048_576


async def drain(attempts: Attempts, tally: Tally, *, is_stream: bool) -> None:
    """Reads what the upstream still sends, only for its usage, for at most two seconds.

    Leaving early must not be cheaper than staying, and the provider bills what it produced. The
    request keeps its place among those of its organization meanwhile, which bounds the number of
    answers that nobody reads. A second cancellation, as of a worker that must stop now, ends the
    wait. The code that calls this closes the response and settles.

    An upstream that fails, or refuses the request, before anything was delivered is free, as it is
    for a caller who stays.
    """
    if attempts.is_sent and not tally.has_last_usage:
        await _read_rest(attempts, tally, is_stream=is_stream)
    tally.allow(attempts.candidate, attempts.item.max_tokens)
    tally.reported_cost_nano = read_reported_cost(tally)


async def _read_rest(attempts: Attempts, tally: Tally, *, is_stream: bool) -> None:
    try:
        with suppress(TimeoutError, TooLarge):
            async with asyncio.timeout(_SECONDS):
                if is_stream:
                    await _drain_stream(attempts, tally)
                else:
                    tally.add_unseen(await attempts.receive_late_reply())
    except FAILURES:
        _discard_failure(attempts, tally)
    if attempts.has_refusal:
        # The time was over before the refusal could be read.
        _discard_failure(attempts, tally)


def _discard_failure(attempts: Attempts, tally: Tally) -> None:
    """Makes a failed answer free, unless something of it was delivered or counted."""
    if not tally.output_bytes and (tally.usage is None or tally.is_blank(tally.usage)):
        attempts.discard()


async def _drain_stream(attempts: Attempts, tally: Tally) -> None:
    async with aclosing(attempts.receive_late_chunks(_BYTES)) as chunks:
        async for chunk in chunks:
            tally.add_unseen(chunk)
