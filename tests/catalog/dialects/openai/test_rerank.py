"""Tests the rerank of the servers that speak OpenAI's format: Cohere's, Jina's and Voyage's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from catalog.dialects import openai
from catalog.dialects.base import Call, InvalidReply, Operation, ProviderFailure, Ranked
from catalog.pricing import Usage
from config.credentials import Secret

RESULTS = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}]


def call(base_url: str = "https://llm.example.com/v1", **fields: Any) -> Call:
    given = {"query": "q", "documents": ["a", {"text": "b"}], **fields}
    return Call(
        operation=Operation.RERANK,
        base_url=base_url,
        model="deployed",
        secret=Secret("secret"),
        fields={name: msgspec.Raw(json.dumps(value).encode()) for name, value in given.items()},
    )


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://llm.example.com/v1", "https://llm.example.com/v1/rerank"),
        ("https://api.cohere.com/v2", "https://api.cohere.com/v2/rerank"),
        ("https://api.cohere.ai/compatibility/v1", "https://api.cohere.ai/v2/rerank"),
        ("https://x.example/incompatibility/v1", "https://x.example/incompatibility/v1/rerank"),
    ],
)
def test_build_posts_to_the_rerank_beside_the_interface(base_url: str, url: str) -> None:
    request = openai.build(call(base_url))
    assert request.url == url
    assert request.headers["Authorization"] == "Bearer secret"


def test_build_sends_texts_and_nothing_that_the_gateway_applies() -> None:
    image = "data:image/png;base64,AA=="
    documents = ["a", {"text": "b"}, {"text": "c", "image": image}, {"image": image}]
    sent = openai.build(
        call(documents=documents, top_n=1, return_documents=False, user="u", truncation=True)
    )
    assert json.loads(sent.body or b"") == {
        "query": "q",
        "documents": ["a", "b", {"text": "c", "image": image}, {"image": image}],
        "truncation": True,
        "model": "deployed",
    }


def parsed(**fields: Any) -> Any:
    body = json.dumps({"results": RESULTS, **fields}).encode()
    return openai.parse_reply(Operation.RERANK, body)


@pytest.mark.parametrize(
    ("fields", "prompt", "searches"),
    [
        # Jina and llama.cpp; vLLM and Voyage; Cohere; SiliconFlow.
        ({"usage": {"prompt_tokens": 7, "total_tokens": 7}}, 7, 0),
        ({"usage": {"total_tokens": 7}}, 7, 0),
        ({"meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}}, 0, 1),
        ({"meta": {"billed_units": {"search_units": 2.0}}}, 0, 2),
        ({"meta": {"billed_units": {"search_units": 1.5, "input_tokens": 7}}}, 7, 0),
        ({"meta": {"billed_units": None, "tokens": {"input_tokens": 7, "output_tokens": 0}}}, 7, 0),
    ],
)
def test_parse_reply_reads_what_each_format_counts(
    fields: dict[str, Any], prompt: int, searches: int
) -> None:
    reply = parsed(id="r-1", model="m", **fields)
    assert reply.fields == {"results": [Ranked(1, 0.9), Ranked(0, -3.0)]}
    assert (reply.upstream_id, reply.model, reply.finish_reason) == ("r-1", "m", "stop")
    assert reply.usage == Usage(prompt=prompt, completion=0, searches=searches)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"usage": None, "meta": None},
        {"usage": {"total_tokens": "seven"}},
        {"usage": {"total_tokens": -7}},
        {"usage": {"total_tokens": True}},
        {"usage": [7]},
        {"meta": "none"},
    ],
)
def test_a_usage_without_a_count_is_none(fields: dict[str, Any]) -> None:
    assert parsed(**fields).usage is None


def test_voyage_names_its_results_data() -> None:
    body = json.dumps({"object": "list", "data": RESULTS, "usage": {"total_tokens": 7}}).encode()
    reply = openai.parse_reply(Operation.RERANK, body)
    assert [each.index for each in reply.fields["results"]] == [1, 0]


@pytest.mark.parametrize(
    "results",
    [
        b"null",
        b"{}",
        b"[[0, 1]]",
        b'[{"index": 0}]',
        b'[{"relevance_score": 1}]',
        b'[{"index": "0", "relevance_score": 1}]',
        b'[{"index": 0.5, "relevance_score": 1}]',
        b'[{"index": 0, "relevance_score": "1"}]',
        b'[{"index": 0, "relevance_score": null}]',
        b'[{"index": 0, "relevance_score": NaN}]',
        b'[{"index": 0, "relevance_score": Infinity}]',
        b'[{"index": 0, "relevance_score": 1e999}]',
    ],
)
def test_a_result_without_index_or_score_is_refused(results: bytes) -> None:
    with pytest.raises(InvalidReply):
        openai.parse_reply(Operation.RERANK, b'{"results": %s}' % results)


def test_an_answer_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidReply, match="results"):
        openai.parse_reply(Operation.RERANK, b'{"choices": []}')
    with pytest.raises(ProviderFailure, match="no"):
        openai.parse_reply(Operation.RERANK, b'{"error": {"message": "no"}}')
