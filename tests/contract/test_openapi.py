"""The OpenAPI document is a checked-in golden file, so that reviews show changes of the API."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from django.core.management import call_command
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.support.contract import document
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

UPDATE = (
    "The interface and tests/contract/openapi.json differ. If that is meant, run\n"
    ".venv/bin/python manage.py spectacular --format openapi-json "
    "--file tests/contract/openapi.json"
)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document.GOLDEN.read_text())
    return found


def test_document_equals_the_golden_file() -> None:
    # The golden file is validated below.
    output = io.StringIO()
    call_command("spectacular", format="openapi-json", fail_on_warn=True, stdout=output)
    assert json.loads(output.getvalue()) == json.loads(document.GOLDEN.read_text()), UPDATE


def test_served_document_equals_the_golden_file(server: str, golden: dict[str, Any]) -> None:
    served = requests.get(f"{server}/api/v1/openapi.json", timeout=30)
    assert served.status_code == 200
    assert served.json() == golden, UPDATE


def test_document_is_valid(golden: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(golden).iter_errors()) == []


def test_document_names_every_operation(golden: dict[str, Any]) -> None:
    operations = {path: " ".join(sorted(item)).upper() for path, item in golden["paths"].items()}
    assert operations == {
        "/activity": "GET",
        "/aliases": "GET POST",
        "/aliases/{id}": "DELETE GET PATCH",
        "/analytics/meta": "GET",
        "/analytics/query": "POST",
        "/audio/speech": "POST",
        "/audio/transcriptions": "POST",
        "/byok": "GET POST",
        "/byok/{id}": "DELETE GET PATCH",
        "/chat/completions": "POST",
        "/completions": "POST",
        "/credits": "GET",
        "/credits/coinbase": "POST",
        "/credits/crypto": "POST",
        "/credits/crypto/{id}": "GET",
        "/embeddings": "POST",
        "/embeddings/models": "GET",
        "/end-users": "GET POST",
        "/end-users/{user}": "DELETE GET PATCH",
        "/endpoints/zdr": "GET",
        "/external-users": "GET POST",
        "/external-users/{user}": "DELETE GET PATCH",
        "/generation": "GET",
        "/generation/content": "DELETE GET",
        "/generation/feedback": "POST",
        "/guardrails": "GET POST",
        "/guardrails/assignments/keys": "GET",
        "/guardrails/assignments/members": "GET",
        "/guardrails/{id}": "DELETE GET PATCH",
        "/guardrails/{id}/assignments/keys": "GET POST",
        "/guardrails/{id}/assignments/keys/remove": "POST",
        "/guardrails/{id}/assignments/members": "GET POST",
        "/guardrails/{id}/assignments/members/remove": "POST",
        "/images": "POST",
        "/images/edits": "POST",
        "/images/generations": "POST",
        "/images/models": "GET",
        "/images/models/{author}/{slug}/endpoints": "GET",
        "/key": "GET",
        "/keys": "GET POST",
        "/keys/{hash}": "DELETE GET PATCH",
        "/keys/{hash}/rotate": "POST",
        "/messages": "POST",
        "/messages/count_tokens": "POST",
        "/model/{author}/{slug}": "GET",
        "/models": "GET",
        "/models/count": "GET",
        "/models/user": "GET",
        "/models/{author}/{slug}": "GET",
        "/models/{author}/{slug}/endpoints": "GET",
        "/models/{name}": "GET",
        "/observability/destinations": "GET POST",
        "/observability/destinations/{id}": "DELETE GET PATCH",
        "/organization/members": "GET POST",
        "/organization/members/{id}": "DELETE PATCH",
        "/organization/settings": "GET PATCH",
        "/presets": "GET",
        "/presets/{slug}": "DELETE GET PATCH",
        "/presets/{slug}/chat/completions": "POST",
        "/presets/{slug}/messages": "POST",
        "/presets/{slug}/responses": "POST",
        "/presets/{slug}/versions": "GET",
        "/presets/{slug}/versions/{version}": "GET",
        "/private-endpoints": "GET POST",
        "/private-endpoints/{id}": "DELETE GET PATCH",
        "/private-endpoints/{id}/activate": "POST",
        "/private-endpoints/{id}/disable": "POST",
        "/private-endpoints/{id}/enable": "POST",
        "/private-endpoints/{id}/history": "GET",
        "/private-endpoints/{id}/parameters": "PUT",
        "/private-endpoints/{id}/pricing": "PUT",
        "/private-endpoints/{id}/timeouts": "PUT",
        "/private-endpoints/{id}/validate": "POST",
        "/private-models": "GET POST",
        "/private-models/{author}/{slug}": "DELETE GET PATCH",
        "/private-providers": "GET POST",
        "/private-providers/{slug}": "DELETE GET PATCH",
        "/providers": "GET",
        "/rerank": "POST",
        "/responses": "POST",
        "/routing/explain": "POST",
        "/webhooks": "GET POST",
        "/webhooks/{id}": "DELETE GET PATCH",
        "/webhooks/{id}/deliveries": "GET",
        "/webhooks/{id}/deliveries/{delivery}/redeliver": "POST",
        "/webhooks/{id}/rotate-secret": "POST",
        "/webhooks/{id}/test": "POST",
        "/workspaces": "GET POST",
        "/workspaces/{workspace_ref}": "DELETE GET PATCH",
        "/workspaces/{workspace_ref}/budgets": "GET",
        "/workspaces/{workspace_ref}/budgets/{interval}": "DELETE GET PUT",
        "/workspaces/{workspace_ref}/members": "GET",
        "/workspaces/{workspace_ref}/members/add": "POST",
        "/workspaces/{workspace_ref}/members/remove": "POST",
    }


INFERENCE = (
    "/audio/speech", "/audio/transcriptions", "/chat/completions", "/completions", "/embeddings",
    "/images", "/images/edits", "/images/generations", "/messages", "/messages/count_tokens",
    "/rerank", "/responses",
)  # fmt: skip
OPEN = {
    "getModel", "getModels", "listEmbeddingsModels", "listEndpoints", "listEndpointsZdr",
    "listImageModelEndpoints", "listImageModels", "listModelsCount", "listProviders",
    "retrieveModel", "retrieveModelByBareName",
}  # fmt: skip


def test_what_creates_takes_an_idempotency_key_or_its_page_says_why_not(
    golden: dict[str, Any],
) -> None:
    page = (document.GOLDEN.parents[2] / "docs/repeats.md").read_text()
    table = page.split("| `POST` | a repeat |\n", 1)[1].split("\n\n", 1)[0]
    explained = re.findall(r"`(/[^`]+)`", table)
    without = [
        path
        for path, item in golden["paths"].items()
        if "post" in item
        and "Idempotency-Key" not in [each["name"] for each in item["post"].get("parameters", [])]
    ]
    assert sorted(explained) == sorted(without)


def test_every_operation_requires_a_key_and_documents_its_errors(golden: dict[str, Any]) -> None:
    error = {"$ref": "#/components/schemas/Error"}
    for item in golden["paths"].values():
        for operation in item.values():
            key = {"apiKey": []}
            optional = operation["operationId"] in OPEN
            assert operation["security"] == ([key, {}] if optional else [key])
            for status in ("401", "403", "429", "500"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema in (
                    error,
                    {"$ref": "#/components/schemas/PrivateEndpointCreateError"},
                    {"$ref": "#/components/schemas/MessagesError"},
                ), operation["operationId"]


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/chat/completions", {"messages": [{"role": "user", "content": "one two"}]}),
        ("/completions", {"prompt": "one two"}),
        ("/messages", {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 50}),
        ("/responses", {"input": "one two"}),
    ],
)
@pytest.mark.parametrize(
    "behaviour",
    [
        "sim-echo", "sim-extra", "sim-reset-stream", "sim-no-usage", "sim-reasoning", "sim-tools:2",
    ],
)  # fmt: skip
def test_every_event_of_a_stream_is_documented(
    server: str, tenant: Tenant, serve: Serve, path: str, question: dict[str, Any], behaviour: str
) -> None:
    answer = requests.post(
        f"{server}/api/v1{path}",
        headers={"Authorization": f"Bearer {tenant.api_key}", "X-OpenRouter-Metadata": "enabled"},
        json={"model": serve(behaviour), "stream": True, **question},
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    document.check_headers("POST", f"/api/v1{path}", 200, answer.headers)
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [line.removeprefix("data: ") for line in lines if line != "data: [DONE]"]
    assert events
    for event in events:
        document.check_schema(document.stream_schema(path), json.loads(event))


def test_served_document_is_rendered_once(server: str) -> None:
    first = requests.get(f"{server}/api/v1/openapi.json?version=9", timeout=30)
    assert first.content == requests.get(f"{server}/api/v1/openapi.json", timeout=30).content
    known = {"If-None-Match": first.headers["ETag"]}
    unchanged = requests.get(f"{server}/api/v1/openapi.json", headers=known, timeout=30)
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_every_route_that_may_leave_tools_out_says_so(golden: dict[str, Any]) -> None:
    documented = {
        path
        for path, item in golden["paths"].items()
        if "X-Left-Out"
        in item.get("post", {"responses": {}})["responses"].get("200", {}).get("headers", {})
    }
    assert documented == {"/chat/completions", "/completions", "/messages", "/responses"}


def test_every_inference_operation_documents_its_headers(golden: dict[str, Any]) -> None:
    operations = {path: golden["paths"][path]["post"] for path in INFERENCE}
    for path, operation in operations.items():
        sent = {parameter["name"] for parameter in operation["parameters"]}
        assert sent >= {"X-OpenRouter-Metadata", "X-Session-Id", "HTTP-Referer"}, path
        answers = operation["responses"]
        assert "X-Request-Id" in answers["200"]["headers"], path
        assert answers.keys() >= {
            "400", "401", "402", "404", "408", "413", "429", "502", "503", "529",
        }  # fmt: skip
        for status in ("429", "503", "529"):
            assert "Retry-After" in answers[status]["headers"], (path, status)
        if path != "/messages/count_tokens":
            assert "X-Generation-Id" in answers["200"]["headers"], path
            assert "X-RateLimit-Reset-Tokens" in answers["429"]["headers"], path


def test_constants_and_words_name_their_type(golden: dict[str, Any]) -> None:
    found = [schema for schema in _list_objects(golden) if {"const", "enum"} & schema.keys()]
    # Without one, openapi-generator takes anything for the tag that tells alternatives apart.
    assert found
    assert [schema for schema in found if "type" not in schema] == []


def _list_objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node:
        if isinstance(inner, dict | list):
            yield from _list_objects(inner)


def test_the_requests_of_chat_are_typed(golden: dict[str, Any]) -> None:
    schemas = golden["components"]["schemas"]
    members = schemas["ChatRequest"]["properties"]
    roles = members["messages"]["items"]["discriminator"]["mapping"]
    assert sorted(roles) == ["assistant", "developer", "system", "tool", "user"]
    parts = schemas["ChatUserMessage"]["properties"]["content"]["anyOf"][1]["items"]
    assert sorted(parts["discriminator"]["mapping"]) == [
        "file",
        "image_url",
        "input_audio",
        "text",
        "video_url",
    ]
    assert {"tools", "tool_choice", "response_format", "reasoning", "provider"} <= members.keys()
    assert schemas["ChatFunction"]["properties"]["name"]["pattern"] == "^[a-zA-Z0-9_-]+$"
