"""Measures what a neighbour notices of an attack: python -m tests.bench.attacks

One worker serves two organizations on the first core. The neighbour reads a stream whose provider
sends an event every 20 ms, while strangers or the other organization attack. Each attack has a
control before it: the same stream without an attack. Prints for each attack:

* the longest gap between two events of the neighbour's stream, without and with the attack;
* by how much the worker's memory grew at its peak, and the worker's CPU time, during the attack;
* the statuses of the attack's answers; 0 counts connections that ended without one;
* whether the neighbour was answered on a new connection during the attack, and how fast.

The neighbour and its provider run at a higher priority than the attackers, so that the attack's own
load on the second core delays them little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.__main__ import (
    OTHER_CORE,
    PROJECT,
    System,
    causeway,
    cpu_of,
    memory_of,
    process_on,
    upstream_provider,
    wait_for,
)
from tests.bench.database import work_directory
from tests.support.machine.ports import reserved_port

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY_BYTES: Final = 20 * 1024 * 1024 - 1024
_HALF_OPEN: Final = 10_000
_URGENT: Final = -15
# The models of the two providers; that of the neighbour's stream has a process of its own.
_MODELS: Final = {"paced": ("paced", "short"), "hostile": ("hanging", "choices", "events")}
Statuses = Counter[int]
_FILTERS: Final = """
from accounts.models import Guardrail, Workspace
from inference.filters.pii_patterns import BUILTINS
workspace = Workspace.objects.get(organization_id={!r})
entries = [dict(slug=slug, action="redact", label=slug.upper()) for slug in BUILTINS]
Guardrail.objects.edit_workspace_default(workspace, content_filter_builtins=entries)
"""


@dataclass(frozen=True)
class Target:
    """The attacked worker, with the keys of the attacker and of its neighbour."""

    host: str
    port: int
    pid: int
    attacker: str
    neighbour: str
    # Of a third organization, whose requests all builtin filters read.
    filtered: str
    managing: str

    async def post(
        self,
        key: str,
        body: bytes,
        path: str = "/api/v1/chat/completions",
        kind: str = "application/json",
    ) -> int:
        """Sends a request and returns the status of its answer; 0 without an answer."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer = None
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
            writer.write(head.encode())
            sending = asyncio.create_task(_send(writer, body))
            status = int((await reader.readline()).split()[1])
            while await reader.read(1 << 18):
                pass
            sending.cancel()
        except (OSError, IndexError):
            return 0
        else:
            return status
        finally:
            if writer is not None:
                writer.transport.abort()

    async def chat(self, key: str, model: str, **fields: Any) -> int:
        messages = [{"role": "user", "content": "one two"}]
        body = {"model": model, "messages": messages, **fields}
        return await self.post(key, json.dumps(body).encode())


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    with contextlib.suppress(OSError):
        for start in range(0, len(body), 1 << 18):
            writer.write(body[start : start + (1 << 18)])
            await writer.drain()


def make_key() -> str:
    """Returns a made-up inference key with the right checksum, which anybody can compute."""
    body = "sk-cw-" + "".join(_ALPHABET[each % 62] for each in os.urandom(43))
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = _ALPHABET[digit] + digits
    return body + digits


def fill_body(head: str, item: str, tail: str) -> bytes:
    """Returns a body of about 20 MiB that repeats an item."""
    count = (_BODY_BYTES - len(head) - len(tail)) // (len(item) + 1)
    return f"{head}{','.join([item] * count)}{tail}".encode()


async def _post_bodies(target: Target, key: str, body: bytes, *, count: int = 8) -> Statuses:
    return Counter(await asyncio.gather(*(target.post(key, body) for _ in range(count))))


async def send_strangers(target: Target) -> Statuses:
    """Made-up keys with bodies of 20 MiB."""
    body = fill_body('{"model":"paced/paced","messages":[', '{"role":"user","content":"a"}', "]}")
    return await _post_bodies(target, make_key(), body)


async def open_connections(target: Target) -> Statuses:
    """Ten thousand half-open connections, whose heads never end."""
    writers = []
    statuses: Statuses = Counter()
    for _ in range(_HALF_OPEN):
        try:
            _, writer = await asyncio.open_connection(target.host, target.port)
        except OSError:
            statuses[0] += 1
        else:
            writer.write(b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: local")
            writers.append(writer)
    await asyncio.sleep(2)
    for writer in writers:
        writer.transport.abort()
    return statuses


async def send_messages(target: Target) -> Statuses:
    """The attacker's own bodies of 20 MiB in half a million messages."""
    body = fill_body('{"model":"paced/paced","messages":[', '{"role":"user","content":"a"}', "]}")
    return await _post_bodies(target, target.attacker, body)


async def send_brackets(target: Target) -> Statuses:
    """The attacker's own bodies of 20 MiB in empty lists."""
    body = fill_body(
        '{"model":"paced/paced","messages":[{"role":"user","content":"a"}],"x":[', "[]", "]}"
    )
    return await _post_bodies(target, target.attacker, body)


async def send_text(target: Target) -> Statuses:
    """The attacker's own bodies of 20 MiB that are one long text, and so are valid."""
    text = "a" * (_BODY_BYTES - 200)
    body = {"model": "paced/short", "messages": [{"role": "user", "content": text}]}
    return await _post_bodies(target, target.attacker, json.dumps(body).encode())


async def read_hanging(target: Target) -> Statuses:
    """Fifteen answers of 47 MB that never end."""
    calls = [
        asyncio.create_task(target.chat(target.attacker, "hostile/hanging")) for _ in range(15)
    ]
    done, pending = await asyncio.wait(calls, timeout=6)
    for call in pending:
        call.cancel()
    return Counter([*(call.result() for call in done), *[0] * len(pending)])


async def read_choices(target: Target) -> Statuses:
    """Answers with 500,000 choices."""
    calls = (target.chat(target.attacker, "hostile/choices") for _ in range(4))
    return Counter(await asyncio.gather(*calls))


async def read_events(target: Target) -> Statuses:
    """Eight streams of the shortest events, as fast as the worker can relay them."""
    calls = [
        asyncio.create_task(target.chat(target.attacker, "hostile/events", stream=True))
        for _ in range(8)
    ]
    done, pending = await asyncio.wait(calls, timeout=6)
    for call in pending:
        call.cancel()
    return Counter([*(call.result() for call in done), *[200] * len(pending)])


async def send_filtered(target: Target) -> Statuses:
    """Texts of a megabyte that take the builtin filters longest."""
    text = "tel 2024-01-02 call 12345 678901 2345 tel 12345 " * 21_000
    body = {"model": "paced/short", "messages": [{"role": "user", "content": text}]}
    return await _post_bodies(target, target.filtered, json.dumps(body).encode(), count=3)


async def send_rules(target: Target) -> Statuses:
    """Refused destinations whose rules are the largest expressions that there may be."""
    statuses: Statuses = Counter()
    for attempt in range(40):
        rules = [
            {"field": "user_id", "operator": "regex", "value": f"(?i)[{attempt}-{n}α-ω]{{1,900}}z"}
            for n in range(attempt + 1, attempt + 20)
        ]
        body = {
            "name": "x", "type": "otel-collector", "config": {},
            "filter_rules": {"groups": [{"logic": "and", "rules": rules}]},
        }  # fmt: skip
        path = "/api/v1/observability/destinations"
        statuses[await target.post(target.managing, json.dumps(body).encode(), path)] += 1
    return statuses


async def send_patterns(target: Target) -> Statuses:
    """Creates guardrails with a hundred new patterns each."""
    statuses: Statuses = Counter()
    for attempt in range(12):
        entries = [
            {"pattern": f"(?i)a{attempt}[α-ω]{{1,300}}b{n}", "action": "block", "label": "x"}
            for n in range(100)
        ]
        body = json.dumps({"name": f"g{attempt}", "content_filters": entries}).encode()
        statuses[await target.post(target.managing, body, "/api/v1/guardrails")] += 1
    return statuses


async def guess_passwords(target: Target) -> Statuses:
    """Forty parallel sign-ins with wrong passwords."""
    form = urllib.parse.urlencode({"username": "operator", "password": "wrong"}).encode()
    kind = "application/x-www-form-urlencoded"
    reader, writer = await asyncio.open_connection(target.host, target.port)
    writer.write(b"GET /admin/login/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page)
    cookie = re.search(r"csrftoken=(\w+)", page)
    if token is None or cookie is None:
        raise SystemExit("the login page has no token")
    form += f"&csrfmiddlewaretoken={token[1]}".encode()
    kind += f"\r\nCookie: csrftoken={cookie[1]}"
    calls = (target.post(make_key(), form, "/admin/login/", kind) for _ in range(40))
    return Counter(await asyncio.gather(*calls))


ATTACKS: Final[dict[str, Callable[[Target], Awaitable[Statuses]]]] = {
    "strangers": send_strangers,
    "connections": open_connections,
    "messages": send_messages,
    "brackets": send_brackets,
    "text": send_text,
    "hanging": read_hanging,
    "choices": read_choices,
    "events": read_events,
    "passwords": guess_passwords,
    "filters": send_filtered,
    "rules": send_rules,
    "patterns": send_patterns,
}


class Neighbour:
    """Reads the paced stream in a process of its own, at a higher priority."""

    def __init__(self, target: Target) -> None:
        address = f"{target.host}:{target.port}"
        command = [sys.executable, "-m", "tests.bench.attacks", "--neighbour", address]
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env={**os.environ, "NEIGHBOUR_KEY": target.neighbour},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, _URGENT)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> float:
        """Returns the longest gap between two events in seconds."""
        output, _ = self._process.communicate("stop\n", timeout=30)
        return float(output)


async def read_paced(address: str, key: str) -> float:
    """Reads the paced stream until a line comes on standard input; returns the longest gap."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    messages = [{"role": "user", "content": "one"}]
    body = json.dumps({"model": "paced/paced", "stream": True, "messages": messages}).encode()
    writer.write(
        b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Authorization: Bearer %s\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (key.encode(), len(body), body)
    )
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    longest, last = 0.0, 0.0
    while not stop.done():
        reading = asyncio.ensure_future(reader.read(65_536))
        await asyncio.wait((reading, stop), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            break
        if not reading.result():
            return float("inf")
        now = time.monotonic()
        if last:
            longest = max(longest, now - last)
        else:
            print("ready", flush=True)
        last = now
    writer.transport.abort()
    return max(longest, time.monotonic() - last if last else float("inf"))


async def _measure(target: Target, name: str, control_seconds: float) -> None:
    neighbour = Neighbour(target)
    await asyncio.sleep(control_seconds)
    quiet = neighbour.stop()
    neighbour = Neighbour(target)
    memory, cpu = memory_of(target.pid), cpu_of(target.pid)
    _forget_peak(target.pid)
    attack = asyncio.ensure_future(ATTACKS[name](target))
    answers: list[tuple[int, float]] = []
    while not attack.done():
        await asyncio.wait((attack,), timeout=0.5)
        started = time.monotonic()
        status = await asyncio.to_thread(_ask, target)
        answers.append((status, time.monotonic() - started))
    attacked = neighbour.stop()
    grown = (_peak_of(target.pid) - memory) / 1e6
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(attack.result().items()))
    served = sum(status == 200 for status, _ in answers)
    print(
        f"{name:<12}{quiet * 1000:>9,.0f}{attacked * 1000:>9,.0f}"
        f"{(attacked - quiet) * 1000:>+9,.0f}"
        f"{grown:>+9,.0f}{cpu_of(target.pid) - cpu:>8.1f}{served:>6}/{len(answers):<3}"
        f"{max(seconds for _, seconds in answers) * 1000:>8,.0f}  {statuses}",
        flush=True,
    )
    await asyncio.sleep(3)


def _ask(target: Target) -> int:
    """Sends the neighbour's short request on a new connection and returns the status."""
    return asyncio.run(target.chat(target.neighbour, "paced/short"))


def _forget_peak(pid: int) -> None:
    """Resets the peak of a process's resident memory to its present size."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak_of(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _catalogue(addresses: dict[str, str]) -> dict[str, Any]:
    """Returns the providers at these addresses, with their models."""
    names = [(slug, name) for slug in addresses for name in _MODELS[slug]]
    return {
        "providers": [
            {
                "slug": slug, "name": slug, "dialect": "openai", "base_url": address,
                "data_policy": {"training": False, "retains_prompts": False},
            }
            for slug, address in addresses.items()
        ],
        "models": [
            {
                "id": f"{slug}/{name}", "canonical_slug": f"{slug}/{name}", "name": name,
                "created": 0, "context_length": 100_000_000,
                "architecture": {
                    "input_modalities": ["text"], "output_modalities": ["text"],
                    "modality": "text->text",
                },
            }
            for slug, name in names
        ],
        "endpoints": [
            {
                "model": f"{slug}/{name}", "provider": slug, "upstream_model_id": name,
                "pricing": {"prompt": "0.0000000005", "completion": "0.0000000005"},
            }
            for slug, name in names
        ],
    }  # fmt: skip


def _prepare(directory: Path, system: System, providers: dict[str, str]) -> Target:
    """Adds the hostile models and the neighbour, and sends one request of each organization."""
    environment = {
        "DATA_DIR": str(directory / "data"),
        "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
    }

    def manage(*arguments: str, data: str = "") -> str:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=PROJECT,
            env={**os.environ, **environment},
            input=data,
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout

    manage("import_catalog", "-", data=json.dumps(_catalogue(providers)))
    for slug in providers:
        manage("set_provider_credential", slug, data=f"{slug}-key-0123456789")
    made, filtered = (
        json.loads(manage("create_organization", name, "--json"))
        for name in ("Neighbour", "Filtered")
    )
    for each in (made, filtered):
        manage("grant_credits", each["organization_id"], "1000000")
    manage("shell", "-c", _FILTERS.format(filtered["organization_id"]))
    address = urllib.parse.urlsplit(system.url)
    target = Target(
        address.hostname or "", address.port or 80, system.pid, system.key, made["api_key"],
        filtered["api_key"], filtered["management_key"],
    )  # fmt: skip
    for key in (target.attacker, target.neighbour, target.filtered):
        status = asyncio.run(target.chat(key, "paced/short"))
        if status != 200:
            raise SystemExit(f"the gateway answers {status}")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attacks", description=__doc__)
    parser.add_argument("--only", default=",".join(ATTACKS), metavar="NAMES")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--control-seconds", type=float, default=4)
    parser.add_argument("--neighbour", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    if options.neighbour:
        print(asyncio.run(read_paced(options.neighbour, os.environ["NEIGHBOUR_KEY"])))
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        upstream = stack.enter_context(upstream_provider())
        system = stack.enter_context(causeway(directory, upstream))
        providers = {}
        for slug in _MODELS:
            port = stack.enter_context(reserved_port())
            command = [sys.executable, "-m", "tests.bench.hostile", str(port)]
            process = stack.enter_context(process_on(command, OTHER_CORE))
            if slug == "paced":
                os.setpriority(os.PRIO_PROCESS, process.pid, _URGENT)
            wait_for(f"http://127.0.0.1:{port}/")
            providers[slug] = f"http://127.0.0.1:{port}/v1"
        target = _prepare(directory, system, providers)
        print(
            f"{'attack':<12}{'quiet ms':>9}{'gap ms':>9}{'grown ms':>9}{'MB':>9}{'CPU s':>8}"
            f"{'served':>9}{'ms':>8}  statuses"
        )
        for _ in range(options.rounds):
            for name in options.only.split(","):
                asyncio.run(_measure(target, name, options.control_seconds))


if __name__ == "__main__":
    main()
