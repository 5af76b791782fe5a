"""Measures one gateway worker and other gateways in the same run: python -m tests.bench

The system under test has the first core. PostgreSQL, the load generator (Debian's ``wrk``) and the
provider (``tests.bench.upstream``, plain HTTP) share the second. Rounds alternate between the
systems and medians are printed, because a shared machine drifts. Before its first round a system
must answer each load whole, and every round must have received as many bytes for each answer. After
the rounds the ledger is verified, and the generations that did not complete are counted.

Prints all figures; then the ratios that the budget of the hot path names, and the rows of the table
in ``docs/performance.md``. ``busy`` is the share of the time in which the system used its core, and
``other`` that in which the second core was used by anybody: figures mean something while the second
core has time left.

Systems:

* ``causeway``: keys, policy, exact ledger and durable commits;
* ``checkout``: another checkout of Causeway, for the effect of a change: ``--checkout``;
* ``direct``: the provider itself. Its latency comes from the load generator and the provider's
  timer, so a gateway adds the difference to it;
* ``floor``: the minimal work of a gateway in Python (``tests.bench.floor``);
* ``nginx``: a reverse proxy, if it is installed;
* ``tensorzero``, ``portkey`` and ``litellm``: without keys, database or ledger, installed from the
  package registries.

Loads: plain and streamed answers at 64 connections, or at ``--connections``; streams of 50 events,
from a provider that writes the events one after another and from one that sends each in a packet of
its own; and plain answers at 8 connections from a provider that takes 50 ms, which are subtracted
from the latency.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.bench.database import Database, work_directory
from tests.bench.upstream import DELAY_SECONDS
from tests.support.machine.ports import reserved_port

PROJECT = Path(__file__).resolve().parents[2]
SYSTEM_CORE, OTHER_CORE = 0, 1
UPSTREAM_KEY: Final = "bench-key-0000"
_REQUESTS = re.compile(r"(\d+) requests in ([\d.]+)s")
_BAD = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_BROKEN = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")
_READ = re.compile(r"requests in [\d.]+s, ([\d.]+)([KMG]?)B read")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# An answer of a load without its headers, which a peer may leave out, has at least this share.
_WHOLE_SHARE: Final = 0.93
_LATENCY = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m) *$", re.MULTILINE)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_CROWD: Final = """
from accounts.models import Organization
Organization.objects.bulk_create(
    (Organization(name=f"Crowd {n}", slug=f"crowd-{n}") for n in range(100_000)), batch_size=5_000
)
"""
# Starts TensorZero with a configuration file, and writes its address to another file.
_TENSORZERO: Final = """
import pathlib, sys, time
from tensorzero.tensorzero import _start_http_gateway
gateway = _start_http_gateway(config_file=sys.argv[1], clickhouse_url=None, postgres_url=None,
                              valkey_url=None, async_setup=False)
pathlib.Path(sys.argv[2]).write_text(gateway.base_url)
while True:
    time.sleep(60)
"""
_PEERS: Final = "direct,floor,nginx,tensorzero,portkey,litellm"
_COLUMNS: Final = (
    "per second", "CPU µs", "p50 ms", "p99 ms", "failed", "busy %", "other %", "PG µs", "WAL B",
)  # fmt: skip
_PEER: Final = "tensorzero"


@dataclass(frozen=True)
class Load:
    """A kind of request that is sent to every system, and the number of connections."""

    name: str
    model: str
    connections: int
    stream: bool = False
    delay_seconds: float = 0


LOADS: Final = (
    Load("plain", "bench-whole", 64),
    Load("stream", "bench-chunks", 64, stream=True),
    Load("stream, single packets", "bench-packets", 64, stream=True),
    Load("plain, 50 ms upstream", "bench-slow", 8, delay_seconds=DELAY_SECONDS),
)


@dataclass
class System:
    """A running gateway: its address, its key and headers, and its process."""

    name: str
    url: str
    pid: int
    key: str = UPSTREAM_KEY
    author: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    database: Database | None = None
    # The bytes of a whole answer of each load.
    sizes: dict[str, int] = field(default_factory=dict)
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=_PEERS, metavar="NAMES")
    parser.add_argument(
        "--connections",
        type=int,
        default=64,
        help="of the loads whose provider answers at once (default 64)",
    )
    parser.add_argument(
        "--crowded",
        action="store_true",
        help="adds 100,000 organizations and 20,000 endpoints that get no requests",
    )
    parser.add_argument(
        "--checkout", type=Path, help="another checkout of Causeway with a .venv, as a peer"
    )
    parser.add_argument("--litellm", type=Path, help="the program of an installed litellm")
    parser.add_argument("--tensorzero", type=Path, help="a Python that has tensorzero installed")
    parser.add_argument("--portkey", type=Path, help="a folder with @portkey-ai/gateway installed")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is missing; install it with: apt-get install wrk")
    os.sched_setaffinity(0, {OTHER_CORE})
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        upstream = stack.enter_context(upstream_provider())
        systems = [stack.enter_context(causeway(directory, upstream, crowded=options.crowded))]
        if options.checkout is not None:
            (other := directory / "checkout").mkdir()
            systems.append(
                stack.enter_context(
                    causeway(other, upstream, crowded=options.crowded, checkout=options.checkout)
                )
            )
        peers: dict[str, AbstractContextManager[System]] = {
            "direct": _direct(upstream),
            "floor": _floor(upstream),
            "nginx": _nginx(directory, upstream),
            "tensorzero": _tensorzero(directory, upstream, options.tensorzero),
            "portkey": _portkey(directory, upstream, options.portkey),
            "litellm": _litellm(directory, upstream, options.litellm),
        }
        systems += [stack.enter_context(peers[name]) for name in options.peers.split(",") if name]
        for system in systems:
            for load in LOADS:
                system.sizes[load.name] = require_whole_answer(system, load)
                measure(directory, system, load, seconds=2)
        for load in LOADS:
            sent = load if load.delay_seconds else replace(load, connections=options.connections)
            for _ in range(options.rounds):
                for system in systems:
                    figures = measure(directory, system, sent, seconds=options.seconds)
                    system.figures.setdefault(load.name, []).append(figures)
        _print_figures(systems)
        if options.checkout is not None:
            _print_pairs(*systems[:2])
        _print_budget({system.name: system for system in systems})
        _print_rows(systems)
        _print_ledger(directory, systems[0])


def _median(system: System, load: Load, column: str) -> float:
    return statistics.median(each[column] for each in system.figures[load.name])


def _print_figures(systems: list[System]) -> None:
    print(f"{'load':<24}{'system':<12}" + "".join(f"{name:>11}" for name in _COLUMNS), end="")
    print(f"{'rate ratio':>11}{'CPU ratio':>11}")
    for load in LOADS:
        first: dict[str, float] = {}
        for system in systems:
            found = {name: _median(system, load, name) for name in _COLUMNS}
            first = first or found
            print(f"{load.name:<24}{system.name:<12}", end="")
            print("".join(f"{found[name]:>11,.1f}" for name in _COLUMNS), end="")
            rate = first["per second"] / (found["per second"] or 1)
            print(f"{rate:>11.2f}{found['CPU µs'] / first['CPU µs']:>11.2f}")
    for system in systems:
        if system.name == "direct":
            continue
        print(f"memory of {system.name}: {memory_of(system.pid) / 1e6:,.0f} MB")


def _print_pairs(ours: System, checkout: System) -> None:
    """Prints the CPU time here as a share of the other checkout's, by pair of rounds."""
    for load in LOADS:
        pairs = zip(ours.figures[load.name], checkout.figures[load.name], strict=True)
        ratios = sorted(own["CPU µs"] / (other["CPU µs"] or 1) for own, other in pairs)
        print(
            f"{load.name + ', CPU':<30}{statistics.median(ratios):>7.2f} × checkout     "
            f"pairs from {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )


def _print_budget(systems: dict[str, System]) -> None:
    """Prints what the budget of the hot path bounds: ratios to TensorZero, memory, PostgreSQL."""
    ours, peer = systems["causeway"], systems.get(_PEER)
    plain, stream, _, slow = LOADS
    if peer is not None:
        for name, load, column, bound in (
            ("plain, rate", plain, "per second", "at least 0.75"),
            ("plain, CPU", plain, "CPU µs", "at most 1.4"),
            ("streams of 50 events, rate", stream, "per second", "at least 2"),
            ("added p50 at 8 connections", slow, "p50 ms", "at most 2.5"),
            ("added p99 at 8 connections", slow, "p99 ms", "at most 2.5"),
        ):
            ratio = _median(ours, load, column) / (_median(peer, load, column) or 1)
            print(f"{name:<30}{ratio:>7.2f} × TensorZero   must be {bound}")
    cpu, wal = _median(ours, plain, "PG µs"), _median(ours, plain, "WAL B")
    memory = memory_of(ours.pid) / 1e6
    print(f"{'PostgreSQL a plain request':<30}{cpu:>7.0f} µs CPU       must be at most 350")
    print(f"{'WAL of a plain request':<30}{wal:>7,.0f} bytes")
    print(f"{'memory of one worker':<30}{memory:>7.0f} MB           must be at most 110")


def _print_rows(systems: list[System]) -> None:
    """Prints the rows of the table in ``docs/performance.md``."""
    plain, stream, packets, slow = LOADS
    for system in systems:
        cells = [system.name]
        for load in (plain, stream, packets):
            rate, cpu = _median(system, load, "per second"), _median(system, load, "CPU µs")
            cells += [f"{rate:,.0f}", "" if system.name == "direct" else f"{cpu:,.0f}"]
        cells.append(
            f"{_median(system, slow, 'p50 ms'):.1f}, {_median(system, slow, 'p99 ms'):.1f}"
        )
        cells.append("" if system.name == "direct" else f"{memory_of(system.pid) / 1e6:.0f}")
        print(f"| {' | '.join(cells)} |".replace("  ", " "))


def _print_ledger(directory: Path, system: System) -> None:
    """Prints how the generations ended; exits with 1 if the ledger contradicts itself."""
    assert system.database is not None
    # The last settlements of the last round may still be under way.
    time.sleep(2)
    ended = system.database.fetch(
        "SELECT status, count(*) FROM inference_generation GROUP BY status ORDER BY status"
    )
    print("generations: " + ", ".join(f"{count:,} {status}" for status, count in ended)
          + " (the load generator cuts its last requests off)")  # fmt: skip
    command = [sys.executable, "manage.py", "verify_ledger"]
    environment = {**os.environ, "DATA_DIR": str(directory / "data")}
    if subprocess.run(command, cwd=PROJECT, env=environment).returncode:
        sys.exit("the ledger contradicts itself")


@contextlib.contextmanager
def upstream_provider() -> Iterator[str]:
    """Starts the provider on the second core and yields its address."""
    with reserved_port() as port:
        command = [sys.executable, "-m", "tests.bench.upstream", str(port)]
        with process_on(command, OTHER_CORE):
            wait_for(f"http://127.0.0.1:{port}/v1/models")
            yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def causeway(
    directory: Path, upstream: str, *, crowded: bool = False, checkout: Path | None = None
) -> Iterator[System]:
    """Starts one worker of Causeway on the first core, its database on the second.

    It runs in ``checkout``, with the environment there, if that is given.
    """
    with reserved_port() as port:
        name, project, python = "causeway", PROJECT, sys.executable
        if checkout is not None:
            name, project = "checkout", checkout
            python = str(checkout.resolve() / ".venv/bin/python")
        environment = {
            "DATA_DIR": str(directory / "data"),
            "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
            "LOG_LEVEL": "WARNING",
        }

        def manage(*arguments: str, data: str = "") -> str:
            return subprocess.run(
                [python, "manage.py", *arguments],
                cwd=project,
                env={**os.environ, **environment},
                input=data,
                text=True,
                check=True,
                stdout=subprocess.PIPE,
            ).stdout

        manage("migrate", "--verbosity", "0")
        others = 5_000 if crowded else 0
        manage("import_catalog", "-", data=json.dumps(_catalogue(upstream, others)))
        if crowded:
            manage("shell", "-c", _CROWD)
        manage("set_provider_credential", "bench", data=UPSTREAM_KEY)
        made = json.loads(manage("create_organization", "Bench", "--json"))
        manage("grant_credits", made["organization_id"], "1000000")
        key = made["api_key"]
        command = [python, "manage.py", "serve", "--port", str(port)]
        with process_on(command, SYSTEM_CORE, environment, folder=project) as process:
            wait_for(f"http://127.0.0.1:{port}/readyz")
            database = Database.under(directory / "data")
            database.move(OTHER_CORE)
            url = f"http://127.0.0.1:{port}/api/v1/chat/completions"
            yield System(name, url, process.pid, key, author="bench/", database=database)


@contextlib.contextmanager
def _direct(upstream: str) -> Iterator[System]:
    yield System("direct", f"{upstream}/chat/completions", os.getpid())


@contextlib.contextmanager
def _floor(upstream: str) -> Iterator[System]:
    with reserved_port() as port:
        command = [sys.executable, "-m", "tests.bench.floor", str(port), upstream]
        with process_on(command, SYSTEM_CORE) as process:
            wait_for(f"http://127.0.0.1:{port}/")
            yield System("floor", f"http://127.0.0.1:{port}/v1/chat/completions", process.pid)


@contextlib.contextmanager
def _nginx(directory: Path, upstream: str) -> Iterator[System]:
    if shutil.which("nginx") is None:
        sys.exit("nginx is missing; install it with: apt-get install nginx-light")
    with reserved_port() as port:
        config = directory / "nginx.conf"
        config.write_text(
            f"daemon off; master_process off; pid {directory}/nginx.pid; error_log /dev/null;\n"
            "events { worker_connections 1024; }\n"
            "http { access_log off; upstream provider {"
            f" server {upstream.split('/')[2]}; keepalive 128; }}\n"
            f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://provider;"
            ' proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }\n'
        )
        with process_on(["nginx", "-c", str(config)], SYSTEM_CORE) as process:
            wait_for(f"http://127.0.0.1:{port}/v1/models")
            yield System("nginx", f"http://127.0.0.1:{port}/v1/chat/completions", process.pid)


@contextlib.contextmanager
def _tensorzero(directory: Path, upstream: str, python: Path | None) -> Iterator[System]:
    python = python or _install(directory / "tensorzero", "tensorzero")
    config, address = directory / "tensorzero.toml", directory / "tensorzero.url"
    config.write_text(
        "[gateway]\nobservability.enabled = false\n"
        + "".join(
            f'[models.{load.model}]\nrouting = ["bench"]\n[models.{load.model}.providers.bench]\n'
            f'type = "openai"\nmodel_name = "{load.model}"\napi_base = "{upstream}/"\n'
            'api_key_location = "none"\n'
            for load in LOADS
        )
    )
    command = [str(python), "-c", _TENSORZERO, str(config), str(address)]
    with process_on(command, SYSTEM_CORE) as process:
        while not address.exists() and process.poll() is None:
            time.sleep(0.2)
        url = f"{address.read_text()}/chat/completions"
        yield System("tensorzero", url, process.pid, author="tensorzero::model_name::")


@contextlib.contextmanager
def _portkey(directory: Path, upstream: str, folder: Path | None) -> Iterator[System]:
    with reserved_port() as port:
        if folder is None:
            folder = directory / "portkey"
            folder.mkdir()
            install = ["npm", "install", "--silent", "--prefix", str(folder), "@portkey-ai/gateway"]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        program = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
        command = ["node", str(program), f"--port={port}", "--headless"]
        with process_on(command, SYSTEM_CORE) as process:
            wait_for(f"http://127.0.0.1:{port}/")
            headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream}
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            yield System("portkey", url, process.pid, headers=headers)


@contextlib.contextmanager
def _litellm(directory: Path, upstream: str, program: Path | None) -> Iterator[System]:
    with reserved_port() as port:
        if program is None:
            program = _install(directory / "litellm", "litellm[proxy]").with_name("litellm")
        config = directory / "litellm.yaml"
        models = [
            {
                "model_name": load.model,
                "litellm_params": {
                    "model": f"openai/{load.model}", "api_base": upstream, "api_key": UPSTREAM_KEY,
                },
            }
            for load in LOADS
        ]  # fmt: skip
        config.write_text(
            json.dumps({"model_list": models, "general_settings": {"master_key": "sk-bench"}})
        )
        command = [
            str(program), "--config", str(config), "--port", str(port),
            "--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False",
        ]  # fmt: skip
        with process_on(command, SYSTEM_CORE, {"LITELLM_LOG": "ERROR"}) as process:
            wait_for(f"http://127.0.0.1:{port}/health/liveliness")
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            yield System("litellm", url, process.pid, "sk-bench")


def _install(venv: Path, package: str) -> Path:
    """Installs a package into a separate environment and returns its Python."""
    subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", str(venv)], check=True)
    python = venv / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), package],
        check=True,
    )
    return python


def _request(system: System, load: Load) -> tuple[dict[str, str], bytes]:
    body: dict[str, Any] = {
        "model": f"{system.author}{load.model}",
        "messages": [{"role": "user", "content": "one two three four"}],
    }
    if load.stream:
        body["stream"] = True
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {system.key}",
        **system.headers,
    }
    return headers, json.dumps(body).encode()


def require_whole_answer(system: System, load: Load) -> int:
    """Asks once; returns the bytes of the answer's body, or exits if any part of it is missing."""
    headers, body = _request(system, load)
    try:
        with urllib.request.urlopen(
            urllib.request.Request(system.url, body, headers), timeout=30
        ) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    expected = [b"word0 ", b"word49 ", b"[DONE]"] if load.stream else [b"one two three four"]
    if missing := [part for part in expected if part not in text]:
        # A peer may not stream at all, for instance; its figures show it as failed.
        print(f"{system.name}, {load.name}: {missing} missing in {text[:300]!r}", file=sys.stderr)
        if system.name == "causeway":
            sys.exit(1)
    return len(text)


def measure(directory: Path, system: System, load: Load, *, seconds: int) -> dict[str, float]:
    """Runs the load generator once and returns the figures of the system."""
    headers, body = _request(system, load)
    script = directory / "load.lua"
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = {json.dumps(body.decode())}\n'
        + "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in headers.items())
    )
    database = system.database
    before, idle_before = cpu_of(system.pid), _idle_of(OTHER_CORE)
    stored_before = (database.cpu(), database.wal()) if database else (0.0, 0)
    output = subprocess.run(
        ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "--latency", "--timeout", "30s",
         "-s", str(script), system.url],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    spent, idle = cpu_of(system.pid) - before, _idle_of(OTHER_CORE) - idle_before
    stored = (database.cpu(), database.wal()) if database else (0.0, 0)
    load_figures = parse_load(output)
    count, elapsed, failed = load_figures.count, load_figures.seconds, load_figures.failed
    if load_figures.read < _WHOLE_SHARE * count * system.sizes[load.name]:
        print(f"{system.name}, {load.name}: answers are incomplete\n{output}", file=sys.stderr)
        failed = count
    latency = [each - load.delay_seconds for each in (load_figures.p50, load_figures.p99)]
    return {
        "per second": count / elapsed,
        "CPU µs": spent / max(count, 1) * 1e6,
        "p50 ms": latency[0] * 1000,
        "p99 ms": latency[1] * 1000,
        "failed": float(failed),
        "busy %": spent / elapsed * 100,
        "other %": (1 - idle / elapsed) * 100,
        "PG µs": (stored[0] - stored_before[0]) / max(count, 1) * 1e6,
        "WAL B": (stored[1] - stored_before[1]) / max(count, 1),
    }


@dataclass(frozen=True)
class LoadFigures:
    """What ``wrk`` reports: answers, seconds, bytes; the latency in seconds; what failed."""

    count: int
    seconds: float
    read: float
    p50: float
    p99: float
    failed: int

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def parse_load(output: str) -> LoadFigures:
    """Reads the report of ``wrk --latency``; refusals and broken connections have failed."""
    match, read = _REQUESTS.search(output), _READ.search(output)
    if match is None or read is None:
        raise AssertionError(output)
    latency = {share: float(value) * _SECONDS[unit]
               for share, value, unit in _LATENCY.findall(output)}  # fmt: skip
    bad, broken = _BAD.search(output), _BROKEN.search(output)
    failed = (int(bad[1]) if bad else 0) + sum(map(int, broken.groups() if broken else ()))
    return LoadFigures(
        int(match[1]),
        float(match[2]),
        float(read[1]) * _UNITS[read[2]],
        latency.get("50", 0.0),
        latency.get("99", 0.0),
        failed,
    )


def _idle_of(core: int) -> float:
    """Returns the seconds for which a core had nothing to do since the machine started."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            fields = line.split()
            return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    raise AssertionError(core)


def _catalogue(upstream: str, others: int) -> dict[str, Any]:
    """Returns the models of the loads, and ``others`` more models with four endpoints each."""
    names = {f"bench/{load.model}": load.model for load in LOADS}
    names |= {f"bench/{name}": name for name in ("bench-drip", "bench-steps")}
    crowd = [f"crowd/model-{number}" for number in range(others)]
    return {
        "providers": [
            {
                "slug": "bench", "name": "Bench", "dialect": "openai", "base_url": upstream,
                "data_policy": {"training": False, "retains_prompts": False},
            }
        ],
        "models": [
            {
                "id": name, "canonical_slug": name, "name": name, "created": 0,
                "context_length": 8192,
                "architecture": {
                    "input_modalities": ["text"], "output_modalities": ["text"],
                    "modality": "text->text",
                },
            }
            for name in (*names, *crowd)
        ],
        "endpoints": [
            {
                "model": name, "provider": "bench", "upstream_model_id": upstream_model,
                "pricing": {"prompt": "0.0000005", "completion": "0.0000015"},
            }
            for name, upstream_model in [
                *names.items(),
                *((name, f"{name}-{place}") for name in crowd for place in range(4)),
            ]
        ],
    }  # fmt: skip


@contextlib.contextmanager
def process_on(
    command: list[str],
    core: int,
    environment: dict[str, str] | None = None,
    *,
    folder: Path = PROJECT,
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()


def wait_for(url: str, *, pause: float = 0.2) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            pass
        else:
            return
        time.sleep(pause)
    sys.exit(f"{url} does not answer")


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds that all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int:
    """Returns the resident memory of a process in bytes."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


if __name__ == "__main__":
    main()
