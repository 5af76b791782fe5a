"""Measures one gateway worker beside a peer, in the same run: python -m tests.bench

The system under test has the first core; PostgreSQL, the load generator (Debian's ``wrk``) and the
provider (``tests.bench.upstream``: plain HTTP, no delay) share the second. Rounds alternate between
the systems, and medians are printed, because a shared machine drifts. Needs two cores, ``wrk`` and,
for the peer, a package registry.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
SYSTEM_CORE, OTHER_CORE = 0, 1
MODEL = "bench/echo"
_REQUESTS = re.compile(r"(\d+) requests in ([\d.]+)s")
_BAD = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_LATENCY = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m) *$", re.MULTILINE)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass
class System:
    """A running gateway: where it listens, with what key, and the processes that are it."""

    name: str
    url: str
    key: str
    model: str
    pid: int
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--litellm", type=Path, help="an installed litellm, not to install one")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is missing; install it with: apt-get install wrk")
    os.sched_setaffinity(0, {OTHER_CORE})
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="causeway-bench-")))
        upstream = stack.enter_context(_upstream())
        systems = [stack.enter_context(_causeway(directory, upstream))]
        if not options.without_peer:
            systems.append(stack.enter_context(_litellm(directory, upstream, options.litellm)))
        for system in systems:
            for stream in (False, True):
                _load(directory, system, stream=stream, seconds=2, connections=8)
        for _ in range(options.rounds):
            for stream in (False, True):
                for system in systems:
                    figures = _load(
                        directory,
                        system,
                        stream=stream,
                        seconds=options.seconds,
                        connections=options.connections,
                    )
                    system.figures.setdefault("stream" if stream else "plain", []).append(figures)
        for _ in range(options.rounds):
            for system in systems:
                system.figures.setdefault("plain, 8 connections", []).append(
                    _load(directory, system, stream=False, seconds=options.seconds, connections=8)
                )
        _print(systems)


def _print(systems: list[System]) -> None:
    columns = ("per second", "CPU µs", "p50 ms", "p99 ms", "failed")
    print(f"{'system':<12}{'load':<24}" + "".join(f"{name:>12}" for name in columns))
    for load in systems[0].figures:
        rates = []
        for system in systems:
            rounds = system.figures[load]
            medians = [statistics.median(round_[name] for round_ in rounds) for name in columns]
            rates.append(medians[0])
            print(f"{system.name:<12}{load:<24}" + "".join(f"{value:>12,.1f}" for value in medians))
        for system, rate in zip(systems[1:], rates[1:], strict=True):
            print(f"{'':<12}{load:<24}{rates[0] / rate:>11,.1f}x {system.name}")
    for system in systems:
        print(f"{system.name:<12}memory {_memory(system.pid) / 1e6:,.0f} MB")


@contextlib.contextmanager
def _upstream() -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "tests.bench.upstream", str(port)]
    with _process(command, OTHER_CORE, {}):
        _await(f"http://127.0.0.1:{port}/v1/models", {})
        yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def _causeway(directory: Path, upstream: str) -> Iterator[System]:
    port = _free_port()
    environment = {
        "DATA_DIR": str(directory / "data"),
        "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
        "LOG_LEVEL": "WARNING",
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

    manage("migrate", "--verbosity", "0")
    manage("import_catalog", "-", data=json.dumps(_catalogue(upstream)))
    manage("set_provider_credential", "bench", data="bench-key-0000")
    made = json.loads(manage("create_organization", "Bench", "--json"))
    manage("grant_credits", made["organization_id"], "1000000")
    key = made["api_key"]
    command = [sys.executable, "manage.py", "serve", "--port", str(port)]
    with _process(command, SYSTEM_CORE, environment) as process:
        _await(f"http://127.0.0.1:{port}/readyz", {})
        _move_database(OTHER_CORE)
        yield System(
            "causeway",
            f"http://127.0.0.1:{port}/api/v1/chat/completions",
            key,
            MODEL,
            process.pid,
        )


@contextlib.contextmanager
def _litellm(directory: Path, upstream: str, program: Path | None) -> Iterator[System]:
    port = _free_port()
    if program is None:
        venv = directory / "litellm"
        subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", str(venv)], check=True)
        subprocess.run(
            [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(venv),
             "litellm[proxy]"],
            check=True,
        )  # fmt: skip
        program = venv / "bin" / "litellm"
    config = directory / "litellm.yaml"
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{name}",
                "api_base": upstream,
                "api_key": "bench-key-0000",
            },
        }
        for name in ("bench-whole", "bench-chunks")
    ]
    config.write_text(
        json.dumps({"model_list": models, "general_settings": {"master_key": "sk-bench"}})
    )
    command = [
        str(program), "--config", str(config), "--port", str(port),
        "--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False",
    ]  # fmt: skip
    with _process(command, SYSTEM_CORE, {"LITELLM_LOG": "ERROR"}) as process:
        _await(f"http://127.0.0.1:{port}/health/liveliness", {})
        yield System(
            "litellm", f"http://127.0.0.1:{port}/v1/chat/completions", "sk-bench", "", process.pid
        )


def _load(
    directory: Path, system: System, *, stream: bool, seconds: int, connections: int
) -> dict[str, float]:
    """Runs the load generator once and returns the figures of the system meanwhile."""
    upstream_model = "bench-chunks" if stream else "bench-whole"
    model = system.model or upstream_model
    if system.model and stream:
        model = f"{system.model}-stream"
    body = {"model": model, "messages": [{"role": "user", "content": "one two three four"}]}
    if stream:
        body["stream"] = True
    script = directory / "load.lua"
    script.write_text(
        'wrk.method = "POST"\n'
        f"wrk.body = {json.dumps(json.dumps(body))}\n"
        'wrk.headers["Content-Type"] = "application/json"\n'
        f'wrk.headers["Authorization"] = "Bearer {system.key}"\n'
    )
    before = _cpu(system.pid)
    output = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "30s",
         "-s", str(script), system.url],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    spent = _cpu(system.pid) - before
    match = _REQUESTS.search(output)
    assert match is not None, output
    count, elapsed = int(match[1]), float(match[2])
    latency = {
        percentile: float(value) * _SECONDS[unit] * 1000
        for percentile, value, unit in _LATENCY.findall(output)
    }
    bad = _BAD.search(output)
    return {
        "per second": count / elapsed,
        "CPU µs": spent / max(count, 1) * 1e6,
        "p50 ms": latency.get("50", 0.0),
        "p99 ms": latency.get("99", 0.0),
        "failed": float(bad[1]) if bad else 0.0,
    }


def _catalogue(upstream: str) -> dict[str, Any]:
    names = {MODEL: "bench-whole", f"{MODEL}-stream": "bench-chunks"}
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
            for name in names
        ],
        "endpoints": [
            {
                "model": name, "provider": "bench", "upstream_model_id": upstream_model,
                "pricing": {"prompt": "0.0000005", "completion": "0.0000015"},
            }
            for name, upstream_model in names.items()
        ],
    }  # fmt: skip


@contextlib.contextmanager
def _process(
    command: list[str], core: int, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        cwd=PROJECT,
        env={**os.environ, **environment},
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


def _await(url: str, headers: dict[str, str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5)
            return
        time.sleep(0.2)
    sys.exit(f"{url} does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cpu(pid: int) -> float:
    """Returns the CPU seconds that a process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _move_database(core: int) -> None:
    """Puts the running PostgreSQL, which the server under test started, on the other core."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if b"postgres" in (entry / "cmdline").read_bytes().split(b"\0")[0]:
                    os.sched_setaffinity(int(entry.name), {core})


if __name__ == "__main__":
    main()
