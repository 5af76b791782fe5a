"""Tests embeddings in OpenAI's dialect."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from catalog.dialects import openai
from catalog.dialects.base import Call, InvalidReply, Operation, ProviderFailure
from catalog.pricing import Usage
from config.credentials import Secret

VECTOR = {"object": "embedding", "index": 0, "embedding": [0.1, -2e-05]}


def body(**fields: Any) -> bytes:
    usage = {"prompt_tokens": 8, "total_tokens": 8}
    base = {"object": "list", "model": "deployed", "data": [VECTOR], "usage": usage}
    return json.dumps({**base, **fields}).encode()


def test_build_posts_embeddings_to_their_own_path() -> None:
    call = Call(
        operation=Operation.EMBEDDINGS,
        base_url="https://llm.example.com/v1",
        model="deployed",
        secret=Secret("secret"),
        fields={"input": ["a"], "dimensions": 3},
    )
    request = openai.build(call)
    assert request.url == "https://llm.example.com/v1/embeddings"
    assert json.loads(request.body or b"") == {"input": ["a"], "dimensions": 3, "model": "deployed"}


def test_voyage_gets_its_own_names() -> None:
    fields = {"input": ["a"], "dimensions": 256, "encoding_format": msgspec.Raw(b'"float"')}
    call = Call(
        operation=Operation.EMBEDDINGS,
        base_url="https://api.voyageai.com/v1",
        model="voyage-4",
        secret=Secret("secret"),
        fields={**fields, "input_type": "query", "user": "pseudonym"},
    )
    assert json.loads(openai.build(call).body) == {
        "input": ["a"],
        "input_type": "query",
        "model": "voyage-4",
        "output_dimension": 256,
    }


@pytest.mark.parametrize("embedding", [[0.1, 2], [], "AAAA", ""])
def test_parse_reply_reads_the_vectors_and_the_prompt_usage(embedding: Any) -> None:
    data = [{**VECTOR, "embedding": embedding}, VECTOR]
    reply = openai.parse_reply(Operation.EMBEDDINGS, body(data=data, id="emb-1"))
    assert reply.usage == Usage(prompt=8, completion=0)
    assert (reply.model, reply.upstream_id) == ("deployed", "emb-1")
    # An answer without output and finish reason costs nothing, so the parser sets a reason.
    assert (reply.finish_reason, reply.output_bytes) == ("stop", 0)
    assert json.loads(bytes(reply.fields["data"])) == data


@pytest.mark.parametrize(
    "usage", [None, {}, {"total_tokens": 8.5}, {"prompt_tokens": -1}, {"prompt_tokens": "x"}, 5, []]
)
def test_parse_reply_ignores_an_invalid_usage(usage: Any) -> None:
    assert openai.parse_reply(Operation.EMBEDDINGS, body(usage=usage)).usage is None


def test_parse_reply_ignores_the_completion_tokens_of_embeddings() -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 17}
    read = openai.parse_reply(Operation.EMBEDDINGS, body(usage=usage)).usage
    assert read == Usage(prompt=8, completion=0)


@pytest.mark.parametrize(
    "data", [None, [], {}, "x", [5], [{}], [{"embedding": None}], [{"embedding": 5}], [VECTOR, {}]]
)
def test_parse_reply_refuses_a_reply_without_vectors(data: Any) -> None:
    with pytest.raises(InvalidReply):
        openai.parse_reply(Operation.EMBEDDINGS, body(data=data))


def test_parse_reply_refuses_the_reply_of_another_operation() -> None:
    chat = {"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 1}}
    with pytest.raises(InvalidReply):
        openai.parse_reply(Operation.EMBEDDINGS, json.dumps(chat).encode())
    with pytest.raises(InvalidReply):
        openai.parse_reply(Operation.CHAT, body())


def test_parse_reply_raises_an_error_inside_a_200() -> None:
    with pytest.raises(ProviderFailure):
        openai.parse_reply(Operation.EMBEDDINGS, body(error={"message": "no"}))
