"""Public SDKs as clients. Each response that they receive must fit the OpenAPI document."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openrouter import OpenRouter

from config.local.certificates import ensure_certificates
from tests.support import factories
from tests.support.contract import document
from tests.support.contract.clients import NO_AUTHORITIES, MakeOpenAI, MakeOpenRouter, Serve
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.upstreams.speaking import ANSWERS, EVENTS, Upstream
from tests.support.upstreams.tls import serving


@pytest.fixture
def openrouter_client(server: str) -> Iterator[MakeOpenRouter]:
    """Returns a function that creates a client of the public SDK for a key, without retries."""
    with contextlib.ExitStack() as stack:

        def make(key: str) -> OpenRouter:
            transport = stack.enter_context(
                httpx.Client(
                    timeout=30,
                    event_hooks={"response": [document.check_answer]},
                    verify=NO_AUTHORITIES,
                )
            )
            return OpenRouter(
                api_key=key,
                server_url=f"{server}/api/v1",
                client=transport,
                # An async client that the SDK creates is closed at garbage collection, in the
                # event loop that runs at that moment.
                async_client=httpx.AsyncClient(verify=NO_AUTHORITIES),
                retry_config=None,
            )

        yield make


@pytest.fixture
def manager(openrouter_client: MakeOpenRouter, tenant: Tenant) -> OpenRouter:
    return openrouter_client(tenant.management_key)


@pytest.fixture
def caller(openrouter_client: MakeOpenRouter, tenant: Tenant) -> OpenRouter:
    return openrouter_client(tenant.api_key)


@pytest.fixture
def openai_client(server: str) -> Iterator[MakeOpenAI]:
    """Returns a function that creates a client of the ``openai`` SDK for a key, without retries."""
    with contextlib.ExitStack() as stack:

        def make(key: str) -> openai.OpenAI:
            transport = openai.DefaultHttpxClient(
                timeout=30, event_hooks={"response": [document.check_answer]}, verify=NO_AUTHORITIES
            )
            return stack.enter_context(
                openai.OpenAI(
                    api_key=key, base_url=f"{server}/api/v1", max_retries=0, http_client=transport
                )
            )

        yield make


@pytest.fixture
def client(openai_client: MakeOpenAI, tenant: Tenant) -> openai.OpenAI:
    return openai_client(tenant.api_key)


@pytest.fixture
def maker() -> Iterator[Upstream]:
    """Starts an upstream that uses the Anthropic format."""
    made = Upstream("anthropic", answer=ANSWERS["anthropic"], events=EVENTS["anthropic"])
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(made, certificates.server_context()) as made.server:
        yield made


@pytest.fixture
def serve(tenant: Tenant, simulator: Simulator) -> Serve:
    """Returns a function that publishes a model with a behaviour of the simulator.

    The tenant calls the model with its own credential, so a call costs no credits.
    """

    def put(behaviour: str, *outputs: str) -> str:
        provider = factories.make_provider("acme", name="Acme AI", base_url=simulator.base_url)
        model = factories.make_model(
            "acme/falcon",
            input_modalities=["text", "image", "file"],
            output_modalities=[*(outputs or ("text", "embeddings"))],
        )
        factories.make_endpoint(model, provider, upstream_model_id=behaviour)
        factories.make_credential(tenant, provider)
        return "acme/falcon"

    return put
