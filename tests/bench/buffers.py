"""Measures that a worker's memory grows by what it counts: python -m tests.bench.buffers

One worker serves callers who read a thousand bytes a second. Each case makes the worker hold as
much as its budgets allow, by another way. Prints for each case:

* by how many MB the worker's resident memory grew at its peak;
* how many MB ``causeway_buffered_bytes`` said then;
* the highest difference between the growth and 1.5 times what was said, which should be below 20;
* the statuses of the answers; 0 counts connections that ended without one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter, deque
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bench.__main__ import (
    OTHER_CORE,
    PROJECT,
    causeway,
    memory_of,
    process_on,
    upstream_provider,
    wait_for,
)
from tests.bench.database import work_directory
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.pdf_files import PLUGIN, make_paper
from tests.support.machine.ports import reserved_port

_CALLERS: Final = 80
_SECONDS: Final = 15.0
_PAUSE: Final = 0.1
# A little longer than a worker takes to publish a gauge.
_PUBLISHED: Final = 0.3
# How much more than what is counted a worker may take.
_FACTOR: Final = 1.5
_CHAT: Final = "/api/v1/chat/completions"
_MESSAGES: Final = "/api/v1/messages"
_RESPONSES: Final = "/api/v1/responses"
# Its callers join the first of them, so none was answered before.
_JOINED: Final = "joined"
_JSON: Final = "application/json"
# A gauge is published a tenth of a second after a change.
_SAMPLES: Final = 5
# The first answers of /metrics load what they need.
_WARM_SAMPLES: Final = 20


class Request(NamedTuple):
    """A request whose answer is read slowly, or which is sent ahead of the others."""

    body: bytes
    path: str = _CHAT
    kind: str = _JSON
    headers: str = ""


class Worker(NamedTuple):
    host: str
    port: int
    pid: int
    key: str


def _chat(model: str, text: str = "one two", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": f"hostile/{model}", "messages": messages, **fields}).encode()


def _form(file: bytes) -> Request:
    mark = "a" * 32
    head = (
        f'--{mark}\r\nContent-Disposition: form-data; name="model"\r\n\r\nhostile/heard\r\n'
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    body = head.encode() + file + f"\r\n--{mark}--\r\n".encode()
    return Request(body, "/api/v1/audio/transcriptions", f"multipart/form-data; boundary={mark}")


def _make_audio(file: bytes) -> Request:
    audio = {"data": base64.b64encode(file).decode(), "format": "wav"}
    body = {"model": "hostile/heard", "input_audio": audio}
    return Request(json.dumps(body).encode(), "/api/v1/audio/transcriptions")


def _repeated(request: Request) -> Request:
    return request._replace(headers=f"Idempotency-Key: {len(request.body)}\r\n")


def _cached(request: Request) -> Request:
    return request._replace(headers="X-OpenRouter-Cache: true\r\n")


def _make_pdf() -> Request:
    paper = make_paper(*["word " * 2_000] * 300)
    data = f"data:application/pdf;base64,{base64.b64encode(paper).decode()}"
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
    messages = [{"role": "user", "content": [part]}]
    body = {"model": "hostile/slow", "plugins": [PLUGIN], "messages": messages}
    return Request(json.dumps(body).encode())


def _make_cases() -> dict[str, Request]:
    whole, stream = Request(_chat("large")), Request(_chat("large", stream=True))
    native = json.dumps({**json.loads(_chat("large")), "max_tokens": 64}).encode()
    named = Request(native, _MESSAGES)
    items = Request(b'{"model": "hostile/large", "input": "one two"}', _RESPONSES)
    return {
        "whole": whole,
        "stream": stream,
        "kept": _repeated(whole),
        "kept-stream": _repeated(stream),
        _JOINED: whole._replace(headers="Idempotency-Key: joined\r\n"),
        "cached": _cached(whole),
        "cached-stream": _cached(stream),
        "messages": named,
        "cached-messages": _cached(named),
        "responses": items,
        "cached-responses": _cached(items),
        "redacted": Request(_chat("slow", "a" * 99_000)),
        "pdf": _make_pdf(),
        "form": _form(b"RIFF" + bytes(19_000_000)),
        "audio": _make_audio(b"RIFF" + bytes(14_000_000)),
        "body": Request(_chat("slow", "b" * 19_000_000)),
    }


async def _ask(worker: Worker, request: Request, *, is_slow: bool) -> int:
    """Sends a request and reads its answer; returns the status."""
    line = socket.socket()
    if is_slow:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    writer = None
    try:
        await asyncio.get_running_loop().sock_connect(line, (worker.host, worker.port))
        reader, writer = await asyncio.open_connection(sock=line, limit=1024)
        writer.write(
            f"POST {request.path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {worker.key}\r\nContent-Type: {request.kind}\r\n"
            f"{request.headers}Content-Length: {len(request.body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        writer.write(request.body)
        status = int((await reader.readline()).split()[1])
        if status == 200 and is_slow:
            while await reader.read(1000):
                await asyncio.sleep(1)
        while await reader.read(1 << 18):
            pass
    except (OSError, IndexError):
        return 0
    else:
        return status
    finally:
        if writer is not None:
            writer.transport.abort()


def _read_counted(worker: Worker) -> int:
    return int(read_counter(f"http://{worker.host}:{worker.port}", "causeway_buffered_bytes"))


async def _wait_until_free(worker: Worker) -> None:
    """Waits until the worker says that it holds nothing."""
    free = 0
    while free < _SAMPLES:
        free = 0 if await asyncio.to_thread(_read_counted, worker) else free + 1
        await asyncio.sleep(_PAUSE)


async def _measure(worker: Worker, name: str, request: Request, seconds: float) -> None:
    await _wait_until_free(worker)
    # The first one is kept, and what it loads stays.
    first = request._replace(headers="") if name == _JOINED else request
    if (status := await _ask(worker, first, is_slow=False)) != 200:
        raise SystemExit(f"{name}: the gateway answers {status}")
    await _wait_until_free(worker)
    before = memory_of(worker.pid)
    calls = [asyncio.create_task(_ask(worker, request, is_slow=True)) for _ in range(_CALLERS)]
    counted: deque[int] = deque(maxlen=_SAMPLES)
    peak, said, excess = 0, 0, float("-inf")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        grown = memory_of(worker.pid) - before
        # The gauge says of a change what memory has at once.
        await asyncio.sleep(_PUBLISHED)
        counted.append(await asyncio.to_thread(_read_counted, worker))
        excess = max(excess, grown - _FACTOR * max(counted))
        if grown > peak:
            peak, said = grown, max(counted)
    statuses = Counter(call.result() if call.done() else 200 for call in calls)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    shown = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    print(
        f"{name:<16}{peak / 1e6:>9,.0f}{said / 1e6:>9,.0f}{excess / 1e6:>9,.0f}  {shown}",
        flush=True,
    )


def _make_catalogue(address: str) -> dict[str, Any]:
    provider = {
        "slug": "hostile", "name": "hostile", "dialect": "openai", "base_url": address,
        "data_policy": {"training": False, "retains_prompts": False},
    }  # fmt: skip
    outputs = {"large": "text", "slow": "text", "heard": "transcription"}
    return {
        "providers": [provider],
        "models": [
            {
                "id": f"hostile/{name}", "canonical_slug": f"hostile/{name}", "name": name,
                "created": 0, "context_length": 100_000_000,
                "architecture": {
                    "input_modalities": ["text" if output == "text" else "audio"],
                    "output_modalities": [output],
                    "modality": f"text->{output}",
                },
            }
            for name, output in outputs.items()
        ],
        "endpoints": [
            {
                "model": f"hostile/{name}", "provider": "hostile", "upstream_model_id": name,
                "pricing": {"prompt": "0.0000000005", "completion": "0.0000000005"},
            }
            for name in outputs
        ],
    }  # fmt: skip


# Every workspace keeps answers; the second organization replaces each "a" by a long label.
_RULES: Final = """
from accounts.models import Guardrail, Workspace
for workspace in Workspace.objects.all():
    workspace.edit(is_answer_storage_enabled=True)
workspace = Workspace.objects.get(organization_id={!r})
entry = dict(pattern="a", action="redact", label="L" * {})
Guardrail.objects.edit_workspace_default(workspace, content_filters=[entry])
"""


def _prepare(directory: Path, address: str, label: int) -> tuple[str, str]:
    """Adds the models and two organizations; returns their keys."""
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

    manage("import_catalog", "-", data=json.dumps(_make_catalogue(address)))
    manage("set_provider_credential", "hostile", data="hostile-key-0123456789")
    made = [json.loads(manage("create_organization", name, "--json")) for name in ("One", "Two")]
    for each in made:
        manage("grant_credits", each["organization_id"], "1000000")
    manage("shell", "-c", _RULES.format(made[1]["organization_id"], label))
    return made[0]["api_key"], made[1]["api_key"]


def main() -> None:
    cases = _make_cases()
    parser = argparse.ArgumentParser(prog="python -m tests.bench.buffers", description=__doc__)
    parser.add_argument("--only", default=",".join(cases), metavar="NAMES")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="for each case")
    parser.add_argument("--label", type=int, default=64, help="characters of the label")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        upstream = stack.enter_context(upstream_provider())
        system = stack.enter_context(causeway(directory, upstream))
        port = stack.enter_context(reserved_port())
        command = [sys.executable, "-m", "tests.bench.hostile", str(port)]
        stack.enter_context(process_on(command, OTHER_CORE))
        wait_for(f"http://127.0.0.1:{port}/")
        keys = _prepare(directory, f"http://127.0.0.1:{port}/v1", options.label)
        address = urllib.parse.urlsplit(system.url)
        plain, filtered = (
            Worker(address.hostname or "", address.port or 80, system.pid, key) for key in keys
        )
        for _ in range(_WARM_SAMPLES):
            _read_counted(plain)
        print(f"{'case':<16}{'grown MB':>9}{'said MB':>9}{'excess':>9}  statuses", flush=True)
        for name in options.only.split(","):
            worker = filtered if name == "redacted" else plain
            asyncio.run(_measure(worker, name, cases[name], options.seconds))


if __name__ == "__main__":
    main()
