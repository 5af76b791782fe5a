"""Completions through the Anthropic and Gemini dialects, from the caller and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from catalog.models import Provider
from config.api.errors import UpstreamOverloaded, UpstreamRateLimited
from config.credentials import Secret
from inference.models import Generation
from tests.support import factories
from tests.support.inference.pictures import ENCODED, reference
from tests.support.inference.prices import cost_details
from tests.support.inference.site import (
    OPERATOR_SECRET,
    TENANT_SECRET,
    Site,
    content_of,
    error_of,
    events_of,
)
from tests.support.upstreams.speaking import ANSWERS, EVENTS, PATHS, Upstream
from tests.support.upstreams.tls import serving, trusted_context

MODELS: Final = {"anthropic": "claude-opus-4-6", "gemini": "gemini-3.8-flash"}
# Counts that nobody made are absent.
REASONED: Final[dict[str, Any]] = {
    "gemini": {"completion_tokens_details": {"reasoning_tokens": 15}},
    "anthropic": {},
}
MASKED: Final = "Not with ********."
LOGINS: Final = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}


@pytest.fixture(params=sorted(MODELS))
def upstream(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    kind = request.param
    made = Upstream(kind, answer=ANSWERS[kind], events=EVENTS[kind])
    with serving(made, trusted_context()) as made.server:
        yield made


def publish(site: Site, upstream: Upstream, **fields: Any) -> Provider:
    """Publishes the model at a new provider with the operator's credential."""
    provider = factories.make_provider(
        "maker", name="Maker", dialect=upstream.kind, base_url=upstream.base_url
    )
    provider.set_credential(Secret(OPERATOR_SECRET))
    site.publish(MODELS[upstream.kind], provider=provider, **fields)
    return provider


def test_a_chat_is_translated_both_ways(site: Site, upstream: Upstream) -> None:
    publish(site, upstream, price=factories.make_price(cache_read="0.0000001"))
    answer = site.chat(max_tokens=50, user="ada@example.com")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "It rains."},
            "logprobs": None,
            "finish_reason": "stop",
            "native_finish_reason": "end_turn" if upstream.kind == "anthropic" else "STOP",
        }
    ]
    assert (body["object"], body["system_fingerprint"]) == ("chat.completion", None)
    assert (body["model"], body["provider"]) == (site.model.slug, "Maker")
    # 10 uncached and 20 cached prompt tokens, 40 completion tokens.
    cost = 0.000092
    assert body["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 40,
        "total_tokens": 70,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
        **REASONED[upstream.kind],
        "cost": cost,
        "is_byok": False,
        "cost_details": cost_details(cost, 0.000012, 0.00008),
    }
    [(path, headers, sent)] = upstream.seen()
    assert (path, headers[LOGINS[upstream.kind]]) == (PATHS[upstream.kind][0], OPERATOR_SECRET)
    assert "authorization" not in headers
    assert "ada@example.com" not in json.dumps(sent)
    settled = site.settled()
    assert (settled.status, settled.upstream_model) == ("completed", MODELS[upstream.kind])


def test_a_chat_without_max_tokens_is_sent_the_held_limit_if_the_dialect_requires_one(
    site: Site, upstream: Upstream
) -> None:
    publish(site, upstream, max_completion_tokens=2000)
    assert site.chat().status_code == 200
    [(_, _, sent)] = upstream.seen()
    # The hold covers 2,000 completion tokens; Gemini applies its own limit.
    assert sent.get("max_tokens") == (2000 if upstream.kind == "anthropic" else None)


def test_a_streamed_chat_is_translated_both_ways(site: Site, upstream: Upstream) -> None:
    publish(site, upstream)
    answer = site.chat(stream=True)
    assert answer.status_code == 200, answer.text
    events = events_of(answer.text)
    assert content_of(events) == "It rains."
    assert events[-1] == "[DONE]"
    usage = events[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30, 40)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 20
    assert [event["choices"][0]["finish_reason"] for event in events[:-2]][-1] == "stop"
    assert all("usage" not in event for event in events[:-2])
    assert [path for path, _, _ in upstream.seen()] == [PATHS[upstream.kind][1]]
    settled = site.settled()
    assert (settled.status, settled.is_estimated) == ("completed", False)


def test_what_the_format_of_messages_lacks_is_named(site: Site, upstream: Upstream) -> None:
    publish(site, upstream)
    said = [
        {"role": "user", "content": "Draw.", "name": "Ada"},
        {"role": "assistant", "content": "Here.", "images": [reference()]},
        {"role": "user", "content": "Now in blue."},
    ]
    answer = site.post({**site.chat_body(), "messages": said})
    assert answer.status_code == 200, answer.text
    [(_, _, sent)] = upstream.seen()
    is_shown = ENCODED in json.dumps(sent)
    assert is_shown is (upstream.kind == "gemini")
    lost = ["messages.name"] if is_shown else ["messages.images", "messages.name"]
    assert answer.headers["X-Left-Out"] == ", ".join(lost)


def candidate(part: dict[str, Any], *, index: int = 0, usage: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer of Gemini that ends with this part."""
    found = {"content": {"parts": [part]}, "finishReason": "STOP", "index": index}
    return {"candidates": [found], "usageMetadata": usage}


@pytest.mark.parametrize("upstream", ["gemini"], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_a_generated_image_is_charged_by_its_tokens_and_a_sent_one_is_not(
    site: Site, upstream: Upstream, stream: bool
) -> None:
    publish(site, upstream, price=factories.make_price(image_output="0.00003"))
    blob = {"mimeType": "image/png", "data": "AAAA"}
    usage = {
        "promptTokenCount": 300,
        "candidatesTokenCount": 1300,
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
    }
    upstream.answer = candidate({"inlineData": blob}, usage=usage)
    upstream.events = [upstream.answer]
    sent = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = site.chat([{"type": "text", "text": "Draw."}, sent], stream=stream)
    assert answer.status_code == 200, answer.text
    settled = site.settled()
    assert settled.status == Generation.Status.COMPLETED
    # 300 prompt tokens, 10 text tokens and 1,290 image tokens.
    assert settled.cost_nano == 300_000 + 20_000 + 38_700_000
    assert settled.hold_nano > settled.cost_nano


@pytest.mark.parametrize("upstream", ["gemini"], indirect=True)
@pytest.mark.parametrize("choices", [2, 3])
def test_successive_choices_are_all_delivered(site: Site, upstream: Upstream, choices: int) -> None:
    publish(site, upstream)
    first, last = ({"promptTokenCount": 30, "candidatesTokenCount": each} for each in (20, 40))
    upstream.events = [
        candidate({"text": "It "}, usage=first), candidate({"text": "rains."}, index=1, usage=last),
    ]  # fmt: skip
    events = events_of(site.chat(stream=True, n=choices).text)
    assert content_of(events[:-1]) == "It rains."
    assert events[-1] == "[DONE]"
    usage = events[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30, 40)
    assert site.settled().status == Generation.Status.COMPLETED


def test_a_private_endpoint_is_validated_and_used(site: Site, upstream: Upstream) -> None:
    provider = factories.make_provider("maker", dialect=upstream.kind, base_url=upstream.base_url)
    model = MODELS[upstream.kind]
    site.own(model, provider=provider, base_url=upstream.base_url, upstream_model_id=model)
    answer = site.chat()
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["is_byok"] is True
    # Two calls of the validation and one of the caller.
    plain, streamed = PATHS[upstream.kind]
    assert [path for path, _, _ in upstream.seen()] == [plain, streamed, plain]
    assert {headers[LOGINS[upstream.kind]] for _, headers, _ in upstream.seen()} == {TENANT_SECRET}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_dialect_cannot_express_falls_back(
    site: Site, upstream: Upstream, stream: bool
) -> None:
    publish(site, upstream, price=factories.make_price("0.0000001", "0.0000001"))
    site.publish()
    content = [{"type": "guess", "guess": 1}, {"type": "text", "text": "one two"}]
    answer = site.chat(content, stream=stream, provider={"sort": "price"})
    assert answer.status_code == 200, answer.text
    assert len(site.dialled()) == 1
    assert upstream.seen() == []
    assert [attempt["status"] for attempt in site.settled().attempts] == [400, 200]


def test_a_request_that_no_dialect_can_express_is_a_bad_request(
    site: Site, upstream: Upstream
) -> None:
    publish(site, upstream)
    error = error_of(site.chat([{"type": "guess"}]), 400)
    assert error == {
        "code": 400,
        "message": "This provider does not accept a part of the type 'guess'.",
        "metadata": {
            "error_type": "invalid_request",
            "provider_name": "Maker",
            "kind": "untranslatable",
            "attempt": 1,
            "candidates": 1,
        },
    }
    assert upstream.seen() == []
    settled = site.settled()
    assert (settled.status, settled.cost_nano) == (Generation.Status.FAILED, 0)


def test_a_schema_that_no_dialect_can_read_is_refused_before_admission(site: Site) -> None:
    site.publish()
    schema = {"type": "object", "properties": {"a": {"maximum": 1e308}}}
    function = {"name": "look", "parameters": schema, "strict": True}
    tool = {"type": "function", "function": function}
    body = json.dumps(site.chat_body(tools=[tool])).replace("1e+308", "1e999").encode()
    answer = site.post(None, data=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "tools: Has a number that is out of range."
    assert not Generation.objects.exists()


@pytest.mark.parametrize(
    ("status", "ours", "error_type", "message"),
    [
        ("400 Bad Request", 400, "invalid_request", MASKED),
        ("404 Not Found", 502, "provider_unavailable", MASKED),
        ("429 Too Many Requests", 429, "rate_limit_exceeded", UpstreamRateLimited.message),
        ("503 Service Unavailable", 503, "provider_overloaded", UpstreamOverloaded.message),
        ("529 Overloaded", 529, "provider_overloaded", UpstreamOverloaded.message),
    ],
)
def test_an_error_is_reported_without_the_credential(
    site: Site, upstream: Upstream, status: str, ours: int, error_type: str, message: str
) -> None:
    publish(site, upstream)
    code = int(status[:3])
    upstream.status = status
    upstream.answer = {
        "type": "error",
        "error": {
            "type": "some_error",
            "message": f"Not with {OPERATOR_SECRET}.",
            **({"code": code, "status": "SOME_ERROR"} if upstream.kind == "gemini" else {}),
        },
    }
    error = error_of(site.chat(), ours)
    assert error == {
        "code": ours,
        "message": message,
        "metadata": {
            "error_type": error_type,
            "provider_name": "Maker",
            "kind": "status",
            "attempt": 1,
            "candidates": 1,
            "upstream_status": code,
            "provider_code": "SOME_ERROR" if upstream.kind == "gemini" else "some_error",
        },
    }
    assert site.settled().status == Generation.Status.FAILED


def test_a_stream_that_breaks_off_ends_in_an_error(site: Site, upstream: Upstream) -> None:
    publish(site, upstream)
    # A finish reason and a usage would make the stream whole without its end mark.
    upstream.events = EVENTS[upstream.kind][: -2 if upstream.kind == "anthropic" else -1]
    events = events_of(site.chat(stream=True).text)
    assert events[-1]["error"]["message"] == (
        "The upstream provider's answer is not valid: The stream ended without its end mark."
    )
    settled = site.settled()
    assert (settled.status, settled.is_estimated) == ("failed", upstream.kind == "anthropic")


def test_a_stream_that_breaks_off_is_charged_by_its_counted_prompt_tokens(
    site: Site, upstream: Upstream
) -> None:
    publish(site, upstream, price=factories.make_price(cache_read="0.0000001"))
    upstream.events = EVENTS[upstream.kind][:4]
    if upstream.kind == "gemini":
        details = {"promptTokenCount": 30, "cachedContentTokenCount": 20, "candidatesTokenCount": 1}
        upstream.events = [{**EVENTS["gemini"][0], "usageMetadata": details}]
    events = events_of(site.chat("one two " * 1000, stream=True).text)
    assert [content_of(events[:-1]), "error" in events[-1]] == ["It ", True]
    assert all("usage" not in event for event in events)
    settled = site.settled()
    assert settled.status == Generation.Status.FAILED
    assert (settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens) == (30, 20, 1)
    # 10 uncached and 20 cached prompt tokens; "It " counts as one completion token.
    assert settled.cost_nano == 14_000
    # Anthropic sends the usage of the answer at its end.
    assert settled.is_estimated is (upstream.kind == "anthropic")


def test_a_stream_that_breaks_off_without_usage_is_charged_by_estimate(
    site: Site, upstream: Upstream
) -> None:
    publish(site, upstream)
    if upstream.kind == "anthropic":
        usage = {"input_tokens": 0, "output_tokens": 0}
        message = {**ANSWERS["anthropic"], "content": [], "stop_reason": None, "usage": usage}
        upstream.events = [{"type": "message_start", "message": message}, *EVENTS["anthropic"][1:4]]
    else:
        upstream.events = [{**EVENTS["gemini"][0], "usageMetadata": None}]
    site.chat("one two " * 1000, stream=True)
    settled = site.settled()
    assert settled.prompt_tokens > 1000
    assert settled.is_estimated


def test_a_stream_that_breaks_off_before_any_text_costs_nothing(
    site: Site, upstream: Upstream
) -> None:
    publish(site, upstream)
    upstream.events = EVENTS[upstream.kind][:1]
    if upstream.kind == "gemini":
        upstream.events = [
            {"candidates": [{"index": 0}], "usageMetadata": {"promptTokenCount": 30}}
        ]
    events = events_of(site.chat(stream=True).text)
    assert "error" in events[-1]
    settled = site.settled()
    assert (settled.status, settled.cost_nano) == (Generation.Status.FAILED, 0)


def test_an_error_before_the_first_relayed_event_falls_back(site: Site, upstream: Upstream) -> None:
    publish(site, upstream, price=factories.make_price("0.0000001", "0.0000001"))
    site.publish()
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    # All events arrive in one read, before any of them is relayed.
    upstream.events = [*EVENTS[upstream.kind][:-1], error]
    # Sorts by price because the default order is a weighted random draw.
    events = events_of(site.chat(stream=True, provider={"sort": "price"}).text)
    assert content_of(events) == "You said: one two"
    assert events[-1] == "[DONE]"
    settled = site.settled()
    assert [attempt["status"] for attempt in settled.attempts] == [529, 200]
    assert settled.status == Generation.Status.COMPLETED
