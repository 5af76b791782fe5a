"""The response cache: an answer that was given before is given again, at no cost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import requests
from django.db.models import F

from accounts.models import ApiKey, Workspace
from billing.models import Account
from catalog.abilities import EndpointSettings, PoolRouting, Reasoning, TokenBound
from catalog.models import ModelEndpoint, Provider
from catalog.pricing import Price
from config.credentials import Secret
from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint
from inference.models import Generation, KeptAnswer
from inference.repeats.caching import identify_deployment
from inference.routing.routes import Candidate
from tests.support import factories
from tests.support.admission.entries import bound_of
from tests.support.bulkheads.limits import is_early
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_preset, make_workspace
from tests.support.inference.repeats import (
    KEY,
    cache_status,
    is_replayed,
    keep_answers,
    wait_until_kept,
)
from tests.support.inference.routes import route
from tests.support.inference.site import (
    ASKED,
    CHAT,
    MESSAGES,
    RESPONSES,
    TEXT,
    Site,
    content_of,
    events_of,
)
from tests.support.ledger import assert_in_order
from tests.support.simulator.server import Simulator
from tests.support.upstreams import clouds
from tests.support.upstreams.tls import answering, serving, trusted_context

ON = {"X-OpenRouter-Cache": "true"}


def ask(
    site: Site, body: Any = None, *, path: str = CHAT, key: str | None = None, **headers: str
) -> requests.Response:
    """Sends a request that asks for the cache."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = site.chat_body() if body is None else body
    return site.post(body, path=path, key=key, headers={**ON, **named})


def settle_all(site: Site) -> None:
    site.wait_for_settlement()


def test_a_cached_answer_costs_nothing_and_has_a_generation_of_its_own(kept: Site) -> None:
    first = ask(kept)
    assert cache_status(first) == "MISS"
    assert first.headers["X-OpenRouter-Cache-TTL"] == "300"
    settle_all(kept)
    spent = Account.objects.get(organization=kept.tenant.organization, kind="credits").posted_debits

    again = ask(kept)

    assert (again.status_code, cache_status(again)) == (200, "HIT")
    assert 0 <= int(again.headers["X-OpenRouter-Cache-Age"]) < 300
    assert 0 < int(again.headers["X-OpenRouter-Cache-TTL"]) <= 300
    was, is_ = first.json(), again.json()
    assert is_["choices"] == was["choices"]
    assert is_["id"] == again.headers["X-Generation-Id"] != was["id"]
    assert is_["usage"]["cost"] == 0 < was["usage"]["cost"]
    assert set(is_["usage"]["cost_details"].values()) == {0}
    assert is_["usage"]["prompt_tokens"] == was["usage"]["prompt_tokens"]
    assert len(kept.dialled()) == 1
    settle_all(kept)
    row = Generation.objects.get(pk=is_["id"])
    assert (row.status, row.cached_from) == ("completed", was["id"])
    assert (row.cost_nano, row.upstream_cost_nano, row.usage, row.attempts) == (0, 0, None, [])
    account = Account.objects.get(organization=kept.tenant.organization, kind="credits")
    assert (account.posted_debits, account.pending_debits) == (spent, 0)
    assert_in_order()
    shown = kept.get(f"/api/v1/generation?id={is_['id']}").json()["data"]
    assert (shown["response_cache_source_id"], shown["total_cost"]) == (was["id"], 0)


def test_a_cached_answer_names_what_its_provider_did_not_get(site: Site) -> None:
    site.publish(supported_parameters=["max_tokens"])
    keep_answers(site.tenant)
    body = {**site.chat_body(), "seed": 1, "top_k": 5}
    answers = [ask(site, body) for _ in range(2)]
    assert [cache_status(each) for each in answers] == ["MISS", "HIT"]
    assert [each.headers["X-Left-Out"] for each in answers] == ["seed, top_k"] * 2


def test_what_a_preset_sends_to_a_provider_is_a_part_of_the_request(kept: Site) -> None:
    body = {**kept.chat_body(), "preset": "support"}
    found = []
    for number in (1, 1, 2):
        options = {kept.provider.slug: {"top_k": number}}
        make_preset(kept.tenant.workspace, provider={"options": options})
        found.append(cache_status(ask(kept, body)))
    assert found == ["MISS", "HIT", "MISS"]


def test_a_cached_stream_is_a_stream_with_the_new_id(kept: Site) -> None:
    body = kept.chat_body("one two", stream=True)
    first, again = ask(kept, body), ask(kept, body)
    assert (cache_status(first), cache_status(again)) == ("MISS", "HIT")
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    was, events = events_of(first.text), events_of(again.text)
    assert content_of(events) == content_of(was) != ""
    assert len(events) == len(was)
    assert events[-1] == "[DONE]"
    assert {event["id"] for event in events[:-1]} == {again.headers["X-Generation-Id"]}
    assert events[-2]["usage"]["cost"] == 0 < was[-2]["usage"]["cost"]
    assert first.headers["X-Generation-Id"] not in again.text
    assert len(kept.dialled()) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [TEXT, MESSAGES, RESPONSES])
def test_each_face_answers_from_the_cache(kept: Site, path: str, stream: bool) -> None:
    body = {"model": kept.model.slug, "stream": stream, **ASKED[path]}
    first, again = ask(kept, body, path=path), ask(kept, body, path=path)
    assert [first.status_code, again.status_code] == [200, 200], again.text
    assert cache_status(again) == "HIT"
    assert first.headers["X-Generation-Id"] not in again.text
    assert len(kept.dialled()) == 1


def test_embeddings_are_cached(kept: Site) -> None:
    body = {"model": kept.model.slug, "input": ["one", "two"]}
    answers = [ask(kept, body, path="/api/v1/embeddings") for _ in range(2)]
    assert [cache_status(answer) for answer in answers] == ["MISS", "HIT"]
    assert answers[0].json()["data"] == answers[1].json()["data"]


def test_the_metadata_tells_where_the_answer_comes_from(kept: Site) -> None:
    for stream in (False, True):
        body = kept.chat_body("one two", stream=stream)
        first = ask(kept, body, X_OpenRouter_Metadata="enabled")
        again = ask(kept, body, X_OpenRouter_Metadata="enabled")
        told = events_of(again.text)[-2] if stream else again.json()
        metadata = told["openrouter_metadata"]
        assert metadata["attempts"] == []
        assert [(step["name"], step["data"]) for step in metadata["pipeline"]] == [
            ("response-cache", {"generation_id": first.headers["X-Generation-Id"]})
        ]
        plain = ask(kept, body)
        assert "openrouter_metadata" not in plain.text
    assert len(kept.dialled()) == 2


def test_another_body_or_another_session_misses(kept: Site) -> None:
    ask(kept)
    assert cache_status(ask(kept, kept.chat_body("one twp"))) == "MISS"
    assert cache_status(ask(kept, kept.chat_body(temperature=0.5))) == "MISS"
    assert cache_status(ask(kept, X_Session_Id="another")) == "MISS"
    assert cache_status(ask(kept)) == "HIT"


def test_keys_of_a_workspace_share_the_cache_and_others_do_not(
    kept: Site, neighbour: Tenant
) -> None:
    keep_answers(neighbour)
    other_workspace = make_workspace(kept.tenant.organization, is_answer_storage_enabled=True)
    _, colleague = ApiKey.objects.create_key(workspace=kept.tenant.workspace, name="colleague")
    _, elsewhere = ApiKey.objects.create_key(workspace=other_workspace, name="elsewhere")
    ask(kept)
    assert cache_status(ask(kept, key=colleague.reveal())) == "HIT"
    assert cache_status(ask(kept, key=elsewhere.reveal())) == "MISS"
    assert cache_status(ask(kept, key=neighbour.api_key)) == "MISS"


def test_nobody_gets_an_answer_that_its_policy_forbids(kept: Site) -> None:
    other = kept.another_provider("beta")
    kept.publish(provider=other)
    body = {**kept.chat_body(), "provider": {"order": ["acme"]}}
    assert ask(kept, body).json()["provider"] == "Acme AI"
    key, secret = ApiKey.objects.create_key(workspace=kept.tenant.workspace, name="strict")
    guardrail = make_guardrail(kept.tenant.workspace, ignored_providers=["acme"])
    guardrail.assign_keys([key], by="test")
    answer = ask(kept, body, key=secret.reveal())
    assert (cache_status(answer), answer.json()["provider"]) == ("MISS", "Beta")


def test_the_answer_of_an_endpoint_that_is_gone_is_not_given(kept: Site) -> None:
    kept.publish(provider=kept.another_provider("beta"))
    body = {**kept.chat_body(), "provider": {"order": ["acme"]}}
    assert ask(kept, body).json()["provider"] == "Acme AI"
    ModelEndpoint.objects.filter(provider=kept.provider).update(is_listed=False)
    answer = ask(kept, body)
    assert (cache_status(answer), answer.json()["provider"]) == ("MISS", "Beta")


def rename_own(_: Site) -> None:
    PrivateEndpoint.objects.update(upstream_model_id="sim-extra")


def set_own(_: Site) -> None:
    PrivateEndpoint.objects.update(settings={"reported_model": "another"})


def rename_public(_: Site) -> None:
    ModelEndpoint.objects.update(upstream_model_id="sim-extra")


@pytest.mark.parametrize("change", [rename_own, set_own, rename_public])
def test_the_answer_of_a_replaced_deployment_is_not_given(
    kept: Site, change: Callable[[Site], None]
) -> None:
    if change is not rename_public:
        kept.own()
    assert [cache_status(ask(kept)) for _ in range(2)] == ["MISS", "HIT"]
    change(kept)
    assert cache_status(ask(kept)) == "MISS"
    assert len(kept.dialled()) == 2


@pytest.mark.parametrize("is_private", [False, True])
def test_the_answer_of_another_address_is_not_given(kept: Site, is_private: bool) -> None:
    if is_private:
        kept.own()
    assert [cache_status(ask(kept)) for _ in range(2)] == ["MISS", "HIT"]
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with Simulator(certificates).run_in_thread() as other:
        if is_private:
            PrivateEndpoint.objects.update(base_url=other.base_url)
        else:
            Provider.objects.update(base_url=other.base_url)
        assert cache_status(ask(kept)) == "MISS"
        assert (len(kept.dialled()), len(other.requests)) == (1, 1)


def test_an_edit_of_the_price_leaves_the_entries_of_an_endpoint(kept: Site) -> None:
    endpoint = kept.own()
    ask(kept)
    endpoint.reprice(factories.make_price("0.000003"))
    assert cache_status(ask(kept)) == "HIT"


def test_an_entry_of_an_earlier_release_is_a_miss(kept: Site) -> None:
    """It has the id of its endpoint alone."""
    ask(kept)
    KeptAnswer.objects.update(endpoint_id=ModelEndpoint.objects.get().pk)
    assert [cache_status(ask(kept)) for _ in range(2)] == ["MISS", "HIT"]


def identify(**fields: Any) -> UUID:
    """Returns the id of a deployment with these differences from a fixed one."""
    subject = UUID(int=fields.pop("subject", 1))
    secret = fields.pop("secret", Secret("a secret"))
    served = route("acme", abilities=EndpointSettings(reported_model="falcon"))
    return identify_deployment(Candidate(replace(served, **fields), secret, False, subject))


def test_a_deployment_is_another_one_if_its_answers_may_be_others() -> None:
    shape = EndpointSettings(reported_model="falcon", reasoning=Reasoning(switch="none"))
    differences: list[dict[str, Any]] = [
        {},
        {"subject": 2},
        {"dialect": "anthropic"},
        {"base_url": "https://acme.example/v2"},
        {"upstream_model_id": "n"},
        {"quantization": "fp8"},
        {"abilities": shape},
    ]
    assert len({identify(**fields) for fields in differences}) == len(differences)


def test_a_deployment_stays_the_same_beside_its_answers() -> None:
    choice = EndpointSettings(
        reported_model="falcon",
        bound=TokenBound(message=4),
        estimate={"ASCII": 1.5},
        routing=PoolRouting(weight=7),
    )
    same: list[dict[str, Any]] = [
        {"price": Price(Decimal(2), Decimal(2)), "price_id": 2},
        {"abilities": choice, "pool": choice.routing},
        {"attestation_id": 7},
        {"secret": Secret("another secret")},
    ]
    assert {identify(**fields) for fields in same} == {identify()}


def test_the_credential_of_a_cloud_tells_the_address_of_its_deployment() -> None:
    def identify_at(host: str) -> UUID:
        secret = Secret(json.dumps(clouds.azure(endpoint_url=f"https://{host}/")))
        return identify(dialect="azure", base_url=None, secret=secret)

    assert identify_at("north.openai.azure.com") != identify_at("south.openai.azure.com")


def test_a_rate_limit_counts_cached_answers(kept: Site) -> None:
    kept.eventually(is_early)
    ask(kept)
    workspace = Workspace.objects.get(pk=kept.tenant.workspace.pk)
    workspace.edit(rate_limits={"requests_per_minute": 2})
    assert cache_status(ask(kept)) == "HIT"
    refused = ask(kept)
    assert refused.status_code == 429


def test_an_entry_ends_with_its_lifetime(kept: Site) -> None:
    ask(kept, X_OpenRouter_Cache_TTL="86400")
    row = KeptAnswer.objects.get()
    assert row.expires_at - row.created_at == timedelta(days=1)
    assert cache_status(ask(kept)) == "HIT"
    KeptAnswer.objects.update(expires_at=F("expires_at") - timedelta(days=1))
    assert cache_status(ask(kept)) == "MISS"
    assert KeptAnswer.objects.count() == 1


def test_a_request_can_renew_an_entry(kept: Site) -> None:
    ask(kept)
    old = KeptAnswer.objects.get().generation_id
    assert cache_status(ask(kept, X_OpenRouter_Cache_Clear="true")) == "MISS"
    assert KeptAnswer.objects.get().generation_id != old
    assert len(kept.dialled()) == 2


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-OpenRouter-Cache", "yes"),
        ("X-OpenRouter-Cache-Clear", "1"),
        *(("X-OpenRouter-Cache-TTL", value) for value in ("0", "86401", "-1", "1.5", "", "٣")),
    ],
)
def test_a_malformed_header_is_refused_by_name(kept: Site, header: str, value: str) -> None:
    with unchanged():
        answer = kept.post(kept.chat_body(), headers={header: value.encode()})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{header}: ")


def test_a_workspace_that_keeps_no_answers_refuses_the_cache(site: Site) -> None:
    site.publish()
    with unchanged():
        answer = ask(site)
    assert answer.status_code == 400
    assert "is_answer_storage_enabled" in answer.json()["error"]["message"]
    assert site.post(site.chat_body(), headers={"X-OpenRouter-Cache": "false"}).ok


def test_zero_data_retention_refuses_the_cache(kept: Site) -> None:
    kept.publish(zdr=True, provider=kept.another_provider("beta"))
    body = {**kept.chat_body(), "provider": {"zdr": True}}
    with unchanged():
        refused = ask(kept, body)
    assert refused.status_code == 400
    assert "zero data retention" in refused.json()["error"]["message"]


def test_a_workspace_may_cache_everything(site: Site) -> None:
    site.publish(zdr=True)
    keep_answers(site.tenant, is_response_caching_enabled=True)
    assert [cache_status(site.chat()) for _ in range(2)] == ["MISS", "HIT"]
    off = site.post(site.chat_body(), headers={"X-OpenRouter-Cache": "false"})
    assert (off.status_code, cache_status(off)) == (200, None)
    private = site.chat(provider={"zdr": True})
    assert (private.status_code, cache_status(private)) == (200, None)
    assert KeptAnswer.objects.count() == 1


def test_a_cache_needs_kept_answers(management: Any, tenant: Tenant) -> None:
    path = f"/api/v1/workspaces/{tenant.workspace.pk}"
    with unchanged():
        refused = management.patch(path, {"is_response_caching_enabled": True})
    assert refused.status_code == 400
    both = {"is_response_caching_enabled": True, "is_answer_storage_enabled": True}
    assert management.patch(path, both).status_code == 200
    assert management.patch(path, {"is_answer_storage_enabled": False}).status_code == 400


@pytest.mark.parametrize("behaviour", ["sim-status-500", "sim-cut-event", "sim-error-stream"])
def test_failures_are_not_cached(kept: Site, behaviour: str) -> None:
    kept.publish(behaviour, model=(broken := factories.make_model("acme/broken")))
    ask(kept, {**kept.chat_body(stream=True), "model": broken.slug})
    settle_all(kept)
    assert not KeptAnswer.objects.exists()


@pytest.mark.parametrize("reasons", [("error",), ("error", "stop")])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_which_a_choice_ends_in_an_error_is_not_cached(
    kept: Site, stream: bool, reasons: tuple[str, ...]
) -> None:
    said = {"delta" if stream else "message": {"role": "assistant", "content": "Hi"}}
    choices = [
        {"index": place, "finish_reason": reason, **said} for place, reason in enumerate(reasons)
    ]
    usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 20}}
    body, kind = json.dumps({"id": "a", "choices": choices, **usage}), "application/json"
    if stream:
        events = [*({"id": "a", "choices": [each]} for each in choices), {"choices": [], **usage}]
        body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
        kind = "text/event-stream"
    script = answering(body.encode(), headers=(f"Content-Type: {kind}",))
    asked = kept.chat_body(stream=stream, n=len(reasons))
    with serving(script, trusted_context()) as server:
        kept.move(f"https://127.0.0.1:{server.port}/v1")
        answers = [ask(kept, asked) for _ in range(2)]
    assert [(each.status_code, cache_status(each)) for each in answers] == [(200, "MISS")] * 2
    settle_all(kept)
    rows = Generation.objects.values_list("status", "finish_reason", "completion_tokens")
    assert list(rows) == [("completed", reasons[-1], 20)] * 2
    assert not KeptAnswer.objects.exists()


@pytest.mark.parametrize(
    ("content", "n", "status"),
    [("one " * 20, 1, "MISS"), ("one two", 1, "HIT"), ("one two", 2, "MISS")],
)
def test_an_answer_that_little_money_may_have_cut_is_not_cached(
    site: Site, content: str, n: int, status: str
) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    keep_answers(site.tenant)
    body = site.chat_body(content, n=n)
    limit = 1000 * (bound_of(body) + 16 * n)
    workspace = site.tenant.workspace
    _, poor = ApiKey.objects.create_key(workspace=workspace, name="poor", limit_nano=limit)
    asked = [ask(site, body, key=key) for key in (poor.reveal(), site.tenant.api_key)]
    assert [cache_status(each) for each in asked] == ["MISS", status]
    assert site.dialled()[0].body["max_tokens"] == 16


def test_an_entry_that_cannot_be_decrypted_is_a_miss(kept: Site) -> None:
    ask(kept)
    row = KeptAnswer.objects.get()
    sealed = bytes(row.sealed)
    assert b"one" not in sealed
    KeptAnswer.objects.update(sealed=sealed[:-1] + bytes((sealed[-1] ^ 1,)))
    assert cache_status(ask(kept)) == "MISS"
    assert cache_status(ask(kept)) == "HIT"


def test_a_cached_answer_is_replayed_to_its_idempotency_key(kept: Site) -> None:
    for stream in (False, True):
        body = kept.chat_body("one two", stream=stream)
        ask(kept, body)
        key = f"{KEY} {stream}"
        hit = ask(kept, body, Idempotency_Key=key)
        again = ask(kept, body, Idempotency_Key=key)
        assert (cache_status(hit), is_replayed(hit)) == ("HIT", False)
        assert (is_replayed(again), again.content) == (True, hit.content)
    assert len(kept.dialled()) == 2


def test_answers_of_idempotency_keys_outlive_cached_ones(kept: Site, settings: Any) -> None:
    settings.ORGANIZATION_KEPT_BYTES = 2 * 16_384
    kept.post(kept.chat_body("precious"), headers={"Idempotency-Key": KEY})
    for number in range(3):
        ask(kept, kept.chat_body(f"number {number}"))
    wait_until_kept(kept, 2)
    again = kept.post(kept.chat_body("precious"), headers={"Idempotency-Key": KEY})
    assert is_replayed(again)
    assert cache_status(ask(kept, kept.chat_body("number 2"))) == "HIT"
