"""A provider that refuses the operator's credential is the operator's problem, not the caller's."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from prometheus_client import REGISTRY

from catalog.models import CredentialRefusal, ModelEndpoint, Provider
from config.credentials import Secret
from inference.exchange.failures import CredentialRefused
from tests.support import factories
from tests.support.console import page
from tests.support.inference.health import failures_of, is_paused
from tests.support.inference.site import OPERATOR_SECRET, Site
from tests.support.ledger import assert_in_order

NAMED = [
    ("sim-status:401", 401),
    ("sim-status:402", 402),
    ("sim-status:403", 403),
    ("sim-named:403,PERMISSION_DENIED", 403),
    ("sim-named:429,insufficient_quota", 429),
    ("sim-named:400,API_KEY_INVALID", 400),
    ("sim-reported:insufficient_quota", 502),
    ("sim-reported:authentication_error", 502),
]


@pytest.fixture
def unpaid(site: Site, request: pytest.FixtureRequest) -> Provider:
    """A provider of this test alone: a worker logs one line a minute for each."""
    name = "".join(letter for letter in request.node.name.lower() if letter.isalnum())
    return site.another_provider(f"unpaid-{name[-80:]}", name="Unpaid AI")


def alerts_of(provider: Provider) -> float:
    name = "causeway_refused_credentials_total"
    return REGISTRY.get_sample_value(name, {"provider": provider.slug}) or 0


def is_marked(provider: Provider) -> bool:
    return CredentialRefusal.objects.filter(provider=provider).exists()


def provoke(site: Site, provider: Provider, behaviour: str) -> ModelEndpoint:
    """Publishes the model at a provider whose refusal marks it."""
    endpoint = site.publish(behaviour, provider=provider)
    assert site.chat().status_code == 502
    site.eventually(lambda: is_marked(provider))
    return endpoint


@pytest.mark.parametrize(("behaviour", "status"), NAMED)
def test_a_refusal_has_a_fixed_text_and_alarms_the_operator(
    site: Site, unpaid: Provider, behaviour: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    site.publish(behaviour, provider=unpaid)
    answers = [site.chat() for _ in range(2)]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["message"]) == (502, CredentialRefused.message)
        assert error["metadata"] == {
            "error_type": "provider_unavailable",
            "provider_name": "Unpaid AI",
            "kind": "credential",
            "attempt": 1,
            "candidates": 1,
        }
        assert "Retry-After" not in answer.headers
    assert alerts_of(unpaid) == 2
    lines = [each.getMessage() for each in caplog.records if unpaid.slug in each.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"the provider {unpaid.slug} refuses ")
    assert OPERATOR_SECRET not in caplog.text
    site.eventually(lambda: is_marked(unpaid))
    generation_id = answers[0].headers["X-Generation-Id"]
    shown = site.get(f"/api/v1/generation?id={generation_id}").json()["data"]
    assert [one["status"] for one in shown["provider_responses"]] == [502]
    assert_in_order()


def test_the_routing_metadata_does_not_tell_the_status_either(site: Site, unpaid: Provider) -> None:
    site.publish("sim-status:402", provider=unpaid)
    headers = {"X-OpenRouter-Metadata": "enabled"}
    answer = site.post(site.chat_body(), headers=headers)
    [attempt] = answer.json()["openrouter_metadata"]["attempts"]
    assert attempt["status"] == 502
    assert [one["status"] for one in site.settled().attempts] == [402]


def test_the_mark_goes_when_the_credential_works_again(site: Site, unpaid: Provider) -> None:
    endpoint = provoke(site, unpaid, "sim-status:402")
    endpoint.upstream_model_id = "sim-echo"
    endpoint.save_fields("upstream_model_id")
    assert site.chat().status_code == 200
    site.eventually(lambda: not is_marked(unpaid))


def test_a_new_credential_has_no_mark(site: Site, unpaid: Provider) -> None:
    provoke(site, unpaid, "sim-status:401")
    unpaid.set_credential(Secret("another-credential-9876543210"))
    assert not is_marked(unpaid)


def test_the_console_shows_the_refusal(site: Site, unpaid: Provider, operator: Client) -> None:
    provoke(site, unpaid, "sim-named:429,insufficient_quota")
    text = operator.get(page(unpaid)).content.decode().replace("&#x27;", "'")
    assert "insufficient_quota: The provider's own words." in text
    listed = operator.get("/admin/catalog/provider/?credential=refused")
    assert [each.slug for each in listed.context["cl"].result_list] == [unpaid.slug]
    cards = {card.title: card for card in operator.get("/admin/").context["dashboard"]["cards"]}
    assert cards["Refused credentials"].is_alarming


def test_all_endpoints_of_the_account_are_tried_last(site: Site, unpaid: Provider) -> None:
    site.publish("sim-status:402", provider=unpaid)
    other = site.publish(model=factories.make_model("acme/eagle"), provider=unpaid)
    unaffected = site.publish(model=other.model)
    assert site.chat().status_code == 502
    site.eventually(lambda: is_paused(other.pk))
    assert not is_paused(unaffected.pk)


def test_a_permission_that_is_missing_pauses_its_endpoint_alone(
    site: Site, unpaid: Provider
) -> None:
    refused = site.publish("sim-status:403", provider=unpaid)
    other = site.publish(model=factories.make_model("acme/eagle"), provider=unpaid)
    assert site.chat().status_code == 502
    site.eventually(lambda: is_paused(refused.pk))
    assert not is_paused(other.pk)


def test_a_bare_403_which_any_caller_may_provoke_alarms_nobody(
    site: Site, unpaid: Provider
) -> None:
    endpoint = site.publish("sim-firewall", provider=unpaid)
    assert site.chat().json()["error"]["message"] == CredentialRefused.message
    assert alerts_of(unpaid) == 0
    site.eventually(lambda: failures_of(endpoint.pk) == 1)
    assert not is_paused(endpoint.pk)
    assert not is_marked(unpaid)


def test_a_file_that_the_caller_names_harms_no_other_caller(site: Site, unpaid: Provider) -> None:
    endpoint = site.publish("sim-strange-file", provider=unpaid)
    answer = site.chat()
    error = answer.json()["error"]
    assert (answer.status_code, error["metadata"]["kind"]) == (400, "status")
    assert "access the File" in error["message"]
    assert alerts_of(unpaid) == 0
    assert not failures_of(endpoint.pk)
    assert not is_paused(endpoint.pk)
    assert not is_marked(unpaid)


@pytest.mark.parametrize(
    ("behaviour", "status", "message"),
    [
        ("sim-status:401", 502, "Incorrect API key provided."),
        ("sim-status:403", 502, "This key may not use this model."),
        ("sim-named:429,insufficient_quota", 429, "The provider's own words."),
        ("sim-reported:insufficient_quota", 502, "The provider's own words."),
        ("sim-echo-key:401", 502, "Incorrect API key provided: Bearer ********."),
    ],
)
@pytest.mark.parametrize("is_private", [False, True])
def test_an_own_credential_has_the_providers_message(
    site: Site, unpaid: Provider, behaviour: str, status: int, message: str, is_private: bool
) -> None:
    if is_private:
        site.own(behaviour, provider=unpaid)
    else:
        factories.make_credential(site.tenant, unpaid)
        unpaid.sealed_credential = None
        unpaid.save_fields("sealed_credential")
        site.publish(behaviour, provider=unpaid)
    answer = site.chat()
    error: Any = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (status, message)
    assert error["metadata"]["kind"] in ("status", "reported")
    assert alerts_of(unpaid) == 0


@pytest.mark.parametrize("behaviour", [behaviour for behaviour, _ in NAMED])
@pytest.mark.parametrize("stream", [False, True])
def test_another_provider_answers(
    site: Site, unpaid: Provider, behaviour: str, stream: bool
) -> None:
    site.publish(behaviour, provider=unpaid)
    site.publish()
    assert site.chat(stream=stream, provider={"order": [unpaid.slug]}).status_code == 200
    row = site.settled()
    assert [each.get("kind") for each in row.attempts] == ["credential", None]
    assert row.provider_name == "Acme AI"
