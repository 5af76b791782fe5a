"""Whose fault an error is, is read from what its server says; the words are those of real ones."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import Client

from config.api.errors import (
    ContextTooShort,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from inference.exchange.failures import UnknownModel
from inference.models import Generation
from inference.watch.board import Level, build_board
from tests.support import factories
from tests.support.console import page
from tests.support.inference.site import Site, error_of
from tests.support.ledger import assert_in_order
from tests.support.upstreams.tls import Server, answering, serving, trusted_context

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
LLAMA_LONG = (
    "input (600 tokens) is too large to process. increase the physical batch size (current batch "
    "size: 512)"
)
NO_IMAGES = (
    "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
)


def openai(message: str, kind: str = "server_error", code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


def litellm(message: str) -> dict[str, Any]:
    """What LiteLLM 1.110.2 makes of an error of the server behind it."""
    said = f"litellm.InternalServerError: InternalServerError: OpenAIException - {message}"
    return openai(
        f"{said}. Received Model Group=x\nAvailable Model Group Fallbacks=None", code="500"
    )


def tensorzero(inner: Any) -> dict[str, Any]:
    """What TensorZero 2026.6.0 makes of it."""
    said = "All variants failed with errors: chat: All model providers failed to infer with errors"
    text = json.dumps(inner, indent=4)
    return {"error": {"message": f"{said}: x: Error 400 Bad Request from openai client: {text}"}}


def fastchat(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "code": 40301}


Serve = Callable[..., Server]


@pytest.fixture
def serve(site: Site) -> Iterator[Serve]:
    """Returns a function that serves an error to every request, and publishes a model behind it."""
    with ExitStack() as stack:

        def run(status: int, body: Any, **fields: Any) -> Server:
            written = body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = "text/plain" if isinstance(body, bytes) else "application/json"
            script = answering(written, f"{status} Error", (f"Content-Type: {kind}",))
            server = stack.enter_context(serving(script, trusted_context()))
            site.move(f"https://127.0.0.1:{server.port}/v1")
            site.publish("upstream-name", **fields)
            return server

        yield run


ORDER = {"order": ["acme", "other"]}
BY_PRICE = {"sort": "price"}


def next_provider(site: Site) -> None:
    site.publish(
        provider=site.another_provider("other"), price=factories.make_price("0.00001", "0.00001")
    )


UNKNOWN_MODELS = [
    pytest.param(
        400,
        openai(
            "/chat/completions: Invalid model name passed in model=upstream-name. Call "
            "`/v1/models` to view available models for your key.",
            "invalid_request_error",
            "400",
        ),
        id="LiteLLM",
    ),
    pytest.param(400, openai("Invalid model: upstream-name", code=400), id="Infinity"),
    pytest.param(404, {"error": "Model name not found: upstream-name"}, id="TensorZero"),
    pytest.param(400, fastchat("Only hf allowed now, your model upstream-name"), id="FastChat"),
    pytest.param(
        400, fastchat("Only  allowed now, your model x"), id="FastChat while its worker is down"
    ),
    pytest.param(
        404, openai("The model `upstream-name` does not exist.", "NotFoundError", 404), id="vLLM"
    ),
    pytest.param(404, openai('model "upstream-name" not found, try pulling it first'), id="Ollama"),
    pytest.param(400, {"detail": "Model not found"}, id="FastAPI"),
    pytest.param(400, openai("It is gone.", code="model_not_found"), id="its code alone"),
    pytest.param(
        502, tensorzero(openai("The model `upstream-name` does not exist.")), id="wrapped"
    ),
    pytest.param(200, openai("Model Not Exist"), id="inside an answer"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "body"), UNKNOWN_MODELS)
def test_an_unknown_model_is_the_fault_of_the_endpoint(
    site: Site, serve: Serve, operator: Client, status: int, body: Any, stream: bool
) -> None:
    serve(status, body)
    answers = [site.chat(stream=stream) for _ in range(3)]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["message"]) == (503, UnknownModel.message)
        assert error["metadata"] == {
            "error_type": "provider_unavailable",
            "provider_name": "Acme AI",
            "kind": "unknown_model",
            "attempt": 1,
            "candidates": 1,
            **({} if status == 200 else {"upstream_status": status}),
        }
    site.eventually(lambda: Generation.objects.filter(status="failed").count() == 3)
    row = Generation.objects.latest("created_at")
    assert "provider_unavailable: unknown_model" in operator.get(page(row)).content.decode()
    [endpoint] = build_board().endpoints
    assert (Level.BAD, "its provider does not know its model") in endpoint.states
    next_provider(site)
    assert site.chat(stream=stream, provider=ORDER).status_code == 200
    assert_in_order()


def test_unknown_models_open_the_circuit(site: Site, serve: Serve) -> None:
    server = serve(400, openai("Invalid model: upstream-name"))
    next_provider(site)
    for _ in range(12):
        assert site.chat(provider=BY_PRICE).status_code == 200
    assert len(server.requests) == 5


TOO_LONG = [
    pytest.param(500, openai(LLAMA_LONG, code=500), id="llama.cpp"),
    pytest.param(500, openai("input is too large to process. increase the physical batch size"),
                 id="an older llama.cpp"),
    pytest.param(500, litellm(LLAMA_LONG), id="LiteLLM"),
    pytest.param(
        502,
        tensorzero(openai("request (37 tokens) exceeds the available context size (8 tokens)")),
        id="TensorZero",
    ),
    pytest.param(502, tensorzero({"error": {"code": "context_length_exceeded"}}),
                 id="a code behind TensorZero"),
    pytest.param(413, {"error": "Input validation error: `inputs` must have less than 9 tokens"},
                 id="TEI"),
    pytest.param(400, {"detail": "Input length (600 tokens) exceeds the maximum allowed length"},
                 id="SGLang"),
    pytest.param(500, b"Requested tokens (600) exceed context window of 512", id="plain text"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_a_prompt_that_is_too_long_damages_no_health(
    site: Site, serve: Serve, status: int, body: Any, stream: bool
) -> None:
    server = serve(status, body)
    for _ in range(12):
        answer = site.chat(stream=stream)
        error = answer.json()["error"]
        kind = error["metadata"]["error_type"]
        assert (answer.status_code, kind) == (400, "context_length_exceeded")
    assert len(server.requests) == 12


@pytest.mark.parametrize(
    ("body", "asked", "member"),
    [
        (openai(NO_IMAGES), {"content": [IMAGE]}, "messages"),
        (litellm(NO_IMAGES), {"content": [IMAGE]}, "messages"),
        (openai("/models/x is not a multimodal model"), {"content": [IMAGE]}, "messages"),
        (openai("At most 0 image(s) may be provided in one prompt."), {"content": [IMAGE]},
         "messages"),
        (openai("registry/x:latest does not support tools"), TOOLS, "tools"),
        (openai("tools param requires --jinja flag"), TOOLS, "tools"),
        (openai("Failed to deserialize the JSON body into the target type: messages[0]: unknown "
                "variant `image_url`, expected `text`"), {"content": [IMAGE]}, "messages"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [400, 500, 501])
def test_what_an_endpoint_cannot_do_goes_to_the_next_and_damages_nothing(
    site: Site, serve: Serve, operator: Client, status: int, body: Any, asked: Any, member: str
) -> None:
    server = serve(status, body)
    for _ in range(6):
        answer = site.chat(**asked)
        error = answer.json()["error"]
        assert (answer.status_code, error["metadata"]["error_type"]) == (400, "invalid_request")
        assert list(error["metadata"]["fields"]) == [member]
        assert error["message"].startswith(f"{member}: ")
    assert len(server.requests) == 6
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    [endpoint] = build_board().endpoints
    lacks = "image" if member == "messages" else member
    assert endpoint.states == [(Level.POOR, f"does not do what it lists: {lacks}")]
    row = Generation.objects.latest("created_at")
    assert f"invalid_request: unable ({lacks})" in operator.get(page(row)).content.decode()
    next_provider(site)
    assert site.chat(**asked, provider=ORDER).status_code == 200
    assert len(server.requests) == 7


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (501, openai("This server does not support embeddings. Start it with `--embeddings`")),
        (500, openai("this model does not support embeddings")),
        (404, {"detail": "Not Found"}),
        (404, b"404 page not found"),
        (405, {"detail": "Method Not Allowed"}),
    ],
)
def test_embeddings_of_a_chat_server_do_not_stop_its_chat(
    site: Site, serve: Serve, status: int, body: Any
) -> None:
    server = serve(status, body)
    request: dict[str, Any] = {"model": site.model.slug, "input": "one two"}
    for _ in range(6):
        error = error_of(site.post(request, path="/api/v1/embeddings"), 400)
        assert list(error["metadata"]["fields"]) == ["model"]
    assert len(server.requests) == 6
    next_provider(site)
    request["provider"] = ORDER
    assert site.post(request, path="/api/v1/embeddings").status_code == 200


@pytest.mark.parametrize("words", [NO_IMAGES, "maximum context length", "Invalid model: x",
                                   "model_not_found", "content policy", LLAMA_LONG])  # fmt: skip
@pytest.mark.parametrize("status", [400, 500])
def test_words_of_the_caller_that_an_error_repeats_decide_nothing(
    site: Site, serve: Serve, words: str, status: int
) -> None:
    serve(status, openai(f"Failed to parse the prompt {words!r} at position 3"))
    answer = site.chat(words)
    error = answer.json()["error"]
    expected = (400, "invalid_request") if status == 400 else (502, "provider_unavailable")
    assert (answer.status_code, error["metadata"]["error_type"]) == expected
    assert "fields" not in error["metadata"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"detail": "Unexpected fields in the request: {'top_k'}"},
         "Unexpected fields in the request: {'top_k'}"),
        ({"detail": [{"type": "missing", "loc": ["body", "x"], "msg": "Field required",
                      "input": {"secret": 1}}]}, "body.x: Field required"),
        ({"errors": ["One is wrong.", "Two is wrong."]}, "One is wrong.; Two is wrong."),
        ({"errors": [{"message": "Three is wrong."}]}, "Three is wrong."),
        (b"The temperature is too high.", "The temperature is too high."),
        (b"<html><h1>Bad</h1></html>", "The upstream provider refused the request."),
        (b'{"error":{"message":' + b"[" * 600 + b"]" * 600 + b"}}",
         "The upstream provider refused the request."),
    ],
)  # fmt: skip
def test_an_error_of_any_shape_is_the_message(
    site: Site, serve: Serve, body: Any, message: str
) -> None:
    serve(422, body)
    answer = site.chat()
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        # Groq's limit of tokens a minute
        (413, openai("Request too large for model `x`", "tokens", "rate_limit_exceeded"), 429),
        (400, {"__type": "x", "message": "Rate exceeded", "type": "ThrottlingException"}, 429),
        (500, openai("Slow down.", code="429"), 429),
        (500, openai("Busy.", "overloaded_error"), 529),
        (413, openai("Too large.", "invalid_request_error"), 413),
    ],
)
def test_a_busy_account_is_not_the_callers_fault(
    site: Site, serve: Serve, status: int, body: Any, expected: int, stream: bool
) -> None:
    serve(status, body)
    assert site.chat(stream=stream).status_code == expected
    next_provider(site)
    answer = site.chat(stream=stream, provider=ORDER)
    assert answer.status_code == (413 if expected == 413 else 200)
    assert_in_order()


USED = (
    "Rate limit reached for gpt-4o in organization org-uOtiSEwvUnroadaOnJJquBEC on tokens per min "
    "(TPM): Limit 30000, Used 29937, Requested 385."
)
LIMITED = openai(USED, "tokens", "rate_limit_exceeded")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (429, LIMITED, UpstreamRateLimited),
        (413, LIMITED, UpstreamRateLimited),
        (200, LIMITED, UpstreamRateLimited),
        (503, openai(USED), UpstreamUnavailable),
        (529, openai(USED), UpstreamOverloaded),
        (200, openai(USED), UpstreamUnavailable),
        (400, openai(f"Too many tokens. {USED}", code="rate_limit_exceeded"), ContextTooShort),
        (200, openai(f"Too many tokens. {USED}", code="rate_limit_exceeded"), ContextTooShort),
    ],
)
def test_a_busy_provider_tells_nothing_of_the_operators_account(
    site: Site,
    serve: Serve,
    status: int,
    body: Any,
    expected: type[UpstreamError],
    stream: bool,
) -> None:
    serve(status, body)
    answer = site.chat(stream=stream)
    error = error_of(answer, expected.status)
    assert error["message"] == expected.message
    assert error["metadata"]["kind"] == ("reported" if status == 200 else "status")
    assert error["metadata"]["provider_code"] == (body["error"]["code"] or "server_error")
    assert "org-" not in answer.text + str(site.settled().attempts)
    assert_in_order()


@pytest.mark.parametrize("status", [200, 413, 429])
def test_an_own_account_has_the_words_of_its_limit(site: Site, serve: Serve, status: int) -> None:
    factories.make_credential(site.tenant, site.provider)
    site.provider.sealed_credential = None
    site.provider.save_fields("sealed_credential")
    serve(status, LIMITED)
    assert error_of(site.chat(), 429)["message"] == USED


SPEECH = "/api/v1/audio/speech"


def speak(site: Site, key: str | None = None) -> Any:
    body = {"model": site.model.slug, "input": "Hi", "voice": "nobody", "provider": BY_PRICE}
    return site.post(body, path=SPEECH, key=key)


@pytest.fixture
def speaking(site: Site) -> Site:
    site.model.output_modalities = ["speech"]
    site.model.save_fields("output_modalities")
    return site


@pytest.mark.parametrize(
    "body",
    [
        openai("Unknown voice: nobody"),
        {"detail": "Voice 'nobody' not found."},
        b"voice nobody is not supported",
    ],
)
def test_a_voice_that_a_server_does_not_know_is_the_callers(
    speaking: Site, serve: Serve, body: Any
) -> None:
    server = serve(500, body)
    for _ in range(6):
        assert error_of(speak(speaking), 400)["metadata"]["error_type"] == "invalid_request"
    next_provider(speaking)
    speak(speaking)
    assert len(server.requests) == 7


def test_a_failure_that_may_be_the_callers_counts_when_others_fail_too(
    speaking: Site, serve: Serve
) -> None:
    server = serve(500, b"Internal Server Error")
    next_provider(speaking)
    for _ in range(8):
        assert speak(speaking).status_code == 200
    assert len(server.requests) == 8
    other = factories.make_tenant("Other").api_key
    for _ in range(8):
        assert speak(speaking, other).status_code == 200
    assert len(server.requests) == 8 + 5


def test_a_closed_connection_is_replaced_under_the_same_hold(site: Site, serve: Serve) -> None:
    server = serve(400, openai("No."))
    answer = server.script

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        return len(server.requests) != 2 and answer(line, head, body)

    server.script = script
    assert [site.chat().status_code for _ in range(2)] == [400, 400]
    assert (len(server.requests), server.connections) == (3, 2)
    assert Generation.objects.count() == 2
    assert_in_order()
