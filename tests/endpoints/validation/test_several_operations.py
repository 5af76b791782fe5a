"""Validation of a model with several operations: each is proven, and only the proven are served."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from catalog.models import LanguageModel
from config.credentials import Secret
from endpoints import rotation, watch
from endpoints.models import PrivateEndpoint, Validation
from inference.models import Generation
from tests.support import factories
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import failed, validate
from tests.support.inference.pictures import ENCODED
from tests.support.inference.site import Site
from tests.support.upstreams import tls

CHAT, TEXT, IMAGES = "chat/completions", "completions", "images/generations"
PROVEN_BOTH = {CHAT: "proven", IMAGES: "proven"}
CHAT_ALONE = {CHAT: "proven", IMAGES: "refused"}
IMAGES_ALONE = {CHAT: "refused", IMAGES: "proven"}
MODELS = "/api/v1/models/user?output_modalities="
Answer = tuple[str, bytes, str]

_USAGE = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}


def respond(body: Any, status: str = "200 OK") -> Answer:
    return status, json.dumps(body).encode(), "application/json"


def refuse(status: str) -> Answer:
    return respond({"error": {"message": "There is no such route."}}, status)


IMAGE = respond({"created": 1, "data": [{"b64_json": ENCODED}]})
NOT_FOUND = refuse("404 Not Found")
WORD = {
    "id": "c-1", "object": "chat.completion", "created": 1, "model": "artist",
    "choices": [{"index": 0, "finish_reason": "stop", "text": "ready",
                 "message": {"role": "assistant", "content": "ready"}}],
    "usage": _USAGE,
}  # fmt: skip
CHUNK = {
    "id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "artist",
    "choices": [{"index": 0, "finish_reason": "stop", "text": "ready",
                 "delta": {"content": "ready"}}],
    "usage": _USAGE,
}  # fmt: skip
STREAM = f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode()


class Deployment:
    """An HTTPS server that answers each operation as it is told; ``asked`` are the paths."""

    def __init__(self) -> None:
        self.chat: Answer | None = None
        self.text: Answer | None = None
        self.images = IMAGE
        self.asked: list[str] = []

    def __call__(self, line: socket.socket, head: bytes, body: bytes) -> bool:
        path = head.split(b" ", 2)[1].decode().removeprefix("/v1/")
        self.asked.append(path)
        answer = {IMAGES: self.images, TEXT: self.text}.get(path, self.chat)
        if answer is None:
            is_streamed = json.loads(body).get("stream", False)
            answer = ("200 OK", STREAM, "text/event-stream") if is_streamed else respond(WORD)
        status, data, kind = answer
        line.sendall(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
            .encode() + data
        )  # fmt: skip
        return True


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


@pytest.fixture
def artist(db: None) -> LanguageModel:
    return factories.make_model(
        "acme/artist", output_modalities=["text", "image"], input_modalities=["text"]
    )


@pytest.fixture
def draft(
    site: Site, artist: LanguageModel, deployment: Deployment, settings: Any, tmp_path: Path
) -> Any:
    """Returns a draft of a model that writes and draws, at the deployment."""
    authority = tls.Authority(tmp_path)
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, ca_bundle=authority.bundle)
    factories.make_credential(site.tenant, site.provider)
    with tls.serving(deployment, authority.server_context("127.0.0.1")) as server:
        yield factories.make_draft(
            site.tenant,
            artist,
            site.provider,
            base_url=f"https://127.0.0.1:{server.port}/v1",
            upstream_model_id="artist",
            price=factories.make_price("0.001", "0.001", request="1"),
        )


@pytest.fixture
def activate(draft: PrivateEndpoint, site: Site) -> Callable[[], PrivateEndpoint]:
    """Validates and activates the draft; then its deployment is the simulator, which does all."""

    def run() -> PrivateEndpoint:
        assert validate(draft).passed
        draft.activate()
        PrivateEndpoint.objects.filter(pk=draft.pk).update(
            base_url=site.upstream.base_url, upstream_model_id="sim-echo"
        )
        return draft

    return run


def listed(site: Site, output: str) -> bool:
    client = factories.client(site.tenant.management_key)
    found = client.get(f"{MODELS}{output}").json()["data"]
    return any(model["id"] == "acme/artist" for model in found)


def draws(site: Site) -> bool:
    """Tells whether the list of image models has the model."""
    found = factories.client(site.tenant.api_key).get("/api/v1/images/models").json()["data"]
    return [model["id"] for model in found] == ["acme/artist"]


def ask(site: Site, path: str) -> int:
    bodies = {
        "chat/completions": {"messages": [{"role": "user", "content": "one"}]},
        "completions": {"prompt": "one"},
        "images": {"prompt": "one"},
        "images/generations": {"prompt": "one"},
    }
    return site.post({"model": "acme/artist", **bodies[path]}, path=f"/api/v1/{path}").status_code


def test_each_operation_is_asked_and_costs_what_it_costs(
    draft: PrivateEndpoint, deployment: Deployment
) -> None:
    result = validate(draft)
    names = ["workspace", "byok_key", "base_url", "completion", "stream", "images", "usage"]
    assert [check["name"] for check in result.checks] == [*names, "model"]
    assert all(check["passed"] for check in result.checks)
    assert deployment.asked == [CHAT, CHAT, IMAGES]
    assert result.operations == PROVEN_BOTH
    # Three requests at a dollar each, and the ten tokens of two chats at a tenth of a cent.
    assert result.cost_nano == 3 * 10**9 + 10 * 10**6


def test_a_deployment_that_has_all_is_listed_and_routed_for_all(activate: Any, site: Site) -> None:
    activate()
    assert (listed(site, "text"), listed(site, "image"), draws(site)) == (True, True, True)
    for path in ("chat/completions", "completions", "images", "images/generations"):
        assert ask(site, path) == 200


def test_what_a_deployment_refuses_is_neither_listed_nor_routed(
    activate: Any, deployment: Deployment, site: Site
) -> None:
    deployment.images = NOT_FOUND
    endpoint = activate()
    assert endpoint.validation.operations == CHAT_ALONE
    assert endpoint.validation.evidence["refusals"] == {IMAGES: "404 There is no such route."}
    assert (listed(site, "text"), listed(site, "image"), draws(site)) == (True, False, False)
    for path in ("images", "images/generations"):
        assert ask(site, path) == 404
    site.assert_nothing_happened()
    assert ask(site, "chat/completions") == 200
    assert ask(site, "completions") == 200


def test_a_deployment_that_only_draws_serves_no_chat(
    activate: Any, deployment: Deployment, site: Site
) -> None:
    deployment.chat = NOT_FOUND
    endpoint = activate()
    assert endpoint.validation.operations == IMAGES_ALONE
    assert (listed(site, "text"), listed(site, "image")) == (False, True)
    for path in ("chat/completions", "completions"):
        assert ask(site, path) == 404
    site.assert_nothing_happened()
    answer = site.post({"model": "acme/artist", "messages": [{"role": "user", "content": "one"}]})
    assert "Its endpoints serve /images/generations." in answer.json()["error"]["message"]
    assert ask(site, "images") == 200


def test_a_deployment_without_chat_is_asked_for_texts(
    activate: Any, deployment: Deployment, draft: PrivateEndpoint, site: Site
) -> None:
    deployment.chat = deployment.images = NOT_FOUND
    draft.edit(settings={"completions": {"chat": False}})
    endpoint = activate()
    assert endpoint.validation.operations == {TEXT: "proven", IMAGES: "refused"}
    assert CHAT not in deployment.asked
    assert (listed(site, "text"), listed(site, "image")) == (True, False)
    assert ask(site, "chat/completions") == 404
    site.assert_nothing_happened()
    assert ask(site, "completions") == 200


def test_a_chat_that_its_owner_has_turned_off_is_no_drift(
    draft: PrivateEndpoint, deployment: Deployment
) -> None:
    assert validate(draft).passed
    draft.activate()
    draft.edit(settings={"completions": {"chat": False}})
    deployment.chat = NOT_FOUND
    deployment.text = respond({**WORD, "usage": {**_USAGE, "prompt_tokens": 2}})
    found = look(draft)
    assert (found.operations, found.changes) == ({TEXT: "proven", IMAGES: "proven"}, [])


def test_the_second_organization_sees_nothing_of_it(activate: Any, site: Site) -> None:
    activate()
    other = factories.make_tenant()
    body = {"model": "acme/artist", "prompt": "one"}
    assert site.post(body, path="/api/v1/images", key=other.api_key).status_code == 404
    assert not Generation.objects.exists()


@pytest.mark.parametrize("status", ["400 Bad Request", "403 Forbidden", "405 Method Not Allowed",
                                    "422 Unprocessable Entity", "501 Not Implemented"])  # fmt: skip
def test_these_statuses_say_that_there_is_no_such_operation(
    draft: PrivateEndpoint, deployment: Deployment, status: str
) -> None:
    deployment.images = refuse(status)
    result = validate(draft)
    assert result.passed
    assert result.operations == CHAT_ALONE


@pytest.mark.parametrize(
    ("images", "check", "reason"),
    [
        (refuse("401 Unauthorized"), "images", "upstream_error"),
        (refuse("402 Payment Required"), "images", "upstream_error"),
        (refuse("429 Too Many Requests"), "images", "upstream_error"),
        (refuse("500 Internal Server Error"), "images", "upstream_error"),
        (respond({"created": 1, "data": [{"b64_json": "QUJD"}]}), "images", "invalid_response"),
        (respond({"created": 1, "data": [{"b64_json": ENCODED}],
                  "usage": {"input_tokens": 10**9, "output_tokens": 1, "total_tokens": 10**9 + 1}}),
         "usage", "missing_usage"),
    ],
)  # fmt: skip
def test_an_operation_that_is_answered_wrongly_fails_the_validation(
    draft: PrivateEndpoint, deployment: Deployment, images: Answer, check: str, reason: str
) -> None:
    deployment.images = images
    result = validate(draft)
    wrong = next(each for each in result.checks if not each["passed"])
    assert (result.outcome, wrong["name"], wrong["reason"]) == ("failed", check, reason)


def test_a_deployment_that_refuses_all_fails_with_its_first_refusal(
    draft: PrivateEndpoint, deployment: Deployment
) -> None:
    deployment.chat = refuse("400 Bad Request")
    deployment.images = NOT_FOUND
    result = validate(draft)
    assert result.outcome == "failed"
    assert deployment.asked == [CHAT, IMAGES, IMAGES][: len(deployment.asked)]
    assert result.checks[-1] == failed(
        "completion", "upstream_error", "There is no such route.", status=400
    )


def test_a_refused_stream_of_a_chat_that_answers_fails(
    draft: PrivateEndpoint, deployment: Deployment
) -> None:
    script = Deployment.__call__

    def refuse_streams(self: Deployment, line: Any, head: bytes, body: bytes) -> bool:
        self.chat = NOT_FOUND if b'"stream":true' in body else None
        return script(self, line, head, body)

    deployment.__class__ = type("Halting", (Deployment,), {"__call__": refuse_streams})
    result = validate(draft)
    assert result.checks[-1]["name"] == "stream"
    assert result.outcome == "failed"


def test_the_answer_to_validate_names_the_operations(
    draft: PrivateEndpoint, deployment: Deployment, site: Site
) -> None:
    deployment.images = NOT_FOUND
    body = {"workspace_id": str(site.tenant.workspace.pk)}
    client = factories.client(site.tenant.management_key)
    answer = client.post(f"{ROUTE}/{draft.pk}/validate", body)
    assert answer.json()["data"]["operations"] == CHAT_ALONE


def test_the_console_shows_what_the_deployment_said(
    draft: PrivateEndpoint, deployment: Deployment, operator: Client
) -> None:
    deployment.images = NOT_FOUND
    found = validate(draft)
    for name, key in (("privateendpoint", draft.pk), ("validation", found.pk)):
        page = operator.get(reverse(f"admin:endpoints_{name}_change", args=[key]))
        text = page.content.decode()
        assert f"/{CHAT}: proven" in text
        assert f"/{IMAGES}: refused 404 There is no such route." in text


def pretend(endpoint: PrivateEndpoint, operations: dict[str, str] | None) -> Validation:
    """Changes what the endpoint's validation has proven; returns the validation."""
    validation = endpoint.validation
    assert validation is not None
    validation.evidence["operations"] = operations
    validation.save_fields("evidence")
    return validation


def look(endpoint: PrivateEndpoint) -> Validation:
    found = watch.watch(endpoint)
    assert found is not None
    return found


def test_an_operation_that_is_lost_is_drift_and_one_that_is_gained_is_none(
    draft: PrivateEndpoint, deployment: Deployment, settings: Any
) -> None:
    validate(draft)
    draft.activate()
    deployment.images = NOT_FOUND
    found = look(draft)
    assert found.changes == [{"name": "operations", "was": f"{CHAT}, {IMAGES}", "is": CHAT}]
    assert found.shows_drift
    draft.refresh_from_db()
    assert draft.drifted_at is not None
    pretend(draft, CHAT_ALONE)
    deployment.images = IMAGE
    found = look(draft)
    assert (found.operations, found.changes) == ({CHAT: "proven"}, [])


@pytest.mark.parametrize("before", [CHAT_ALONE, None])
def test_the_watch_asks_for_nothing_that_is_not_proven(
    draft: PrivateEndpoint, deployment: Deployment, before: Any
) -> None:
    """Nothing is routed there, or an earlier release asked for the first operation alone."""
    deployment.images = NOT_FOUND
    assert validate(draft).passed
    draft.activate()
    pretend(draft, before)
    deployment.images = refuse("500 Internal Server Error")
    deployment.asked.clear()
    found = look(draft)
    assert (deployment.asked, found.changes, found.shows_drift) == ([CHAT, CHAT], [], False)


def test_a_chat_that_is_gained_beside_images_is_no_drift(
    draft: PrivateEndpoint, deployment: Deployment
) -> None:
    """The evidence of an image is not compared with that of a chat."""
    deployment.chat = NOT_FOUND
    deployment.images = respond(
        {"created": 1, "data": [{"b64_json": ENCODED}],
         "usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}}
    )  # fmt: skip
    assert validate(draft).passed
    draft.activate()
    deployment.chat = None
    found = look(draft)
    assert (found.operations, found.changes) == ({IMAGES: "proven"}, [])


def test_an_operation_that_the_catalogue_no_longer_lists_is_no_drift(
    draft: PrivateEndpoint, deployment: Deployment, artist: LanguageModel
) -> None:
    assert validate(draft).passed
    draft.activate()
    artist.output_modalities = ["text"]
    artist.save_fields("output_modalities")
    found = look(PrivateEndpoint.objects.get(pk=draft.pk))
    assert (found.operations, found.changes) == ({CHAT: "proven"}, [])


def test_a_rotation_that_would_lose_an_operation_is_refused(
    draft: PrivateEndpoint, deployment: Deployment, site: Site
) -> None:
    assert validate(draft).passed
    draft.activate()
    credential = pretend(draft, PROVEN_BOTH).credential
    assert credential is not None
    deployment.chat = refuse("403 Forbidden")
    with pytest.raises(rotation.RotationRefused, match=f"/{CHAT}.*Nothing was changed"):
        rotation.rotate(credential, Secret("another-secret"), revalidate=True)
    draft.refresh_from_db()
    assert draft.validation is not None
    assert draft.validation.operations == PROVEN_BOTH
    credential.refresh_from_db()
    assert credential.version == draft.validation.credential_version


def test_a_rotation_asks_for_nothing_that_is_not_proven(
    draft: PrivateEndpoint, deployment: Deployment
) -> None:
    """An operation to which nothing is routed does not keep a secret from being replaced."""
    deployment.images = NOT_FOUND
    found = validate(draft)
    draft.activate()
    deployment.images = refuse("500 Internal Server Error")
    assert found.credential is not None
    [after] = rotation.rotate(found.credential, Secret("another-secret"), revalidate=True)
    assert after.operations == CHAT_ALONE


def test_an_endpoint_of_an_earlier_release_serves_what_its_model_lists(
    activate: Any, deployment: Deployment, site: Site
) -> None:
    deployment.images = NOT_FOUND
    endpoint = activate()
    del endpoint.validation.evidence["operations"]
    endpoint.validation.save_fields("evidence")
    assert listed(site, "image")
    assert draws(site)
    assert ask(site, "images") == 200
