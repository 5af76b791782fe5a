"""Serves a mix for half an hour and watches its memory: python -m tests.bench.soak --minutes 30

Two workers and ``work`` on a database of their own. A first half minute, idle and at a low rate,
tells the CPU time of a request. Then requests arrive in an open loop at ``--load`` of the rate that
the workers carry on ``--cores`` of a core, whether or not the earlier ones were answered: whole
answers, streams, callers who leave, upstreams that fail, streams that break off and wrong keys, of
eight organizations with three keys each. The upstream is a process of its own.

Every ten seconds it notes the memory (RSS and PSS), descriptors and threads of each process, the
size of the database, open holds and the lag of the event loops. Prints one JSON object, with the
errors that callers got and with how late the callers themselves were: with callers that are late by
tenths of a second, the machine was too busy for the load. Exits with 1 if a process grew over the
last two thirds of the time, if a request is not accounted for, if an upstream reported more usage
than its request was bounded to, or if the ledger contradicts itself.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import sys

# Made-up data never goes into the database that the caller's environment names.
os.environ["DATABASE_URL"] = ""
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - starts a database of its own, before settings are read

django.setup()

import asyncio
import json
import random
import re
import statistics
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from django.core.management import call_command
from django.db import connection

from accounts.models import ApiKey
from billing.models import Excess, Transfer
from config.credentials import Secret
from inference.models import Generation, Journal
from tests.support import factories
from tests.support.bulkheads.counters import read_metrics
from tests.support.clusters.programs import descendants
from tests.support.clusters.services import run_service
from tests.support.inference.site import CHAT
from tests.support.ledger import differences
from tests.support.machine.waiting import wait_until
from tests.support.processes import Served, manage, serve
from tests.support.upstreams.apart import simulator_apart

ORGANIZATIONS: Final = 8
KEYS: Final = 3
IDLE_SECONDS: Final = 10.0
CALIBRATION_SECONDS: Final = 20.0
CALIBRATION_RATE: Final = 40.0
SAMPLE_SECONDS: Final = 10.0
# A process is flat if its RSS grows by less than this over the last two thirds of the time. Its PSS
# also grows when another process writes to a page that both had since the fork.
GROWTH_MIB: Final = 3.0
# The identifiers in an error, which differ from request to request.
_IDS: Final = r"[0-9a-f]{8}-[0-9a-f-]{27}|(?:gen|req)[-_][\w-]+"
_MOST_ERRORS: Final = 20
_NANO: Final = 10**9
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# How often each kind of request comes, and the behaviour of its upstream.
MIX: Final = {
    "plain": (50, "sim-chunks:20"),
    "stream": (25, "sim-slow:0.1,0.05"),
    "left": (10, "sim-slow:0.1,0.05"),
    "failing": (6, "sim-status:500"),
    "broken": (4, "sim-reset-stream"),
    "wrong key": (5, "sim-echo"),
}


@dataclass
class Asked:
    """A request and what its caller got; ``cost_nano`` is -1 until the answer is whole.

    ``late`` is by how many seconds it was sent after its time, ``waited`` how many seconds passed
    until the head of its answer.
    """

    session: str
    kind: str
    late: float
    status: int = 0
    cost_nano: int = -1
    error: str = ""
    waited: float = -1


@dataclass
class Sample:
    """What was measured at a moment; the lists are by process."""

    at: float
    rss_mib: dict[str, float] = field(default_factory=dict)
    pss_mib: dict[str, float] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    database_mib: float = 0.0
    open_holds: int = 0


class Traffic:
    """Sends requests of the mix at a rate, without waiting for answers."""

    def __init__(self, server: str, keys: Sequence[str], models: dict[str, str]) -> None:
        self.log: list[Asked] = []
        self._server = server
        self._keys = keys
        self._models = models
        self._random = random.Random(7)
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, seconds: float) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            began = due = time.monotonic()
            while due < began + seconds:
                await asyncio.sleep(max(0, due - time.monotonic()))
                task = asyncio.create_task(self._ask(session, time.monotonic() - due))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                due += self._random.expovariate(rate)
            if self._running:
                await asyncio.wait(self._running)

    async def _ask(self, session: aiohttp.ClientSession, late: float) -> None:
        [kind] = self._random.choices(list(MIX), [share for share, _ in MIX.values()])
        asked = Asked(uuid.uuid4().hex, kind, late)
        self.log.append(asked)
        words = " ".join(["word"] * self._random.randrange(5, 40))
        body = {
            "model": self._models[MIX[kind][1]],
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 100,
            "session_id": asked.session,
            "stream": kind in ("stream", "left", "broken"),
        }
        key = "sk-cw-wrong" if kind == "wrong key" else self._random.choice(self._keys)
        headers = {"Authorization": f"Bearer {key}"}
        began = time.monotonic()
        try:
            async with session.post(f"{self._server}{CHAT}", json=body, headers=headers) as answer:
                asked.status, asked.waited = answer.status, time.monotonic() - began
                if kind == "left":
                    # Somewhere in the answer, which takes up to two seconds.
                    await asyncio.wait_for(answer.content.readline(), 30)
                    await asyncio.sleep(self._random.random() / 2)
                    answer.close()
                elif answer.status == 200 and body["stream"]:
                    await self._read_stream(answer, asked)
                elif answer.status == 200:
                    asked.cost_nano = _cost(json.loads(await answer.read())["usage"])
                else:
                    asked.error = json.dumps((await answer.json())["error"])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as exc:
            asked.error = f"{type(exc).__name__}: {exc}"

    async def _read_stream(self, answer: aiohttp.ClientResponse, asked: Asked) -> None:
        cost, is_done = -1, False
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                is_done = True
            elif line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    asked.error = event["error"]["message"]
                if event.get("usage"):
                    cost = _cost(event["usage"])
        if is_done and not asked.error:
            asked.cost_nano = cost


def _cost(usage: dict[str, Any]) -> int:
    return round(float(usage["cost"]) * _NANO)


class Watch:
    """Notes the figures of the processes every ten seconds."""

    def __init__(self, served: Served, worker: int, postmaster: int) -> None:
        self.samples: list[Sample] = []
        self._served = served
        self._processes = {"work": [worker], "postgresql": []}
        self._postmaster = postmaster
        children = descendants(served.process.pid)[1:]
        self._processes["supervisor"] = [served.process.pid]
        self._processes |= {f"worker {number}": [pid] for number, pid in enumerate(children, 1)}
        self.workers = children

    async def run(self, seconds: float) -> None:
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            self.samples.append(await asyncio.to_thread(self._measure, began))
            await asyncio.sleep(SAMPLE_SECONDS)

    def cpu(self) -> float:
        """Returns the CPU seconds that the workers have used."""
        return sum(sum(map(int, _stat(pid)[11:13])) for pid in self.workers) / _TICKS

    def _measure(self, began: float) -> Sample:
        sample = Sample(round(time.monotonic() - began, 1))
        self._processes["postgresql"] = descendants(self._postmaster)
        for name, pids in self._processes.items():
            memory = [_memory(pid) for pid in pids]
            sample.rss_mib[name] = round(sum(each[0] for each in memory), 2)
            sample.pss_mib[name] = round(sum(each[1] for each in memory), 2)
            sample.descriptors[name] = sum(_count(pid, "fd") for pid in pids)
            sample.threads[name] = sum(_count(pid, "task") for pid in pids)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_database_size(current_database()) / 1048576.0")
            sample.database_mib = round(float(cursor.fetchone()[0]), 1)
        sample.open_holds = Transfer.objects.pending().count()
        connection.close()
        return sample


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _count(pid: int, folder: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    except OSError:
        return 0


def _memory(pid: int) -> tuple[float, float]:
    """Returns RSS and PSS in MiB; a backend may have ended meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0.0, 0.0
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return found["Rss"], found["Pss"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--cores", type=float, default=1.0, help="what the workers may use")
    parser.add_argument("--samples", help="a file for all samples, as JSON lines")
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    with simulator_apart() as base_url:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            postmaster = int(_stat(cursor.fetchone()[0])[1])
        keys, models = _fill(base_url)
        connection.close()
        report = _serve(keys, models, postmaster, options)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["is_passed"] else 1)


def _fill(base_url: str) -> tuple[list[str], dict[str, str]]:
    """Creates organizations, keys and a model for each behaviour; returns keys and models."""
    keys = []
    for number in range(ORGANIZATIONS):
        tenant = factories.make_tenant(f"Tenant {number}")
        keys.append(tenant.api_key)
        for name in range(KEYS - 1):
            _, secret = ApiKey.objects.create_key(workspace=tenant.workspace, name=f"key {name}")
            keys.append(secret.reveal())
    models = {}
    for number, behaviour in enumerate(sorted({each for _, each in MIX.values()})):
        # A provider each, because failures of one are held against all of its endpoints.
        provider = factories.make_provider(f"provider-{number}", base_url=base_url)
        provider.set_credential(Secret(f"operator-credential-{number}"))
        model = factories.make_model(f"acme/soak-{number}")
        factories.make_endpoint(model, provider, upstream_model_id=behaviour)
        models[behaviour] = model.slug
    return keys, models


def _serve(
    keys: list[str],
    models: dict[str, str],
    postmaster: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    seconds = options.minutes * 60
    with run_service("work") as duties, serve("--workers", "2") as served:
        traffic = Traffic(served.address, keys, models)
        watch = Watch(served, duties.pid, postmaster)
        cost = _calibrate(traffic, watch)
        rate = options.load * options.cores / cost
        print(f"{cost * 1e6:,.0f} µs a request: {rate:.0f} requests a second", file=sys.stderr)
        begin, cpu = len(traffic.log), watch.cpu()

        async def soak() -> None:
            watching = asyncio.create_task(watch.run(seconds))
            await traffic.run(rate, seconds)
            await watching

        asyncio.run(soak())
        used = (watch.cpu() - cpu) / seconds
        sent = len(traffic.log) - begin
        wait_until(lambda: not Journal.objects.exists(), "settlement of everything", seconds=180)
        lag = _read_lag(served.address)
    problems = [*account_for(traffic.log), *map(str, differences())]
    problems += [f"{claim.reference} is above its bound" for claim in Excess.objects.all()]
    if options.samples:
        lines = [json.dumps(vars(sample)) for sample in watch.samples]
        Path(options.samples).write_text("\n".join(lines))
    return {
        "minutes": options.minutes,
        "requests_per_second": round(sent / seconds, 1),
        "requests": len(traffic.log),
        "worker_cpu_us_per_request": round(used * seconds / sent * 1e6),
        "share_of_a_core": round(used, 3),
        **_time_of(traffic.log[begin:]),
        **_describe(traffic.log, watch.samples, lag, problems),
    }


def _calibrate(traffic: Traffic, watch: Watch) -> float:
    """Returns the CPU seconds of a request, without those that idle workers use too."""
    # The first request of each kind loads what the others find.
    asyncio.run(traffic.run(CALIBRATION_RATE, 3))
    before = watch.cpu()
    time.sleep(IDLE_SECONDS)
    idle = (watch.cpu() - before) / IDLE_SECONDS
    sent, before, began = len(traffic.log), watch.cpu(), time.monotonic()
    asyncio.run(traffic.run(CALIBRATION_RATE, CALIBRATION_SECONDS))
    used = watch.cpu() - before - idle * (time.monotonic() - began)
    return used / (len(traffic.log) - sent)


def _describe(
    log: list[Asked], samples: list[Sample], lag: dict[str, float], problems: list[str]
) -> dict[str, Any]:
    late = [sample for sample in samples if sample.at >= samples[-1].at / 3]
    grown = {name: _growth(late, "rss_mib", name) for name in late[0].rss_mib}
    judged = {name: value for name, value in grown.items() if name != "postgresql"}
    verified = manage("verify_ledger", "--json")
    outcomes = Counter(f"{asked.kind} {asked.status}" for asked in log)
    return {
        "outcomes": dict(sorted(outcomes.items())),
        "errors": _count_errors(log),
        "rss_mib": {name: [value, late[-1].rss_mib[name]]
                    for name, value in late[0].rss_mib.items()},
        "rss_growth_mib_over_the_last_two_thirds": grown,
        "pss_mib": {name: [value, late[-1].pss_mib[name]]
                    for name, value in late[0].pss_mib.items()},
        "descriptors": {name: [count, late[-1].descriptors[name]]
                        for name, count in late[0].descriptors.items()},
        "threads": {name: [count, late[-1].threads[name]]
                    for name, count in late[0].threads.items()},
        "database_mib": [samples[0].database_mib, samples[-1].database_mib],
        "most_open_holds": max(sample.open_holds for sample in samples),
        "event_loop_lag_seconds": lag,
        "verify_ledger": json.loads(verified.stdout),
        "problems": problems[:20],
        "is_passed": not problems
        and verified.returncode == 0
        and all(value < GROWTH_MIB for value in judged.values()),
    }  # fmt: skip


def _count_errors(log: list[Asked]) -> dict[str, int]:
    """Returns how often each kind of request got which error; its ids are left out."""
    errors = Counter(
        f"{asked.kind} {asked.status}: {re.sub(_IDS, '...', asked.error)}"
        for asked in log
        if asked.error
    )
    return dict(errors.most_common(_MOST_ERRORS))


def _time_of(log: list[Asked]) -> dict[str, Any]:
    waited = {
        kind: [asked.waited for asked in log if asked.kind == kind and asked.waited >= 0]
        for kind in MIX
    }
    return {
        "seconds_until_the_head_of_an_answer": {
            kind: _percentiles(seconds) for kind, seconds in waited.items()
        },
        "seconds_that_callers_were_late": _percentiles([asked.late for asked in log]),
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49], 4), "p99": round(cuts[98], 4)}


def _growth(samples: list[Sample], what: str, name: str) -> float:
    """Returns by how much a figure grew, by the line that fits the samples best."""
    times = [sample.at for sample in samples]
    values = [getattr(sample, what)[name] for sample in samples]
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in times)
    both = zip(times, values, strict=True)
    slope = sum((at - middle) * (value - mean) for at, value in both) / (spread or 1)
    return round(slope * (times[-1] - times[0]), 2)


def _read_lag(address: str) -> dict[str, float]:
    """Returns the bounds below which half and 99 % of the measured lags were, and their number."""
    text = read_metrics(address)
    counts = {
        float(line.split('le="')[1].split('"')[0]): float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("causeway_event_loop_lag_seconds_bucket")
    }
    total = max(counts.values(), default=0)
    found = {"samples": total}
    for name, share in (("p50_at_most", 0.5), ("p99_at_most", 0.99)):
        found[name] = min(bound for bound, count in counts.items() if count >= total * share)
    return found


def account_for(log: list[Asked]) -> list[str]:
    """Returns what contradicts the callers' log in the generations and the ledger."""
    rows: dict[str, list[Generation]] = defaultdict(list)
    for row in Generation.objects.all().iterator():
        rows[row.session_id or ""].append(row)
    problems = [
        f"{count} holds are open" for count in [Transfer.objects.pending().count()] if count
    ]
    for asked in log:
        own = rows.pop(asked.session, [])
        problems += [f"{asked}: {row.status} {row.cost_nano}"
                     for row in own if not _is_right(asked, row)]  # fmt: skip
        if len(own) > 1 or (not own and asked.kind in ("plain", "stream")):
            problems.append(f"{asked}: {len(own)} generations")
        if asked.kind in ("plain", "stream") and asked.cost_nano < 0:
            problems.append(f"{asked}: no whole answer")
        if asked.kind == "wrong key" and (asked.status != 401 or own):
            problems.append(f"{asked}: {len(own)} generations")
    return problems + [f"nobody asked for {session}" for session in rows]


def _is_right(asked: Asked, row: Generation) -> bool:
    if row.status == "pending":
        return False
    if asked.kind in ("plain", "stream"):
        return row.status == "completed" and row.cost_nano == asked.cost_nano
    if asked.kind == "failing":
        return row.status == "failed" and row.cost_nano == 0
    return asked.kind != "wrong key"


if __name__ == "__main__":
    main()
