"""Streams through a service whose workers are killed, and what the ledger must say afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from django.db.models import Count

from billing.models import Account, Transfer
from inference.models import Generation, Journal
from tests.support.inference.site import CHAT, Site
from tests.support.machine.waiting import wait_until
from tests.support.processes import Served

# Each kill ends at least as many admitted streams.
LOADED: Final = 5
STREAMS: Final = 20
# Kills are at most so far apart, so that some streams end whole.
LATEST_SECONDS: Final = 4.0
RETURN_SECONDS: Final = 2.0
# A stream takes 50 × 0.1 s; HOLD_TIMEOUT must be longer.
WORDS: Final = 50
PAUSE_SECONDS: Final = 0.1
BEHAVIOUR: Final = f"sim-slow:0,{PAUSE_SECONDS}"
LEASE: Final = "15"
PRICES: Final = ("0.000001", "0.000002")
_PROMPT_NANO: Final = 1_000
_COMPLETION_NANO: Final = 2_000
# Tokens without a report of the upstream are estimated from this many bytes.
_BYTES_PER_TOKEN: Final = 4
_SECONDS: Final = 60.0


@dataclass
class Stream:
    """What a caller received of one stream, and when; ``killed_at`` is its worker's end."""

    client_port: int = 0
    status: int = 0
    generation_id: str = ""
    is_whole: bool = False
    error: str = ""
    pieces: list[tuple[float, int]] = field(default_factory=list)
    killed_at: float | None = None

    def unbilled_seconds(self, billed_bytes: int) -> float:
        """Returns how long before the kill the first text arrived that was not billed."""
        assert self.killed_at is not None
        total = 0
        for moment, size in self.pieces:
            total += size
            if total > billed_bytes:
                return max(self.killed_at - moment, 0.0)
        return 0.0


@dataclass
class Findings:
    """What was wrong after the last kill, and how much text each killed stream gave away."""

    open_holds: int = 0
    open_journals: int = 0
    charged_twice: int = 0
    wrong: list[str] = field(default_factory=list)
    unbilled: list[float] = field(default_factory=list)


class StreamsUnderFire:
    """Keeps streams open through a service, from a thread, for the time of a ``with`` block."""

    def __init__(self, site: Site, served: Served, *, count: int = STREAMS) -> None:
        self.streams: list[Stream] = []
        self.hits: list[int] = []
        self._site = site
        self._served = served
        self._count = count
        self._is_over = False
        self._dice = random.Random(0)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(_SECONDS)

    def kill(self) -> None:
        """Kills a worker with :data:`LOADED` streams or more, at a random moment of them."""
        time.sleep(self._dice.uniform(0, LATEST_SECONDS))
        wait_until(self._kill_if_loaded, "no worker has enough streams", seconds=_SECONDS)

    def _kill_if_loaded(self) -> bool:
        groups = self._streams_by_worker().items()
        loaded = [pid for pid, group in groups if _count_admitted(group) >= LOADED]
        if not loaded:
            return False
        pid = self._dice.choice(loaded)
        # A stopped worker accepts no more streams while those that it has are counted.
        os.kill(pid, signal.SIGSTOP)
        now = time.monotonic()
        group = self._streams_by_worker()[pid]
        if _count_admitted(group) < LOADED:
            os.kill(pid, signal.SIGCONT)
            return False
        os.kill(pid, signal.SIGKILL)
        for stream in group:
            stream.killed_at = now
        self.hits.append(_count_admitted(group))
        return True

    def _streams_by_worker(self) -> dict[int, list[Stream]]:
        """Groups the open streams by the process that serves them."""
        port = urlsplit(self._served.address).port
        inodes = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}"):
                inodes[f"socket:[{fields[9]}]"] = int(fields[2].rpartition(":")[2], 16)
        running = {
            each.client_port: each
            for each in list(self.streams)
            if each.client_port and not each.is_whole and each.killed_at is None
        }
        supervisor = self._served.process.pid
        workers = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        return {int(pid): _held_by(pid, inodes, running) for pid in workers}

    async def _run(self) -> None:
        await asyncio.gather(*(self._stream_again() for _ in range(self._count)))

    async def _stream_again(self) -> None:
        while not self._is_over:
            stream = Stream()
            try:
                await asyncio.wait_for(self._read(stream), _SECONDS)
            except (OSError, ValueError, TimeoutError):
                pass
            finally:
                stream.client_port = 0
            # Callers come back at different times, so that the successor gets some of them.
            if not stream.is_whole:
                await asyncio.sleep(self._dice.uniform(0, RETURN_SECONDS))

    async def _read(self, stream: Stream) -> None:
        target = urlsplit(self._served.address)
        words = " ".join(["word"] * WORDS)
        body = json.dumps(self._site.chat_body(words, stream=True, max_tokens=1000)).encode()
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        stream.client_port = writer.get_extra_info("sockname")[1]
        self.streams.append(stream)
        try:
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Authorization: Bearer {self._site.tenant.api_key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            stream.status = int((await reader.readline()).split()[1])
            while (line := await reader.readline()).strip():
                name, _, text = line.decode().partition(":")
                if name.lower() == "x-generation-id":
                    stream.generation_id = text.strip()
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    stream.is_whole = True
                elif line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    stream.error = str(event.get("error", stream.error))
                    choices = event.get("choices", ())
                    text = "".join(each["delta"].get("content") or "" for each in choices)
                    if text:
                        stream.pieces.append((time.monotonic(), len(text.encode())))
        except IndexError:
            raise ConnectionError from None
        finally:
            writer.close()

    def examine(self) -> Findings:
        """Compares all streams with the ledger, after the leases of the killed ones were swept."""
        found = Findings(Transfer.objects.pending().count(), Journal.objects.count())
        charges = Transfer.objects.filter(kind="usage").values("reference")
        found.charged_twice = charges.annotate(times=Count("pk")).filter(times__gt=1).count()
        rows = Generation.objects.in_bulk()
        answered = [each for each in self.streams if each.generation_id]
        heard = {each.generation_id for each in answered}
        for stream in answered:
            row = rows.get(stream.generation_id)
            if stream.status != 200 or row is None:
                found.wrong.append(f"status {stream.status}, {stream.generation_id}")
            elif stream.is_whole:
                _examine_whole(row, found)
            else:
                _examine_killed(stream, row, found)
        # A caller whose worker died before it answered has no id of its generation.
        silent = [row for row in rows.values() if row.pk not in heard]
        found.wrong += [
            f"{row.pk} ended {row.status} {row.error_type} and nobody heard of it"
            for row in silent
            if (row.status, row.error_type) != ("failed", "abandoned")
        ]
        unanswered = len(self.streams) - len(answered)
        if len(silent) > unanswered:
            found.wrong.append(f"{len(silent)} generations for {unanswered} lost requests")
        account = Account.objects.get(organization=self._site.tenant.organization, kind="credits")
        spent = sum(row.cost_nano for row in rows.values())
        if (account.posted_debits, account.pending_debits) != (spent, 0):
            found.wrong.append(f"charged {account.posted_debits} for generations of {spent}")
        return found


def _count_admitted(group: list[Stream]) -> int:
    """Counts the streams whose caller has received text."""
    return sum(bool(stream.pieces) for stream in group)


def _held_by(pid: str, inodes: dict[str, int], running: dict[int, Stream]) -> list[Stream]:
    ports = set()
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            ports.add(inodes.get(os.readlink(each), 0))
    except OSError:
        return []
    return [running[port] for port in ports & running.keys()]


def _price_of(row: Generation) -> int:
    return _PROMPT_NANO * (row.prompt_tokens or 0) + _COMPLETION_NANO * (row.completion_tokens or 0)


def _examine_whole(row: Generation, found: Findings) -> None:
    """A stream that was delivered to its end is charged by the upstream's report, or swept.

    Its worker may have died after the last event was delivered and before it was settled.
    """
    if row.status != "completed" and row.error_type != "abandoned":
        found.wrong.append(f"{row.pk} was delivered and ended {row.status} {row.error_type}")
    if row.cost_nano != _price_of(row):
        found.wrong.append(f"{row.pk} costs {_price_of(row)} and was charged {row.cost_nano}")


def _examine_killed(stream: Stream, row: Generation, found: Findings) -> None:
    if stream.killed_at is None:
        found.wrong.append(f"{row.pk} broke off although its worker lived: {stream.error}")
        return
    if (row.status, row.error_type) not in {("failed", "abandoned"), ("completed", None)}:
        found.wrong.append(f"{row.pk} was killed and ended {row.status} {row.error_type}")
    if row.cost_nano != (_price_of(row) if row.completion_tokens else 0):
        found.wrong.append(f"{row.pk} was charged {row.cost_nano}, not {_price_of(row)}")
    billed = _BYTES_PER_TOKEN * (row.completion_tokens or 0)
    found.unbilled.append(stream.unbilled_seconds(billed))
