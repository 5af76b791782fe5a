"""A real llama.cpp server with a tiny random model, behind TLS, and an endpoint on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import requests

from config.local.certificates import ensure_certificates
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.upstreams.tiny_model import write_tiny_model

SECRET: Final = "sk-tiny-0123456789"
MESSAGES: Final = [{"role": "user", "content": "Say something."}]
# One token per character of the messages after the chat template, and one at the beginning.
PROMPT_TOKENS: Final = len("user: Say something.\nassistant:") + 1
ASKED: Final[dict[str, Any]] = {
    "model": "acme/tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0
}  # fmt: skip

xllamacpp = pytest.importorskip("xllamacpp", reason="there is no wheel for this platform")


@contextlib.contextmanager
def serve_llama(directory: Path, secret: str, *, pooling: str = "") -> Iterator[str]:
    """Starts a server in a directory of its own and yields its base URL.

    ``pooling`` is ``RANK`` for a server that reranks, and ``MEAN`` for one that embeds.
    """
    with serve_plain_llama(directory, secret, pooling=pooling) as url, behind_tls(url) as base_url:
        yield f"{base_url}/v1"


@contextlib.contextmanager
def serve_plain_llama(directory: Path, secret: str, *, pooling: str = "") -> Iterator[str]:
    """Starts a server of plain HTTP and yields its address."""
    path = directory / "tiny.gguf"
    write_tiny_model(path)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {"tiny"}
    params.api_keys = [secret]
    params.port = 0
    params.n_ctx = 512
    params.n_parallel = 1
    params.n_threads_http = 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.verbosity = -1
    if pooling:
        params.embedding = True
        kinds = xllamacpp.llama_pooling_type
        params.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{pooling}")
    server = xllamacpp.Server(params)
    yield server.listening_address
    # The threads of the server end when its last reference is deleted.
    del server


@contextlib.contextmanager
def behind_tls(url: str) -> Iterator[str]:
    """Terminates TLS for a plain server, in another thread; yields the address without a path."""
    address = urlsplit(url)
    host, port = address.hostname, address.port
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(relay(reader, inner_writer))
                group.create_task(relay(inner_reader, writer))
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            # A kept-alive connection is still open at this point.
            writer.transport.abort()
            inner_writer.transport.abort()

    ready = threading.Event()
    stop = asyncio.Event()
    bound: list[Any] = []

    async def main() -> None:
        server = await asyncio.start_server(
            serve, "127.0.0.1", 0, ssl=certificates.server_context(), ssl_shutdown_timeout=1
        )
        bound.extend((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="tls", daemon=True)
    thread.start()
    assert ready.wait(60)
    loop, own_port = bound
    try:
        yield f"https://127.0.0.1:{own_port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive()


def activate(
    server: str,
    tenant: Tenant,
    base_url: str,
    *,
    upstream_model_id: str = "tiny",
    key: str = SECRET,
    **fields: Any,
) -> None:
    """Creates and activates a private endpoint of the tenant on a server of a tiny model."""
    factories.make_provider("acme", name="Acme AI")
    model = factories.make_model("acme/tiny", **fields)
    headers = {"Authorization": f"Bearer {tenant.management_key}"}
    endpoint = {
        "model_permaslug": model.canonical_slug,
        "provider_slug": "acme",
        "upstream_model_id": upstream_model_id,
        "base_url": base_url,
        "pricing": {"prompt": "0.000001", "completion": "0.000002"},
        "activate": {"workspace_id": str(tenant.workspace.pk)},
    }
    bodies = {"byok": {"provider": "acme", "key": key}, "private-endpoints": endpoint}
    for path, body in bodies.items():
        made = requests.post(f"{server}/api/v1/{path}", headers=headers, json=body, timeout=30)
        assert made.status_code == 201, made.text
    assert made.json()["data"]["status"] == "active"
