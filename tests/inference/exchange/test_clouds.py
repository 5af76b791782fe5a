"""Completions through cloud providers whose location is part of the credential."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import requests

from catalog.capabilities import NativeFormat
from catalog.models import LanguageModel, Provider
from config.credentials import Secret
from inference.models import Generation
from tests.support import factories
from tests.support.inference.site import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TEXT,
    Site,
    content_of,
    error_of,
    events_of,
)
from tests.support.simulator.server import Simulator
from tests.support.upstreams import clouds as cloud

CLOUDS: Final = {
    "azure": ("azure", cloud.azure()),
    "azure dated": ("azure", cloud.azure(api_version="2024-10-21")),
    "bedrock signed": ("bedrock", cloud.bedrock(session_token=cloud.SESSION_TOKEN)),
    "bedrock key": ("bedrock", cloud.bedrock_key()),
    "vertex": ("vertex", cloud.vertex()),
}
FOUNDRY: Final = ("azure", cloud.foundry())
TWO: Final = {"azure": "azure", "bedrock": "bedrock signed", "vertex": "vertex"}

CLAUDES: Final = {
    "foundry": (FOUNDRY, "my-deployment"),
    "vertex": (CLOUDS["vertex"], "claude-opus-5"),
}
MAP: Final = {"type": "object", "additionalProperties": {"type": "string"}}
STRICT: Final = {"name": "answer", "schema": MAP, "strict": True}
# The field of each interface that asks for an answer of a schema, and how it does.
NAMED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    CHAT: ("response_format", {"response_format": {"type": "json_schema", "json_schema": STRICT}}),
    RESPONSES: ("text.format", {"text": {"format": {"type": "json_schema", **STRICT}}}),
}
AT_THE_CLOUD: Final = {"provider": "Cloud", "model": "acme/falcon"}


def own(site: Site, name: str, behaviour: str = "my-deployment") -> Provider:
    """Creates an active private endpoint of the tenant at a cloud, with its own credential."""
    dialect, members = CLOUDS[name]
    return own_at(site, dialect, members, "my-deployment", behaviour)


def own_at(
    site: Site, dialect: str, members: dict[str, Any], deployment: str, behaviour: str
) -> Provider:
    provider = factories.make_provider("cloud", name="Cloud", dialect=dialect, base_url=None)
    factories.make_credential(site.tenant, provider, json.dumps(members))
    site.own(behaviour, provider=provider, base_url=None, upstream_model_id=deployment)
    return provider


def own_claude(site: Site, clouds: Simulator, name: str) -> None:
    """Creates an active private endpoint at a cloud that serves Claude in Anthropic's format."""
    at, upstream = CLAUDES[name]
    serve_claude(site)
    own_at(site, *at, upstream, upstream)
    # Discards the two calls of the validation.
    clouds.clear()


def publish(site: Site, at: tuple[str, dict[str, Any]], **fields: Any) -> Provider:
    """Publishes the model at a cloud with the operator's credential."""
    dialect, members = at
    provider = factories.make_provider("cloud", name="Cloud", dialect=dialect, base_url=None)
    provider.set_credential(Secret(json.dumps(members)))
    site.publish("my-deployment", provider=provider, **fields)
    return provider


def serve_claude(site: Site) -> None:
    """Makes the model of the site one that clouds serve in Anthropic's format."""
    LanguageModel.objects.filter(pk=site.model.pk).update(native_format=NativeFormat.ANTHROPIC)
    site.model.refresh_from_db()


def complete(site: Site) -> requests.Response:
    return site.post({"model": site.model.slug, "prompt": "one two"}, path=TEXT)


@pytest.mark.parametrize("name", CLOUDS)
def test_a_chat_is_answered_by_the_cloud(site: Site, clouds: Simulator, name: str) -> None:
    own(site, name)
    clouds.clear()
    answer = site.chat()
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["choices"][0]["message"]["content"] == "You said: one two"
    assert (body["model"], body["provider"]) == (site.model.slug, "Cloud")
    assert body["usage"]["is_byok"] is True
    assert [request.body["model"] for request in clouds.requests] == ["my-deployment"]
    assert site.settled().status == Generation.Status.COMPLETED
    assert site.dialled() == []


@pytest.mark.parametrize("name", CLOUDS)
def test_a_chat_is_streamed_from_the_cloud(site: Site, clouds: Simulator, name: str) -> None:
    own(site, name)
    answer = site.chat(stream=True)
    assert answer.status_code == 200, answer.text
    events = events_of(answer.text)
    assert content_of(events) == "You said: one two"
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["prompt_tokens"] == 2
    assert site.settled().status == Generation.Status.COMPLETED


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CLAUDES)
def test_claude_is_served_by_the_cloud(
    site: Site, clouds: Simulator, name: str, stream: bool
) -> None:
    own_claude(site, clouds, name)
    answer = site.chat(stream=stream)
    assert answer.status_code == 200, answer.text
    if stream:
        events = events_of(answer.text)
        assert (content_of(events), events[-1]) == ("You said: one two", "[DONE]")
    else:
        [choice] = answer.json()["choices"]
        assert choice["message"]["content"] == "You said: one two"
    assert [request.body["model"] for request in clouds.requests] == [CLAUDES[name][1]]
    settled = site.settled()
    assert settled.status == Generation.Status.COMPLETED
    assert (settled.prompt_tokens, settled.completion_tokens) == (2, 4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CLAUDES)
def test_messages_pass_to_the_claude_of_a_cloud(
    site: Site, clouds: Simulator, name: str, stream: bool
) -> None:
    own_claude(site, clouds, name)
    mark = {"type": "ephemeral", "scope": "global"}
    said = {"type": "text", "text": "one two", "cache_control": mark}
    cited = {
        "type": "search_result",
        "source": "https://pages.example",
        "title": "Page",
        "content": [{"type": "text", "text": "Words."}],
        "citations": {"enabled": True},
    }
    body = {
        "model": site.model.slug,
        "max_tokens": 50,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"},
            {"type": "text", "text": "Be brief."},
        ],
        "messages": [{"role": "user", "content": [cited, said]}],
        "context_management": {"edits": []},
        "stream": stream,
    }
    answer = site.post(
        body, path="/api/v1/messages", headers={"anthropic-beta": "context-management-2025-06-27"}
    )
    assert answer.status_code == 200, answer.text
    assert "You said" in answer.text
    [request] = clouds.requests
    is_whole = name == "foundry"
    if not is_whole:
        # The scope belongs to a beta.
        del mark["scope"]
    assert request.body["messages"] == body["messages"]
    assert ("context_management" in request.body) is is_whole
    assert ("anthropic-beta" in request.headers) is is_whole
    # Google hands the line for Anthropic to the model.
    assert request.body["system"] == (body["system"] if is_whole else body["system"][1:])
    assert answer.headers.get("X-Left-Out") == (None if is_whole else "context_management")
    settled = site.settled()
    assert settled.status == Generation.Status.COMPLETED
    assert (settled.prompt_tokens, settled.completion_tokens) == (2, 4)


def test_claude_on_an_azure_openai_host_falls_back(site: Site, clouds: Simulator) -> None:
    serve_claude(site)
    publish(site, CLOUDS["azure"], price=factories.make_price("0.0000001", "0.0000001"))
    site.publish()
    clouds.clear()
    answer = site.chat(provider={"sort": "price"})
    assert answer.status_code == 200, answer.text
    assert clouds.requests == []
    assert [attempt["status"] for attempt in site.settled().attempts] == [400, 200]


def test_claude_in_foundry_refuses_text_completions(site: Site, clouds: Simulator) -> None:
    serve_claude(site)
    publish(site, FOUNDRY)
    error = error_of(complete(site), 404)
    [excluded] = error["metadata"]["excluded"]
    assert excluded["excluded_by"] == ["operation_not_supported"]


@pytest.mark.parametrize("name", TWO.values())
def test_the_operators_credential_serves_a_public_endpoint(
    site: Site, clouds: Simulator, name: str
) -> None:
    publish(site, CLOUDS[name])
    answer = site.chat()
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["is_byok"] is False
    assert len(clouds.requests) == 1


@pytest.mark.parametrize(("name", "status"), [("bedrock signed", 403), ("vertex", 401)])
def test_an_expired_login_is_refused_by_the_cloud(
    site: Site, clouds: Simulator, name: str, status: int
) -> None:
    own(site, name)
    clouds.admit = gate = cloud.Gate()
    gate.skew = 3601
    assert error_of(site.chat(), 502)["metadata"]["upstream_status"] == status
    assert site.settled().status == Generation.Status.FAILED


def test_a_missing_deployment_is_an_upstream_error(site: Site, clouds: Simulator) -> None:
    own(site, "azure dated")
    clouds.admit = lambda request: 404
    metadata = error_of(site.chat(stream=True), 503)["metadata"]
    assert (metadata["kind"], metadata["upstream_status"]) == ("unknown_model", 404)


@pytest.mark.parametrize("name", TWO.values())
def test_a_credential_always_goes_to_the_host_that_it_names(
    site: Site, clouds: Simulator, name: str
) -> None:
    provider = own(site, name)
    provider_hosts = {request.headers["host"] for request in clouds.requests}
    assert len(provider_hosts) == 1
    credential = site.tenant.organization.byok_credentials.get(provider_slug=provider.slug)
    credential.allowed_hosts = ["elsewhere.example"]
    credential.save_fields("allowed_hosts")
    clouds.clear()
    assert site.chat().status_code == 200
    assert {request.headers["host"] for request in clouds.requests} == provider_hosts


@pytest.mark.parametrize("dialect", TWO)
def test_a_credential_without_a_location_is_not_used(
    site: Site, clouds: Simulator, dialect: str
) -> None:
    provider = publish(site, CLOUDS[TWO[dialect]])
    provider.set_credential(Secret('{"api_key": "somewhere-0123456789"}'))
    factories.make_credential(site.tenant, provider, "a-bare-key-0123456789")
    error = error_of(site.chat(), 404)
    [excluded] = error["metadata"]["excluded"]
    assert excluded == {**AT_THE_CLOUD, "private": False, "excluded_by": ["no_credential"]}
    assert clouds.requests == []


@pytest.mark.parametrize("name", ["bedrock signed", "vertex"])
def test_text_completions_are_refused_if_the_cloud_has_none(
    site: Site, clouds: Simulator, name: str
) -> None:
    own(site, name)
    clouds.clear()
    error = error_of(complete(site), 404)
    [excluded] = error["metadata"]["excluded"]
    reasons = ["operation_not_supported"]
    assert excluded == {**AT_THE_CLOUD, "private": True, "excluded_by": reasons}
    assert clouds.requests == []


@pytest.mark.parametrize("path", NAMED)
def test_a_field_that_the_cloud_lacks_has_the_callers_name(
    site: Site, clouds: Simulator, path: str
) -> None:
    publish(site, CLOUDS["bedrock key"])
    name, asked = NAMED[path]
    error = error_of(site.ask(path, **asked), 400)
    problem = "This provider's strict schemas have no objects of any names."
    assert error["message"] == f"{name}: {problem}"
    assert clouds.requests == []
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)


def test_messages_tell_the_cloud_in_words_what_its_schemas_lack(
    site: Site, clouds: Simulator
) -> None:
    """Their callers do not say that a schema is strict."""
    publish(site, CLOUDS["bedrock key"])
    wanted = {"format": {"type": "json_schema", "schema": MAP}}
    answer = site.ask(MESSAGES, output_config=wanted)
    assert answer.status_code == 200, answer.text
    [request] = clouds.requests
    [part] = request.body["system"]
    assert json.loads(part["text"].partition("\n")[2]) == MAP


def test_text_completions_go_to_azure(site: Site, clouds: Simulator) -> None:
    own(site, "azure")
    clouds.admit = lambda request: "completions"
    clouds.clear()
    answer = complete(site)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "You said: one two"
    assert [request.path for request in clouds.requests] == ["/openai/v1/completions"]


@pytest.mark.parametrize("name", ["bedrock key", "vertex"])
def test_an_error_that_echoes_the_credential_is_masked(
    site: Site, clouds: Simulator, name: str
) -> None:
    own(site, name, behaviour="sim-echo-key")
    clouds.clear()
    answer = site.chat()
    assert answer.status_code == 502
    login = clouds.requests[0].headers["authorization"].removeprefix("Bearer ")
    assert login not in answer.text
    assert "********" in answer.json()["error"]["message"]
