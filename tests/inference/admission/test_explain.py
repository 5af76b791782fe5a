"""Explain returns the router's decision for a request; it sends, holds and stores nothing."""

from __future__ import annotations

import json
import time
import uuid
from decimal import Decimal
from typing import Any

import pytest
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory

from accounts.models import ApiKey, Guardrail
from billing.models import Account, Transfer
from catalog.aliases import changes
from config.secrets import digest_api_key
from inference.models import Generation
from inference.routing.health import AttemptOutcome, HealthTable
from inference.views import ExplanationViewSet
from tests.support import factories
from tests.support.broadcast.destinations import make_destination
from tests.support.governance import make_key
from tests.support.inference.health import exchange
from tests.support.inference.prices import read_pricing
from tests.support.inference.site import Site
from tests.support.upstreams.recorded import RATES

PRICE = {"prompt": "0.000001", "completion": "0.000002", "request": "0", "image": "0"}
UNTRIED = {"state": "healthy", "failure_share": 0.0, "latency": None, "throughput": None}


def asked_of(site: Site, query: str, body: dict[str, Any], key: str | None = None) -> Response:
    request = APIRequestFactory().post(
        f"/api/v1/routing/explain{query}",
        json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {key or site.tenant.api_key}"},
    )
    return ExplanationViewSet.as_view({"post": "create"})(request)


def asked(site: Site, *, key: str | None = None, **body: Any) -> Response:
    return asked_of(site, "", {**site.chat_body("Hi"), **body}, key)


def explained(site: Site, **body: Any) -> dict[str, Any]:
    answer = asked(site, **body)
    assert answer.status_code == 200, answer.data
    assert not Generation.objects.exists()
    assert site.upstream.requests == []
    data: dict[str, Any] = answer.data["data"]
    return data


def test_explain_lists_candidates_in_order_and_excluded_endpoints(site: Site) -> None:
    site.allow_fallback()
    private = site.own()
    public = site.publish(provider=site.another_provider("beta"))
    site.publish(provider=site.another_provider("gamma"))
    bound = len('[{"role": "user", "content": "Hi"}]') + len("100")
    cost = (bound * 1000 + 100 * 2000) / 1e9
    parts = {
        "tokenizer": "unknown",
        "text": bound,
        "added": 0,
        "media": 0,
        "results": 0,
        "choices": 1,
        "answer": 100,
        "thought": 0,
        "units": {},
    }
    both = {"model": "acme/falcon", "bound": parts, "health": UNTRIED}
    assert explained(site, max_tokens=100, provider={"ignore": ["gamma"]}) == {
        "requested": "acme/falcon",
        "model": "acme/falcon",
        "resolution": None,
        "candidates": [
            {
                **both,
                "order": 1,
                "provider": "Acme AI",
                "endpoint_id": str(private.pk),
                "private": True,
                "is_byok": True,
                "price": dict.fromkeys(PRICE, "0"),
                "worst_case_cost": 0.0,
            },
            {
                **both,
                "order": 2,
                "provider": "Beta",
                "endpoint_id": str(public.pk),
                "private": False,
                "is_byok": False,
                "price": PRICE,
                "worst_case_cost": cost,
            },
        ],
        "excluded": [
            {
                "provider": "Gamma",
                "private": False,
                "model": "acme/falcon",
                "excluded_by": ["provider_ignored"],
            }
        ],
        "needs": {
            "input_modalities": [],
            "output_modalities": [],
            "least_prompt_tokens": 0,
            "max_tokens": 100,
        },
        "budget": None,
        "shadows": [],
        "policy": {
            "allowed_providers": None,
            "ignored_providers": [],
            "allowed_models": None,
            "ignored_models": [],
            "zdr": [],
            "data_collection": "allow",
            "served_in": None,
            "fallback": "any",
        },
        "broadcast": [],
        "io_logging": {
            "is_logged": False,
            "reason": "workspace",
            "sampling_rate": 0.0,
            "retention_days": 0,
        },
    }


def test_what_a_validation_has_measured_is_in_the_bound(site: Site) -> None:
    private = site.own()
    assert private.validation is not None
    private.validation.evidence |= {"added_tokens": 683, "thoughts_beside": True}
    private.validation.save_fields("evidence")

    def bound(**fields: Any) -> tuple[int, int]:
        found = explained(site, max_tokens=16, **fields)["candidates"][0]["bound"]
        return found["added"], found["thought"]

    assert bound() == (683, private.model.context_length or 131_072)
    assert bound(reasoning={"max_tokens": 1_500}) == (683, 1_500)
    private.edit(settings={"bound": {"prompt": 7, "thoughts_beside": False}})
    assert bound() == (7, 0)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"provider": {"order": ["gamma"]}},
        {"provider": {"only": ["beta"]}},
        {"provider": {"sort": "price"}},
        {"session_id": "talk"},
        {"session_id": "another talk"},
        {"model": "acme/falcon:floor"},
    ],
)
def test_a_request_goes_to_the_explained_candidate(site: Site, body: dict[str, Any]) -> None:
    for number, name in enumerate(("beta", "gamma", "delta"), 1):
        price = factories.make_price(prompt=f"0.00000{number}")
        site.publish(provider=site.another_provider(name), price=price)
    if not body:
        body = {"provider": {"sort": "price"}}
    first = explained(site, **body)["candidates"][0]["provider"]
    assert site.chat(**body).json()["provider"] == first


def test_explain_lists_endpoints_excluded_by_forbidden_fallbacks(site: Site) -> None:
    for name in ("beta", "gamma", "delta"):
        site.publish(provider=site.another_provider(name))
    shown = explained(site, provider={"order": ["beta", "gamma"], "allow_fallbacks": False})
    assert [each["provider"] for each in shown["candidates"]] == ["Beta"]
    left = {each["provider"]: each["excluded_by"] for each in shown["excluded"]}
    assert left == {"Gamma": ["allow_fallbacks"], "Delta": ["order"]}


def test_explain_succeeds_without_candidates(site: Site) -> None:
    site.publish()
    data = explained(site, provider={"zdr": True})
    assert (data["candidates"], data["budget"]) == ([], None)
    assert [each["excluded_by"] for each in data["excluded"]] == [["zdr"]]


def test_explain_shows_the_health_of_endpoints(site: Site) -> None:
    endpoint = site.publish()
    table = HealthTable()
    for _ in range(5):
        table.record(endpoint.pk, AttemptOutcome.FAILURE, now=time.time())
    exchange(table, time.time())
    [candidate] = explained(site)["candidates"]
    assert candidate["health"] == {**UNTRIED, "state": "open", "failure_share": 1.0}


def test_explain_accepts_both_kinds_of_keys_and_requires_one(site: Site) -> None:
    site.publish()
    assert asked(site, key=site.tenant.management_key).status_code == 200
    assert asked(site, key="nobody").status_code == 401


def test_explain_refuses_an_invalid_request(site: Site) -> None:
    answer = asked(site, provider={"sort": "speed"})
    assert answer.status_code == 400
    fields = answer.data["error"]["metadata"]["fields"]
    assert fields == {"provider.sort": "Invalid enum value 'speed'."}
    assert asked(site, model="no/body").status_code == 404
    assert asked(site, model=None).status_code == 400


def test_explain_applies_the_defaults_and_disabled_tools_of_a_workspace(site: Site) -> None:
    site.publish()
    site.tenant.workspace.default_text_model = "acme/falcon"
    site.tenant.workspace.disabled_server_tools = ["openrouter:bash"]
    site.tenant.workspace.save(update_fields=["default_text_model", "disabled_server_tools"])
    assert explained(site, model=None)["model"] == "acme/falcon"
    assert asked(site, tools=[{"type": "openrouter:bash"}]).status_code == 403


def test_explain_names_the_budget_that_would_refuse(site: Site) -> None:
    site.publish()
    ApiKey.objects.filter(digest=digest_api_key(site.tenant.api_key)).update(limit_nano=0)
    assert explained(site)["budget"] == {
        "scope": "key_limit",
        "limit_usd": 0.0,
        "spend_usd": 0.0,
        "held_usd": 0.0,
        "resets_at": None,
    }
    assert Transfer.objects.pending().count() == 0


def test_explain_names_the_balance_that_would_refuse(site: Site) -> None:
    site.publish()
    stranger = factories.make_tenant("Poor")
    Account.objects.filter(organization=stranger.organization).update(posted_credits=0)
    data = explained(site, key=stranger.api_key, max_tokens=1000)
    assert data["budget"]["scope"] == "balance"
    assert data["budget"]["balance_usd"] == 0.0


def test_explain_shows_what_the_policy_permits(site: Site) -> None:
    site.publish()
    site.tenant.organization.edit(ignored_providers=["Nobody"], requires_zdr=True)
    policy = explained(site)["policy"]
    assert policy["ignored_providers"] == ["nobody"]
    assert policy["zdr"] == ["anthropic", "google", "openai", "other", "xai"]


def test_explain_shows_the_providers_that_every_list_names(site: Site) -> None:
    site.publish()
    site.tenant.organization.edit(allowed_providers=["Acme AI", "nobody"])
    key = ApiKey.objects.get(digest=digest_api_key(site.tenant.api_key))
    guardrail = Guardrail.objects.create(
        organization=site.tenant.organization, name="Own", allowed_providers=["acme", "globex"]
    )
    assert explained(site)["policy"]["allowed_providers"] == ["acme ai", "nobody"]
    guardrail.assign_keys([key], by="a test")
    shown = explained(site)
    assert shown["policy"]["allowed_providers"] == ["acme"]
    assert [each["provider"] for each in shown["candidates"]] == ["Acme AI"]


def test_explain_hides_the_endpoints_of_other_organizations(site: Site) -> None:
    site.own()
    stranger = factories.make_tenant("Stranger")
    data = explained(site, key=stranger.api_key)
    assert (data["candidates"], data["excluded"]) == ([], [])
    assert uuid.UUID(explained(site)["candidates"][0]["endpoint_id"])


BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    "responses": {"input": "Hi"},
    "completions": {"prompt": "Hi"},
    "embeddings": {"input": ["Hi"]},
    "rerank": {"query": "Hi", "documents": ["a", "b"]},
    "images": {"prompt": "Hi"},
    "audio/speech": {"input": "Hi", "voice": "alloy"},
    "audio/transcriptions": {"input_audio": {"data": "AAAAAAAA", "format": "wav"}},
}


@pytest.mark.parametrize("operation", BODIES)
def test_explain_reads_the_body_of_every_operation(site: Site, operation: str) -> None:
    site.model.output_modalities = [
        "text", "embeddings", "rerank", "image", "speech", "transcription",
    ]  # fmt: skip
    site.model.save_fields("output_modalities")
    site.publish()
    answer = asked_of(site, f"?operation={operation}", {"model": "falcon", **BODIES[operation]})
    assert answer.status_code == 200, answer.data
    data = answer.data["data"]
    assert [each["model"] for each in data["candidates"]] == ["acme/falcon"], data["excluded"]
    assert data["requested"] == "falcon"
    found = {"origin": "spelling", "alias": None, "targets": ["acme/falcon"]}
    assert data["resolution"] == found
    assert site.upstream.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 1}]},
        {"max_tokens": 0},
        {"stop_sequences": list("abcde")},
        {"diagnostics": {"previous_message_id": "msg_0"}},
    ],
    ids=str,
)
def test_explain_reads_messages_in_anthropics_own_words(site: Site, fields: dict[str, Any]) -> None:
    site.publish()
    claude = site.another_provider("beta", dialect="anthropic")
    site.publish(provider=claude, price=read_pricing(RATES))
    body = {"model": "falcon", **BODIES["messages"], **fields}
    answer = asked_of(site, "?operation=messages", body)
    assert answer.status_code == 200, answer.data
    data = answer.data["data"]
    assert [each["provider"] for each in data["candidates"]] == ["Beta"]
    assert [each["excluded_by"] for each in data["excluded"]] == [["native_format"]]


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"preset": "support"}, "preset"), ({"model": "falcon@preset/support"}, "model")],
)
@pytest.mark.parametrize("operation", ["chat/completions", "completions", "messages", "responses"])
def test_explain_says_that_it_takes_no_preset(
    site: Site, operation: str, fields: dict[str, Any], name: str
) -> None:
    body = {"model": "falcon", **BODIES[operation], **fields}
    answer = asked_of(site, f"?operation={operation}", body)
    assert answer.status_code == 400
    text = "Presets are not explained. Send the fields of the preset."
    assert answer.data["error"]["metadata"]["fields"] == {name: text}


@pytest.mark.parametrize("operation", ["", "chat", "images/edits", "../chat", "%00"])
def test_explain_refuses_an_unknown_operation(site: Site, operation: str) -> None:
    answer = asked_of(site, f"?operation={operation}", {"model": "falcon", **BODIES["responses"]})
    assert answer.status_code == 400
    assert answer.data["error"]["metadata"]["fields"]["operation"].startswith("Must be one of")


def test_explain_refuses_the_body_of_another_operation(site: Site) -> None:
    site.publish()
    answer = asked_of(site, "?operation=embeddings", {"model": "falcon", **BODIES["rerank"]})
    assert answer.status_code == 400
    assert "input" in answer.data["error"]["message"]


def test_explain_says_whose_alias_a_name_is(site: Site) -> None:
    site.publish()
    changes.create_alias(
        organization_id=site.tenant.organization.pk, name="fast*", targets=["acme/falcon:floor"]
    )
    found = {"origin": "organization", "alias": "fast*", "targets": ["acme/falcon:floor"]}
    assert explained(site, model="faster")["resolution"] == found
    assert explained(site, model="~acme/falcon-latest")["resolution"]["origin"] == "latest"
    assert explained(site)["resolution"] is None


def test_explains_where_the_metadata_would_be_sent(site: Site) -> None:
    """Destinations that take other keys or regions, or are switched off, are left out."""
    workspace = site.tenant.workspace
    site.publish()
    key = make_key(site.tenant, "other")
    destination = make_destination(workspace, sampling_rate=Decimal("0.5"))
    make_destination(workspace, api_key_hashes=[key.digest])
    make_destination(workspace, regions=["europe"])
    make_destination(workspace, is_enabled=False)
    assert explained(site)["broadcast"] == []
    workspace.edit(is_observability_broadcast_enabled=True)
    assert explained(site)["broadcast"] == [
        {
            "id": str(destination.pk),
            "name": "Traces",
            "type": "otel-collector",
            "host": "otel.example",
            "sampling_rate": 0.5,
            "is_filtered": False,
        }
    ]
