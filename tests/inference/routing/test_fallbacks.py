"""Refusals of a prompt or its content: the next model is tried, and the last error is answered."""

from __future__ import annotations

from typing import Any

import pytest

from catalog.models import LanguageModel
from inference.models import Generation
from tests.support import factories
from tests.support.inference.site import OPERATOR_SECRET, Site, content_of, events_of

LONG_CODE = ("sim-error-code", 400, "context_length_exceeded", "The request is not valid.")
TOO_LONG = (
    "This model's maximum context length is 8 tokens. However, your messages resulted in 9000 "
    "tokens."
)
LONG_WORDS = ("sim-too-long", 400, "context_length_exceeded", TOO_LONG)
MODERATED = ("content_policy_violation", "Your input was flagged by our moderation.")
FLAGGED = ("sim-flagged", 403, *MODERATED)
FLAGGED_400 = ("sim-flagged:400", 400, *MODERATED)
REFUSALS = pytest.mark.parametrize(
    ("behaviour", "status", "error_type", "message"), [LONG_CODE, LONG_WORDS, FLAGGED, FLAGGED_400]
)


def asked_upstream(site: Site) -> list[str]:
    return [request.body["model"] for request in site.dialled()]


def another_model(site: Site, behaviour: str = "sim-echo", **fields: Any) -> LanguageModel:
    model = factories.make_model("acme/eagle")
    site.publish(behaviour, model=model, **fields)
    return model


@REFUSALS
@pytest.mark.parametrize("stream", [False, True])
def test_the_next_model_answers(
    site: Site, behaviour: str, status: int, error_type: str, message: str, stream: bool
) -> None:
    site.publish(behaviour)
    other = another_model(site)
    answer = site.chat(models=[site.model.slug, other.slug], stream=stream, usage={"include": True})
    assert answer.status_code == 200
    if stream:
        assert content_of(events_of(answer.text)) == "You said: one two"
    else:
        assert answer.json()["model"] == "acme/eagle"
    assert asked_upstream(site) == [behaviour, "sim-echo"]
    generation = site.settled()
    assert generation.status == Generation.Status.COMPLETED
    assert [(one["status"], one.get("error_type")) for one in generation.attempts] == [
        (status, error_type),
        (200, None),
    ]


@REFUSALS
def test_the_same_model_is_not_asked_elsewhere_and_the_refusal_is_answered(
    site: Site, behaviour: str, status: int, error_type: str, message: str
) -> None:
    site.publish(behaviour, price=factories.make_price("0"))
    site.publish("sim-echo", provider=site.another_provider("beta"))
    answer = site.chat(provider={"sort": "price"})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == (status, message)
    assert error["metadata"]["error_type"] == error_type
    assert error["metadata"]["upstream_status"] == status
    assert asked_upstream(site) == [behaviour]
    generation = site.settled()
    assert (generation.status, generation.cost_nano) == (Generation.Status.FAILED, 0)
    assert generation.error_type == error_type


def test_a_longer_context_of_the_same_model_is_tried_and_an_equal_one_is_not(site: Site) -> None:
    cheapest = factories.make_price("0", "0")
    site.publish("sim-too-long", context_length=8192, price=cheapest)
    for slug, length in (("equal", 8192), ("shorter", 8191), ("unknown", None)):
        provider = site.another_provider(slug)
        site.publish("sim-status:500", provider=provider, context_length=length, price=cheapest)
    site.publish("sim-echo", provider=site.another_provider("longer"), context_length=8193)
    answer = site.chat(provider={"order": ["acme"]})
    assert answer.status_code == 200
    assert asked_upstream(site) == ["sim-too-long", "sim-echo"]
    assert site.dialled()[-1].headers["authorization"] == f"Bearer {OPERATOR_SECRET}-longer"


def test_the_last_error_is_answered_when_every_model_refuses(site: Site) -> None:
    site.publish("sim-too-long")
    other = another_model(site, "sim-flagged")
    answer = site.chat(models=[site.model.slug, other.slug])
    assert (answer.status_code, answer.json()["error"]["message"]) == (403, MODERATED[1])
    assert asked_upstream(site) == ["sim-too-long", "sim-flagged"]


def test_a_plain_refusal_ends_the_request(site: Site) -> None:
    site.publish("sim-status:400")
    other = another_model(site)
    answer = site.chat(models=[site.model.slug, other.slug])
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["error_type"] == "invalid_request"
    assert asked_upstream(site) == ["sim-status:400"]


def test_without_fallbacks_a_refusal_is_answered(site: Site) -> None:
    site.publish("sim-too-long")
    other = another_model(site)
    answer = site.chat(models=[site.model.slug, other.slug], provider={"allow_fallbacks": False})
    assert answer.status_code == 400
    assert asked_upstream(site) == ["sim-too-long"]


def test_flagged_content_says_nothing_about_the_health_of_an_endpoint(site: Site) -> None:
    site.publish("sim-flagged")
    for _ in range(6):
        assert site.chat().status_code == 403
    [candidate] = site.explain()["candidates"]
    assert candidate["health"]["state"] == "healthy"
    assert candidate["health"]["failure_share"] == 0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"transforms": ["middle-out"]}, "transforms"),
        ({"plugins": [{"id": "context-compression"}]}, "plugins[0].id"),
        ({"plugins": [{"id": "context-compression", "engine": "middle-out"}]}, "plugins[0].id"),
    ],
)
@pytest.mark.parametrize("context_length", [8, None])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_a_prompt_is_not_shortened_and_one_that_does_not_fit_is_refused_by_name(
    site: Site, path: str, context_length: int | None, asked: dict[str, Any], field: str
) -> None:
    """The catalogue knows that it is too long, or the provider says so."""
    site.publish("sim-too-long" if context_length is None else "sim-echo",
                 context_length=context_length)  # fmt: skip
    fits = another_model(site)
    words = "word " * 60
    prompt = {"input": words} if path == "responses" else {
        "messages": [{"role": "user", "content": words}], "max_tokens": 9,
    }  # fmt: skip
    path = f"/api/v1/{path}"
    answer = site.post({"model": fits.slug, **prompt, **asked}, path=path)
    assert answer.status_code == 200
    [sent] = site.dialled()
    assert not {"transforms", "plugins"} & sent.body.keys()
    answer = site.post({"model": site.model.slug, **prompt, **asked}, path=path)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(f"{field}: This service does not shorten prompts. Th")
    details = error["details"] if path.endswith("messages") else error["metadata"]
    assert details.get("error_type", details.get("error_code")) == "context_length_exceeded"
    assert details["fields"] == {field: "This service does not shorten prompts."}
