"""A fallback survives a change of the organization or of the catalogue between two attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from django.db import connection

from accounts.models import ApiKey, Guardrail
from catalog.models import ModelEndpoint, PriceVersion
from inference.models import Generation, KeptAnswer
from tests.support import factories
from tests.support.bulkheads.limits import limit
from tests.support.database.locks import release
from tests.support.governance import make_guardrail
from tests.support.inference.messages import events_of as message_events
from tests.support.inference.repeats import keep_answers
from tests.support.inference.site import CHAT, MESSAGES, Site, content_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.upstreams.speaking import ANSWERS, EVENTS, Upstream
from tests.support.upstreams.standing import listening, make_maker

METADATA = {"X-OpenRouter-Metadata": "enabled"}
ANSWER = "You said: one two"
ORDER = ["acme", "second", "third", "maker"]


@pytest.fixture
def second(site: Site) -> ModelEndpoint:
    """The fallback of a first endpoint, which fails once the test releases it."""
    site.publish("sim-held-status")
    return site.publish("sim-echo", provider=site.another_provider("second"))


def set_price(endpoint: ModelEndpoint, prompt: str, completion: str) -> PriceVersion:
    price = factories.make_price(prompt, completion)
    endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
    endpoint.price.save()
    endpoint.save_fields("price")
    return endpoint.price


def ask(
    site: Site,
    change: Callable[[], object],
    *,
    stream: bool,
    path: str = CHAT,
    headers: Mapping[str, str] = METADATA,
    **fields: Any,
) -> requests.Response:
    """Asks the first endpoint, and makes a change before it fails."""
    body = site.chat_body("one two", stream=stream, provider={"order": ORDER}, **fields)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(site.post, body, path=path, headers=headers)
        site.eventually(lambda: len(site.dialled()) == 1)
        try:
            change()
        finally:
            site.upstream.release()
        return answered.result(timeout=60)


def content(response: requests.Response, *, stream: bool) -> str:
    assert response.status_code == 200, response.text
    if stream:
        return content_of(events_of(response.text))
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def providers(generation: Generation) -> list[str]:
    return [attempt["provider"] for attempt in generation.attempts]


@pytest.fixture(params=[False, True], ids=["plain", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_the_fallback_pays_its_new_price(site: Site, second: ModelEndpoint, stream: bool) -> None:
    response = ask(site, lambda: set_price(second, "0.0000005", "0.000001"), stream=stream)
    assert content(response, stream=stream) == ANSWER
    generation = site.settled()
    assert generation.price_id == ModelEndpoint.objects.get(pk=second.pk).price_id
    assert generation.provider_name == second.provider.name
    assert providers(generation) == ["Acme AI", second.provider.name]
    assert_in_order()


def test_a_change_elsewhere_keeps_the_fallback(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    other = factories.make_endpoint(factories.make_model(), site.provider)
    response = ask(site, lambda: set_price(other, "1", "1"), stream=stream)
    assert content(response, stream=stream) == ANSWER
    assert site.settled().provider_name == second.provider.name
    assert_in_order()


def test_a_change_of_the_organization_keeps_the_fallback(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    def change() -> None:
        make_guardrail(site.tenant.workspace)

    assert content(ask(site, change, stream=stream), stream=stream) == ANSWER
    assert_in_order()


def test_a_candidate_that_a_change_removed_is_not_asked(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    def change() -> None:
        second.is_listed = False
        second.save_fields("is_listed")

    response = ask(site, change, stream=stream)
    assert response.status_code == 502
    generation = site.settled()
    assert providers(generation) == ["Acme AI"]
    assert generation.cost_nano == 0
    assert len(site.dialled()) == 1
    assert_in_order()


def test_a_provider_that_a_change_added_is_asked_after_one_that_it_removed(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    def change() -> None:
        site.publish("sim-echo", provider=site.another_provider("third"))
        second.is_listed = False
        second.save_fields("is_listed")

    assert content(ask(site, change, stream=stream), stream=stream) == ANSWER
    assert [attempt["status"] for attempt in site.settled().attempts] == [500, 200]
    assert (
        ModelEndpoint.objects.get(provider__slug="third").pk
        == Generation.objects.get().model_endpoint_id
    )
    assert_in_order()


def test_a_revoked_key_is_refused_at_its_fallback(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    key = ApiKey.objects.get(name="inference")
    response = ask(site, lambda: key.edit(disabled=True), stream=stream)
    assert response.status_code == 401
    assert response.json()["error"]["message"] == "The API key is disabled."
    assert len(site.dialled()) == 1
    generation = site.settled()
    assert (generation.status, generation.cost_nano) == ("failed", 0)
    assert_in_order()


def test_an_organization_that_forbids_every_endpoint_is_told_so(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    response = ask(
        site, lambda: site.tenant.organization.edit(allowed_providers=["nobody"]), stream=stream
    )
    assert response.status_code == 404
    error = response.json()["error"]
    assert {each["excluded_by"][0] for each in error["metadata"]["excluded"]} == {
        "provider_not_allowed"
    }
    assert len(site.dialled()) == 1
    assert_in_order()


def test_a_candidate_that_may_cost_more_than_is_held_is_left_out(
    site: Site, second: ModelEndpoint
) -> None:
    response = ask(site, lambda: set_price(second, "1", "1"), stream=False, max_tokens=50)
    assert response.status_code == 502
    body = response.json()
    [stage] = body["openrouter_metadata"]["pipeline"]
    assert (stage["type"], stage["name"]) == ("routing", "replanning")
    [excluded] = stage["data"]["excluded"]
    assert (excluded["provider"], excluded["excluded_by"]) == (second.provider.name, ["above_hold"])
    assert len(site.dialled()) == 1
    assert_in_order()


def test_a_model_whose_new_limit_has_not_counted_the_request_is_left_out(
    site: Site, second: ModelEndpoint
) -> None:
    limits = {site.model.slug: {"requests_per_minute": 1}}
    response = ask(site, lambda: limit(site, "organization", models=limits), stream=False)
    assert response.status_code == 502
    [stage] = response.json()["openrouter_metadata"]["pipeline"]
    [excluded] = stage["data"]["excluded"]
    assert (excluded["provider"], excluded["excluded_by"]) == (second.provider.name, ["rate_limit"])
    assert len(site.dialled()) == 1
    assert_in_order()


def test_an_unbounded_answer_is_bounded_by_the_hold(site: Site, second: ModelEndpoint) -> None:
    response = ask(site, lambda: set_price(second, "0.000001", "0.000004"), stream=False)
    assert content(response, stream=False) == ANSWER
    generation = site.settled()
    assert generation.cost_nano <= generation.hold_nano
    assert site.dialled()[1].body["max_tokens"] > 0
    assert_in_order()


def test_the_fallback_obeys_a_content_filter_that_is_new(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    def change() -> None:
        filters = [{"pattern": "two", "action": "redact", "label": "[NUMBER]"}]
        Guardrail.objects.edit_workspace_default(site.tenant.workspace, content_filters=filters)

    assert content(ask(site, change, stream=stream), stream=stream) == "You said: one [NUMBER]"
    assert_in_order()


def test_the_fallback_answers_in_chat_once_a_filter_takes_the_native_form(
    site: Site, stream: bool
) -> None:
    """The header with its date is a part of the native form alone, and cannot be changed."""
    site.publish("sim-held-status")
    maker = Upstream("anthropic", answer=ANSWERS["anthropic"], events=EVENTS["anthropic"])

    def change() -> None:
        filters = [{"pattern": r"\d{4}-\d\d-\d\d", "action": "redact", "label": "[DATE]"}]
        Guardrail.objects.edit_workspace_default(site.tenant.workspace, content_filters=filters)

    with listening(maker):
        site.publish("claude-opus-5", provider=make_maker(maker))
        answer = ask(
            site,
            change,
            stream=stream,
            path=MESSAGES,
            headers={"anthropic-version": "2023-06-01"},
            max_tokens=50,
        )
    assert answer.status_code == 200, answer.text
    if stream:
        events = message_events(answer.content)
        deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
        text = "".join(delta["text"] for delta in deltas)
    else:
        [block] = answer.json()["content"]
        text = block["text"]
    assert text == "It rains."
    assert [each["status"] for each in site.settled().attempts] == [500, 200]
    assert_in_order()


def test_the_answer_of_a_changed_request_is_not_cached_for_the_first_one(
    site: Site, second: ModelEndpoint, stream: bool
) -> None:
    keep_answers(site.tenant)

    def change() -> None:
        filters = [{"pattern": "two", "action": "redact", "label": "[NUMBER]"}]
        Guardrail.objects.edit_workspace_default(site.tenant.workspace, content_filters=filters)

    answer = ask(site, change, stream=stream, headers={"X-OpenRouter-Cache": "true"})
    assert content(answer, stream=stream) == "You said: one [NUMBER]"
    site.wait_for_settlement()
    assert not KeptAnswer.objects.exists()


@pytest.mark.parametrize(
    "headers", [{"X-OpenRouter-Cache": "true"}, {"Idempotency-Key": "order 17 / try 1"}]
)
def test_an_answer_is_not_kept_if_zero_retention_begins_before_the_fallback(
    site: Site, second: ModelEndpoint, stream: bool, headers: dict[str, str]
) -> None:
    keep_answers(site.tenant)
    factories.change(second, zdr=True)

    def change() -> None:
        Guardrail.objects.edit_workspace_default(site.tenant.workspace, enforce_zdr=True)

    assert content(ask(site, change, stream=stream, headers=headers), stream=stream) == ANSWER
    assert site.settled().provider_name == second.provider.name
    assert not KeptAnswer.objects.exists()


def test_requests_whose_fallbacks_fail_together_are_not_told_of_each_other(
    site: Site, second: ModelEndpoint
) -> None:
    """The keys of all but the first are read with one statement, which meets a lock."""
    body = site.chat_body("one two", provider={"order": ORDER})
    other = factories.make_tenant("Other").api_key
    asked: list[dict[str, Any]] = [{"headers": METADATA}] * 2 + [{"key": other}] * 2
    session = connection.copy()
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = []
        for number, options in enumerate(asked, 1):
            answers.append(pool.submit(site.post, body, **options))
            site.eventually(lambda number=number: len(site.dialled()) == number)
        set_price(second, "0.0000005", "0.000001")
        try:
            session.set_autocommit(False)
            with session.cursor() as cursor:
                cursor.execute("LOCK TABLE accounts_memberassignment IN ACCESS EXCLUSIVE MODE")
            site.upstream.release(len(asked))
            found = [answer.result(timeout=60) for answer in answers]
        finally:
            release(session)
    assert [answer.status_code for answer in found] == [503] * len(asked)
    told = ["openrouter_metadata" in answer.json() for answer in found]
    assert told == [True, True, False, False]
    assert_in_order()
