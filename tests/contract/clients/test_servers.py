"""Servers and gateways that nobody here wrote as the upstreams of private endpoints.

Their packages do not fit beside those of the tests, nor all beside each other:
``python -m tests.contract.clients servers transformers infinity``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest
from django.core.management import call_command

from tests.support.contract.clients import MakeOpenAI, MakeOpenRouter, pieces_of, tokens_of
from tests.support.factories import Tenant
from tests.support.operators.commands import run_json
from tests.support.upstreams.foreign import (
    MASTER_KEY,
    SERVERS,
    serve_infinity,
    serve_litellm,
    serve_mlx,
    serve_tensorzero,
    serve_transformers,
)
from tests.support.upstreams.llama import (
    ASKED,
    PROMPT_TOKENS,
    SECRET,
    activate,
    behind_tls,
    serve_plain_llama,
)

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
        elif request.param == "transformers":
            plain = stack.enter_context(serve_transformers(directory))
            model = str(directory / "tiny")
        elif request.param == "infinity":
            plain, path = stack.enter_context(serve_infinity(directory)), ""
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
    # The folder's model has no token at the beginning.
    [
        *((each, PROMPT_TOKENS) for each in GATEWAYS),
        *((each, PROMPT_TOKENS - 1) for each in ("mlx", "transformers")),
    ],
    indirect=["upstream"],
)
def test_a_validated_server_answers_and_streams_with_its_usage(
    client: openai.OpenAI, prompt_tokens: int
) -> None:
    whole = client.chat.completions.create(**ASKED)
    assert tokens_of(whole.usage) == (prompt_tokens, 12)
    assert (whole.model, whole.choices[0].finish_reason) == ("acme/tiny", "length")
    chunks = pieces_of(client.chat.completions.create(**ASKED, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert tokens_of(chunks[-1].usage) == (prompt_tokens, 12)
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


@pytest.mark.parametrize("upstream", ["transformers"], indirect=True)
def test_responses_of_transformers_are_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "acme/tiny", "input": "Say something.", "max_output_tokens": 12, "temperature": 0,
    }  # fmt: skip
    whole = client.responses.create(**asked)
    last = pieces_of(client.responses.create(**asked, stream=True))[-1]
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (PROMPT_TOKENS - 1, 12)
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage


@pytest.mark.parametrize("upstream", ["infinity"], indirect=True)
def test_embeddings_of_infinity_are_validated_and_counted(
    server: str, upstream: dict[str, str], tenant: Tenant, openai_client: MakeOpenAI
) -> None:
    fields = {**upstream, "upstream_model_id": "embedder"}
    activate(server, tenant, **fields, key=MASTER_KEY, output_modalities=["embeddings"])
    answer = openai_client(tenant.api_key).embeddings.create(
        model="acme/tiny", input=["tea", "water"]
    )
    assert [each.index for each in answer.data] == [0, 1]
    assert [len(each.embedding) for each in answer.data] == [64, 64]
    assert answer.usage.prompt_tokens == len("tea") + len("water")
    call_command("verify_ledger")


@pytest.mark.parametrize("upstream", ["infinity"], indirect=True)
def test_rerank_of_infinity_is_validated_and_counted(
    server: str, upstream: dict[str, str], tenant: Tenant, openrouter_client: MakeOpenRouter
) -> None:
    fields = {**upstream, "upstream_model_id": "ranker"}
    activate(server, tenant, **fields, key=MASTER_KEY, output_modalities=["rerank"])
    documents = ["green tea", "black coffee", "water"]
    answer = openrouter_client(tenant.api_key).rerank.rerank(
        model="acme/tiny", query="tea", documents=documents, top_n=2
    )
    assert [each.document.text for each in answer.results] == [
        documents[each.index] for each in answer.results
    ]
    assert len(answer.results) == 2
    # Each pair has the query; blanks are no tokens.
    pairs = ("tea" + text.replace(" ", "") for text in documents)
    assert answer.usage.total_tokens == sum(map(len, pairs))
    call_command("verify_ledger")


@pytest.mark.parametrize("upstream", [*GATEWAYS, "mlx", "transformers", "infinity"], indirect=True)
def test_a_server_is_a_provider_of_the_catalogue(
    server: str, upstream: dict[str, str], tenant: Tenant, openai_client: MakeOpenAI
) -> None:
    embeds = not upstream["base_url"].endswith("/v1")
    model = "embedder" if embeds else upstream["upstream_model_id"]
    found, _ = run_json("connect", upstream["base_url"], "--key", MASTER_KEY, "--models", model)
    client, [slug] = openai_client(tenant.api_key), found["models"]
    if embeds:
        assert client.embeddings.create(model=slug, input="tea").usage.prompt_tokens == 3
    else:
        told = client.chat.completions.create(**{**ASKED, "model": slug})
        assert told.usage is not None
        assert told.usage.completion_tokens == 12
    call_command("verify_ledger")
