"""Private endpoints of models that are served by Responses alone: proven in that format."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai import OpenAI

from catalog.capabilities import NativeFormat
from catalog.models import LanguageModel, Provider
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation
from endpoints.validation.parameters import TRIED_NAMES
from tests.support import factories
from tests.support.inference.site import Site
from tests.support.upstreams.able_responses import Able
from tests.support.upstreams.recorded_responses import EVENTS, RESPONSE, USAGE
from tests.support.upstreams.speaking import Upstream

CHECKS: Final = ["workspace", "byok_key", "base_url", "response", "stream", "usage", "model"]
ROUTE: Final = "/api/v1/private-endpoints"


@pytest.fixture
def codex(site: Site) -> LanguageModel:
    """The model of the site, which its providers serve by Responses alone."""
    LanguageModel.objects.filter(pk=site.model.pk).update(
        native_format=NativeFormat.RESPONSES, output_modalities=["text"]
    )
    site.model.refresh_from_db()
    return site.model


@pytest.fixture
def maker(site: Site, codex: LanguageModel) -> Provider:
    provider = factories.make_provider("maker", name="Maker", base_url="https://api.example.com/v1")
    factories.make_credential(site.tenant, provider)
    return provider


def make_draft(site: Site, provider: Provider, base_url: str, **fields: Any) -> PrivateEndpoint:
    fields = {"upstream_model_id": "gpt-5-codex", "base_url": base_url, **fields}
    return factories.make_draft(site.tenant, site.model, provider, **fields)


def validate(site: Site, draft: PrivateEndpoint, **options: Any) -> Validation:
    return validation.run(draft, workspace_id=site.tenant.workspace.pk, **options)


def test_a_deployment_is_created_proven_and_used(
    site: Site, maker: Provider, speaker: Upstream
) -> None:
    body = {
        "model_permaslug": site.model.canonical_slug,
        "provider_slug": maker.slug,
        "upstream_model_id": "gpt-5-codex",
        "base_url": speaker.base_url,
        "activate": {"workspace_id": str(site.tenant.workspace.pk)},
    }
    management = factories.client(site.tenant.management_key)
    created = management.post(ROUTE, body, format="json")
    assert created.status_code == 201, created.content
    assert created.json()["data"]["status"] == "active"
    plain, streamed = (asked for _, _, asked in speaker.seen())
    assert plain == {
        "input": [{"role": "user", "content": "Reply with the single word: ready"}],
        "max_output_tokens": 16,
        "model": "gpt-5-codex",
        "store": False,
        "stream": False,
    }
    assert streamed == {**plain, "stream": True}
    assert {path for path, *_ in speaker.seen()} == {"/v1/responses"}

    with OpenAI(base_url=f"{site.server}/api/v1", api_key=site.tenant.api_key) as client:
        answer = client.responses.create(model=site.model.slug, input="Hi", store=False)
    assert answer.output_text == "I look."
    row = site.settled()
    assert (str(row.private_endpoint_id), row.is_byok) == (created.json()["data"]["id"], True)
    # It has no chat, so the other faces name it as excluded.
    refused = site.chat()
    assert refused.status_code == 404
    excluded = refused.json()["error"]["metadata"]["excluded"]
    assert [each["excluded_by"] for each in excluded] == [["native_format"]]


def test_its_calls_cost_what_they_report(site: Site, maker: Provider, speaker: Upstream) -> None:
    price = factories.make_price("0.001", "0.01", cache_read="0.0001")
    result = validate(site, make_draft(site, maker, speaker.base_url, price=price))
    assert result.checks == [{"name": name, "passed": True} for name in CHECKS]
    assert result.cost_nano == 2 * (80 * 1_000_000 + 20 * 100_000 + 40 * 10_000_000)
    assert result.evidence["model"] == "gpt-5-codex"
    assert result.evidence["prompt_tokens"] == 100


def test_an_answer_that_ends_at_its_bound_passes(
    site: Site, maker: Provider, speaker: Upstream
) -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    speaker.answer = {**RESPONSE, **cut}
    ended = {"type": "response.incomplete", "response": speaker.answer}
    speaker.events = [*EVENTS[:-1], {**EVENTS[-1], **ended}]
    assert validate(site, make_draft(site, maker, speaker.base_url)).passed


# No request for a response has the newer name of chat's bound.
PROVEN: Final = {name: "proven" for name in TRIED_NAMES if name != "max_completion_tokens"}


def learn(site: Site, maker: Provider, speaker: Upstream, model: Able) -> dict[str, str]:
    """Returns what a validation proves about a model that does what it is asked for."""
    LanguageModel.objects.update(input_modalities=["text", "image"])
    site.model.refresh_from_db()
    speaker.answer = model.respond
    result = validate(site, make_draft(site, maker, speaker.base_url), probe_parameters=True)
    assert result.passed, result.checks
    return dict(result.parameters or {})


def test_parameters_are_proven_by_responses(site: Site, maker: Provider, speaker: Upstream) -> None:
    assert learn(site, maker, speaker, Able()) == PROVEN
    asked = [body for _, _, body in speaker.seen()]
    assert {path for path, *_ in speaker.seen()} == {"/v1/responses"}
    assert len(asked) == 2 + 13
    assert not any("messages" in body or body["store"] for body in asked)
    assert sorted({body["max_output_tokens"] for body in asked}) == [16, 512]


NAMES: Final = {
    "stop": ["stop"],
    "tools": ["tools", "tool_choice"],
    "parallel_tool_calls": ["parallel_tool_calls"],
    "structured_outputs": ["structured_outputs"],
    "response_format": ["response_format"],
    "seed": ["seed"],
    "logprobs": ["logprobs"],
    "top_logprobs": ["top_logprobs"],
    "reasoning": ["reasoning", "reasoning_effort"],
    "image": ["image_input"],
}
AFTER: Final = {"tools": ["parallel_tool_calls"], "logprobs": ["top_logprobs"]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "proof"), [("ignored", "no_effect"), ("refused", "refused"), ("thinking", None)]
)
def test_a_parameter_without_its_effect_is_not_proven_by_a_response(
    site: Site, maker: Provider, speaker: Upstream, name: str, kind: str, proof: str | None
) -> None:
    found = learn(site, maker, speaker, Able(**{kind: name}))
    lacking = NAMES[name]
    # Nobody knows what a model would have done that thought until its bound.
    verdict = {} if proof is None else dict.fromkeys(lacking, proof)
    others = {key: PROVEN[key] for key in PROVEN if key not in (*lacking, *AFTER.get(name, ()))}
    if (kind, name) == ("thinking", "reasoning"):
        verdict = dict.fromkeys(lacking, "proven")
    assert found == {**others, **verdict}


@pytest.mark.parametrize(
    ("answer", "events", "failed"),
    [
        ({"id": "x", "object": "chat.completion", "choices": []}, EVENTS, "response"),
        ({**RESPONSE, "status": "in_progress"}, EVENTS, "response"),
        ({**RESPONSE, "status": "failed", "error": {"message": "no"}}, EVENTS, "response"),
        ({**RESPONSE, "usage": None}, EVENTS, "usage"),
        ({**RESPONSE, "usage": {**USAGE, "input_tokens": 0}}, EVENTS, "usage"),
        ({**RESPONSE, "usage": {**USAGE, "output_tokens": 10**9}}, EVENTS, "usage"),
        ({**RESPONSE, "model": "another"}, EVENTS, "model"),
        (RESPONSE, EVENTS[:-1], "stream"),
        (RESPONSE, [{"type": "news"}], "stream"),
        (RESPONSE, [{"type": "error", "message": "no"}], "stream"),
    ],
)
def test_what_is_no_response_fails_its_check(
    site: Site, maker: Provider, speaker: Upstream, answer: Any, events: list[Any], failed: str
) -> None:
    speaker.answer, speaker.events = answer, events
    draft = make_draft(site, maker, speaker.base_url)
    result = validate(site, draft)
    assert [check["name"] for check in result.checks if not check["passed"]] == [failed]
    assert not result.passed


def test_a_server_of_chats_alone_is_refused(site: Site, maker: Provider, speaker: Upstream) -> None:
    speaker.status, speaker.answer = "404 Not Found", {"error": {"message": "Not Found"}}
    result = validate(site, make_draft(site, maker, speaker.base_url))
    assert result.checks[-1] == {
        "name": "response",
        "passed": False,
        "reason": "upstream_error",
        "upstream_status": 404,
        "upstream_message": "Not Found",
    }
