"""Servers and gateways that nobody here wrote as the upstreams of private endpoints.

Their packages do not fit beside those of the tests: ``python -m tests.contract.clients servers``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest
from django.core.management import call_command

from tests.support.contract.clients import MakeOpenAI
from tests.support.factories import Tenant
from tests.support.upstreams.foreign import (
    MASTER_KEY,
    SERVERS,
    serve_litellm,
    serve_mlx,
    serve_tensorzero,
)
from tests.support.upstreams.llama import (
    MESSAGES,
    PROMPT_TOKENS,
    SECRET,
    activate,
    behind_tls,
    serve_plain_llama,
)

ASKED: Final[dict[str, Any]] = {
    "model": "acme/tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0
}  # fmt: skip
pytestmark = pytest.mark.skipif(
    SERVERS not in os.environ, reason="needs `python -m tests.contract.clients servers`"
)


GATEWAYS: Final = ("litellm", "tensorzero")


@pytest.fixture(scope="module")
def upstream(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Yields what a private endpoint states of a server, or of a gateway before llama.cpp's."""
    directory = tmp_path_factory.mktemp("servers")
    with contextlib.ExitStack() as stack:
        path, model = "/v1", "tiny"
        if request.param == "mlx":
            plain, model = stack.enter_context(serve_mlx(directory)), "default_model"
        else:
            llama = stack.enter_context(serve_plain_llama(directory, SECRET))
            serve = serve_litellm
            if request.param == "tensorzero":
                serve, path, model = serve_tensorzero, "/openai/v1", "tensorzero::model_name::tiny"
            plain = stack.enter_context(serve(directory, llama, SECRET))
        address = stack.enter_context(behind_tls(plain))
        yield {"base_url": f"{address}{path}", "upstream_model_id": model}


@pytest.fixture
def client(
    server: str, upstream: dict[str, str], tenant: Tenant, openai_client: MakeOpenAI
) -> openai.OpenAI:
    activate(server, tenant, **upstream, key=MASTER_KEY)
    return openai_client(tenant.api_key)


@pytest.mark.parametrize(
    ("upstream", "prompt_tokens"),
    # mlx has no token at the beginning.
    [*((each, PROMPT_TOKENS) for each in GATEWAYS), ("mlx", PROMPT_TOKENS - 1)],
    indirect=["upstream"],
)
def test_a_validated_server_answers_and_streams_with_its_usage(
    client: openai.OpenAI, prompt_tokens: int
) -> None:
    whole = client.chat.completions.create(**ASKED)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (prompt_tokens, 12)
    assert (whole.model, whole.choices[0].finish_reason) == ("acme/tiny", "length")
    with client.chat.completions.create(**ASKED, stream=True) as stream:
        chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (
        prompt_tokens,
        12,
    )
    call_command("verify_ledger")


@pytest.mark.parametrize("upstream", GATEWAYS, indirect=True)
def test_a_prompt_that_is_too_long_is_the_callers_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="acme/tiny", messages=[{"role": "user", "content": "x" * 600}]
        )
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["metadata"]["error_type"] == "context_length_exceeded"
    # Nobody's health has suffered.
    assert client.chat.completions.create(**ASKED).usage is not None
