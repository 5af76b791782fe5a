"""A real llama.cpp server as the upstream of a private endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import openai
import pytest
import requests

from config.local.simulator.certificates import ensure_certificates
from tests.support import factories
from tests.support.contract.clients import MakeOpenAI
from tests.support.factories import Tenant
from tests.support.upstreams.tiny_model import write_tiny_model

xllamacpp = pytest.importorskip("xllamacpp", reason="there is no wheel for this platform")

SECRET: Final = "sk-tiny-0123456789"
MESSAGES: Final = [{"role": "user", "content": "Say something."}]
# One token per character of the messages after the chat template, and one at the beginning.
PROMPT_TOKENS: Final = len("user: Say something.\nassistant:") + 1


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts a llama.cpp server behind TLS and yields its base URL."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(path)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {"tiny"}
    params.api_keys = [SECRET]
    params.port = 0
    params.n_ctx = 512
    params.n_parallel = 1
    params.n_threads_http = 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)
    assert address.hostname is not None
    assert address.port is not None
    with _behind_tls(address.hostname, address.port) as port:
        yield f"https://127.0.0.1:{port}/v1"
    # The threads of the server end when its last reference is deleted.
    del server


@contextlib.contextmanager
def _behind_tls(host: str, port: int) -> Iterator[int]:
    """Terminates TLS for a plain server, in another thread; yields the port."""
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
    assert ready.wait(10)
    loop, own_port = bound
    try:
        yield own_port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def client(server: str, llama: str, tenant: Tenant, openai_client: MakeOpenAI) -> openai.OpenAI:
    """Returns a client of a tenant with an active private endpoint on the llama.cpp server."""
    factories.make_provider("acme", name="Acme AI")
    model = factories.make_model("acme/tiny")
    headers = {"Authorization": f"Bearer {tenant.management_key}"}
    stored = requests.post(
        f"{server}/api/v1/byok",
        headers=headers,
        json={"provider": "acme", "key": SECRET},
        timeout=30,
    )
    assert stored.status_code == 201, stored.text
    created = requests.post(
        f"{server}/api/v1/private-endpoints",
        headers=headers,
        json={
            "model_permaslug": model.canonical_slug,
            "provider_slug": "acme",
            "upstream_model_id": "tiny",
            "base_url": llama,
            "pricing": {"prompt": "0.000001", "completion": "0.000002"},
            "activate": {"workspace_id": str(tenant.workspace.pk)},
        },
        timeout=30,
    )
    assert created.status_code == 201, created.text
    assert created.json()["data"]["status"] == "active"
    return openai_client(tenant.api_key)


def test_chat_answers_with_the_usage_of_llama_cpp(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="acme/tiny", messages=MESSAGES, max_tokens=12, temperature=0
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert len(content) == 12
    assert answer.choices[0].finish_reason == "length"
    assert answer.model == "acme/tiny"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == PROMPT_TOKENS
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == PROMPT_TOKENS + 12
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["is_byok"] is True
    assert answer.usage.model_extra["cost_details"]["upstream_inference_cost"] == round(
        PROMPT_TOKENS * 0.000001 + 12 * 0.000002, 9
    )


def test_chat_streams_the_same_text_and_usage(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "acme/tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert len([chunk for chunk in chunks if chunk.choices]) == 14
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == PROMPT_TOKENS
    assert chunks[-1].usage.completion_tokens == 12
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_text_completion_answers_and_streams(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "acme/tiny", "prompt": "Once upon", "max_tokens": 8, "temperature": 0
    }  # fmt: skip
    whole = client.completions.create(**asked)
    assert len(whole.choices[0].text) == 8
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len("Once upon") + 1, 8)
    with client.completions.create(**asked, stream=True) as stream:
        chunks = list(stream)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (10, 8)


def test_a_refusal_of_llama_cpp_is_an_error_of_the_caller(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="acme/tiny", messages=[{"role": "user", "content": "x" * 600}]
        )
    assert caught.value.body == {
        "code": 400,
        "message": "request (618 tokens) exceeds the available context size (512 tokens), "
        "try increasing it",
        "metadata": {
            "error_type": "context_length_exceeded",
            "provider_name": "Acme AI",
            "upstream_status": 400,
            "provider_code": "400",
        },
    }
