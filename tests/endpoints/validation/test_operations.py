"""Validation by operation: a deployment is asked for what its model produces."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.endpoints.creating import ROUTE, assert_refused
from tests.support.endpoints.validating import failed, passed, validate
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.upstreams import tls

CHECKS = ["workspace", "byok_key", "base_url", "embeddings", "usage", "model"]
Answers = Callable[[Sequence[bytes]], Validation]
NOT_NUMBERS = "An embedding of the answer is not a list of numbers."
# The stream of a chat, and what is said of it where a whole answer of something else is due.
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
NO_OBJECT = "The answer is not a JSON object."


@pytest.fixture
def embedder(db: None) -> LanguageModel:
    return factories.make_model("acme/embedder", output_modalities=["embeddings"])


@pytest.fixture
def draft(make_draft: Callable[..., PrivateEndpoint], embedder: LanguageModel) -> PrivateEndpoint:
    return make_draft(embedder, price=factories.make_price("0.001"))


def test_a_deployment_that_only_embeds_passes(draft: PrivateEndpoint, upstream: Simulator) -> None:
    result = validate(draft)
    assert result.checks == passed(CHECKS)
    assert result.evidence["dimensions"] == 8
    assert [request.path for request in upstream.requests] == ["/v1/embeddings"] * 2
    first, second = (request.body for request in upstream.requests)
    assert first == {"input": "ready", "model": draft.upstream_model_id}
    assert second["input"][0] == "ready"
    assert len(second["input"]) == 2
    # The prompts have 1 and 12 words, which are the simulator's tokens.
    assert result.cost_nano == 13 * 1_000_000


def test_it_is_activated_at_its_creation(
    management: APIClient, activating: dict[str, Any], embedder: LanguageModel
) -> None:
    body = activating | {"model_permaslug": embedder.canonical_slug}
    created = management.post(ROUTE, body)
    assert created.status_code == 201, created.json()
    assert created.json()["data"]["status"] == "active"


def test_a_deployment_without_trials_says_nothing_of_parameters(
    management: APIClient, tenant: Tenant, draft: PrivateEndpoint
) -> None:
    body = {"workspace_id": str(tenant.workspace.pk), "probe_parameters": True}
    answer = management.post(f"{ROUTE}/{draft.pk}/validate", body)
    assert answer.json() == {"data": {"passed": True, "checks": passed(CHECKS)}}


def vectors(*embeddings: Any, usage: Any = None) -> bytes:
    return json.dumps(
        {
            "object": "list",
            "data": [{"index": 0, "embedding": each} for each in embeddings],
            "usage": {"prompt_tokens": 2, "total_tokens": 2} if usage is None else usage,
        }
    ).encode()


FAULTS: list[tuple[Sequence[bytes], str]] = [
    ([vectors([])], "An embedding of the answer is empty."),
    ([vectors([0, 0.0])], "An embedding of the answer has zeros alone."),
    ([vectors([0.5, "x"])], NOT_NUMBERS),
    ([vectors([0.5, None])], NOT_NUMBERS),
    ([vectors("AAAA")], NOT_NUMBERS),
    ([vectors([0.5], [0.5])], "The answer has 2 embeddings instead of 1."),
    ([b'{"data": []}'], "The answer has no embeddings."),
    ([EVENTS], NO_OBJECT),
    ([b'{"data": {"embedding": [1]}}'], "The embeddings of the answer are malformed."),
    ([vectors([0.5]), vectors([0.5])], "The answer has 1 embeddings instead of 2."),
    ([vectors([0.5]), vectors([0.5], [1, 2])], "The vectors of the answers differ in length."),
    ([vectors([0.5]), vectors([1, 2], [1, 2])], "The vectors of the answers differ in length."),
]


@pytest.fixture
def answer_with(draft: PrivateEndpoint, settings: Any, tmp_path: Path) -> Answers:
    """Validates the draft against a server that gives these answers in turn."""
    authority = tls.Authority(tmp_path)
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, ca_bundle=authority.bundle)

    def run(answers: Sequence[bytes]) -> Validation:
        left = list(answers)

        def script(line: socket.socket, head: bytes, body: bytes) -> bool:
            return tls.answering(left.pop(0))(line, head, body)

        with tls.serving(script, authority.server_context("127.0.0.1")) as server:
            base_url = f"https://127.0.0.1:{server.port}/v1"
            draft.edit(upstream_model_id="embedder", base_url=base_url)
            return validate(draft)

    return run


@pytest.mark.parametrize(("answers", "message"), FAULTS)
def test_what_is_no_vector_fails_the_check(
    answer_with: Answers, answers: Sequence[bytes], message: str
) -> None:
    result = answer_with(answers)
    assert result.checks[-1] == failed("embeddings", "invalid_response", message)
    assert not result.passed


@pytest.mark.parametrize("count", [0, -1, None, 10**9])
def test_a_count_that_is_none_is_missing_usage(answer_with: Answers, count: int | None) -> None:
    usage = {"prompt_tokens": count, "total_tokens": count}
    result = answer_with([vectors([1], usage=usage), vectors([1], [2], usage=usage)])
    wrong = [check for check in result.checks if not check["passed"]]
    assert wrong == [failed("usage", "missing_usage")]
    assert result.cost_nano == 0


def test_a_refusal_fails_the_check(draft: PrivateEndpoint, upstream: Simulator) -> None:
    draft.edit(upstream_model_id="sim-status:404")
    result = validate(draft)
    assert result.checks[-1] == failed(
        "embeddings", "upstream_error", "The model does not exist.", status=404
    )
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("outputs", "dialect"),
    [
        (["rerank"], "anthropic"),
        (["video"], "openai"),
        (["speech", "transcription"], "gemini"),
        (["embeddings"], "anthropic"),
    ],
)
def test_a_model_that_no_route_can_serve_is_refused_and_nothing_is_created(
    management: APIClient,
    request_body: dict[str, Any],
    model: LanguageModel,
    provider: Provider,
    outputs: list[str],
    dialect: str,
) -> None:
    model.output_modalities = outputs
    model.save_fields("output_modalities")
    provider.dialect = dialect
    provider.save_fields("dialect")
    answer = management.post(ROUTE, request_body)
    error = assert_refused(answer, 422, "operation_not_supported")
    assert error["message"] == (
        f"operation_not_supported: acme/falcon produces {', '.join(outputs)}, and no route asks "
        "Acme AI for that."
    )
    assert not PrivateEndpoint.objects.exists()


def test_a_model_whose_output_no_route_serves_any_more_fails_its_check(
    draft: PrivateEndpoint, embedder: LanguageModel, upstream: Simulator
) -> None:
    embedder.output_modalities = ["video"]
    embedder.save_fields("output_modalities")
    draft.refresh_from_db()
    result = validate(draft)
    check = result.checks[-1]
    assert (check["name"], check["reason"]) == ("model", "model_not_found")
    assert not upstream.requests


RERANKED = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
NOT_EACH = "The answer does not have one result for each document."


@pytest.fixture
def reranker(draft: PrivateEndpoint) -> PrivateEndpoint:
    draft.model.output_modalities = ["rerank"]
    draft.model.save_fields("output_modalities")
    return draft


def ranking(results: Any, **fields: Any) -> bytes:
    return json.dumps({"results": results, "usage": {"total_tokens": 9}, **fields}).encode()


def test_a_deployment_that_only_reranks_passes(
    reranker: PrivateEndpoint, upstream: Simulator
) -> None:
    result = validate(reranker)
    assert result.checks == passed(name.replace("embeddings", "rerank") for name in CHECKS)
    first, second = upstream.requests
    assert [first.path, second.path] == ["/v1/rerank"] * 2
    assert first.body["documents"] == second.body["documents"][::-1]
    # Each document has one score, in whichever order it is sent.
    assert result.evidence["scores"] == [1 / 3, 2 / 3]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([ranking(RERANKED[:1])], NOT_EACH),
        ([ranking([])], NOT_EACH),
        ([ranking([*RERANKED, {"index": 2, "relevance_score": 0}])], NOT_EACH),
        ([ranking([RERANKED[0]] * 2)], NOT_EACH),
        ([ranking(RERANKED), ranking(RERANKED[1:])], NOT_EACH),
        ([ranking(None)], "The results of the answer are malformed."),
        ([b'{"choices": []}'], "The results of the answer are malformed."),
        ([EVENTS], NO_OBJECT),
    ],
)
def test_what_is_no_ranking_fails_the_check(
    reranker: PrivateEndpoint, answer_with: Answers, answers: Sequence[bytes], message: str
) -> None:
    result = answer_with(answers)
    assert result.checks[-1] == failed("rerank", "invalid_response", message)


@pytest.mark.parametrize("usage", [None, {}, {"total_tokens": 0}, {"total_tokens": 10**9}])
def test_a_rerank_without_a_count_is_missing_usage(
    reranker: PrivateEndpoint, answer_with: Answers, usage: Any
) -> None:
    result = answer_with([ranking(RERANKED, usage=usage)] * 2)
    wrong = [check for check in result.checks if not check["passed"]]
    assert wrong == [failed("usage", "missing_usage")]


def test_a_chat_server_is_no_reranker(reranker: PrivateEndpoint, answer_with: Answers) -> None:
    result = answer_with([b'{"object": "chat.completion", "choices": [{"index": 0}]}'])
    assert not result.passed
    assert result.checks[-1]["name"] == "rerank"
