"""Workers killed in mid-stream: every hold ends, and delivered text is charged once."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import requests

from billing.models import Account, Transfer
from inference.models import Generation, Journal
from tests.support.bulkheads.leases import end_leases, sweep
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.machine.waiting import wait_until
from tests.support.processes import serve
from tests.support.suite.tiers import count_examples

KILLS = count_examples(12)
AT_ONCE = 5
# Streams per killed worker.
STREAMS = 9
# Limits the duration of a stream too; every worker is killed earlier.
LEASE = "8"
# A stream takes 200 × 0.05 s; every worker is killed earlier.
EVERY_SECONDS = 0.05
WORDS = 200
# The journal lags by one interval plus the time of its statement on a busy machine.
INTERVAL_SECONDS = 1.0
SLACK_SECONDS = 1.5


@dataclass
class Delivered:
    """The text that a caller received from one stream, with times."""

    generation_id: str = ""
    is_whole: bool = False
    pieces: list[tuple[float, int]] = field(default_factory=list)

    def text_bytes(self, until: float) -> int:
        return sum(size for moment, size in self.pieces if moment <= until)


def read(site: Site, address: str, had: Delivered) -> None:
    """Reads a stream into ``had`` until it ends or breaks off."""
    body = site.chat_body(" ".join(["word"] * WORDS), stream=True, max_tokens=1000)
    served = replace(site, server=address)
    with (
        suppress(requests.RequestException),
        served.post(body, stream=True, timeout=30) as answer,
    ):
        assert answer.status_code == 200, answer.text
        had.generation_id = answer.headers["X-Generation-Id"]
        for line in answer.iter_lines(chunk_size=None):
            if line == b"data: [DONE]":
                had.is_whole = True
            elif line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                text = "".join(choice["delta"].get("content") or "" for choice in choices)
                had.pieces.append((time.monotonic(), len(text.encode())))


def life(site: Site, seed: int) -> list[tuple[float, Delivered]]:
    """Starts a worker and kills it in mid-stream; returns the time and the received text."""
    with serve(HOLD_TIMEOUT=LEASE) as served, ThreadPoolExecutor(STREAMS) as pool:
        streams = [Delivered() for _ in range(STREAMS)]
        reading = [pool.submit(read, site, served.address, had) for had in streams]
        wait_until(lambda: all(had.pieces for had in streams), "the streams do not begin")
        time.sleep(random.Random(seed).uniform(0, 2.5))
        killed_at = time.monotonic()
        served.process.kill()
        for future in reading:
            future.result()
    return [(killed_at, had) for had in streams]


def test_killed_workers_leave_no_hold_and_each_stream_is_charged_once(site: Site) -> None:
    site.publish(f"sim-slow:0,{EVERY_SECONDS}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        lives = pool.map(partial(life, site), range(KILLS))
        had = [one for found in lives for one in found]
    assert_in_order()

    end_leases(LEASE, site.eventually)
    journalled = {
        pk: (prompt, completion)
        for pk, prompt, completion in Journal.objects.values_list(
            "pk", "prompt_tokens", "completion_tokens"
        )
    }
    sweep(LEASE)

    assert not Transfer.objects.pending().exists()
    assert not Journal.objects.exists()
    assert_in_order()
    rows = Generation.objects.in_bulk()
    assert len(rows) == len(had) == KILLS * STREAMS
    for killed_at, one in had:
        row = rows[one.generation_id]
        prompt, completion = journalled.get(row.pk, (0, 0))
        assert (row.status, row.error_type) == ("failed", "abandoned")
        assert row.is_estimated == bool(completion)
        assert row.cost_nano == (1000 * prompt + 2000 * completion if completion else 0)
        # A token is estimated as 4 bytes.
        due = one.text_bytes(killed_at - INTERVAL_SECONDS - SLACK_SECONDS)
        assert 4 * completion >= due, (one, completion)
    assert sum(row.cost_nano > 0 for row in rows.values()) > KILLS
    account = Account.objects.get(organization=site.tenant.organization, kind="credits")
    assert account.posted_debits == sum(row.cost_nano for row in rows.values())
    assert account.pending_debits == 0
