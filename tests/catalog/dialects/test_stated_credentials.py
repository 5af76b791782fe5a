"""Tests what a credential states beside its key: headers and query parameters of its deployment."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.dialects import anthropic, azure, gemini, openai
from catalog.dialects.base import (
    Call,
    Dialect,
    Operation,
    Untranslatable,
    build_stated,
    clean_message,
)
from config.credentials import Secret
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.upstreams import clouds

KEY: Final = "key-of-the-deployment-1"
PROXY: Final = {"CF-Access-Client-Secret": "secret-of-the-proxy-2"}
VERSION: Final = {"api-version": "2024-10-21", "tier": "a b&c=d/#"}
QUERY: Final = "api-version=2024-10-21&tier=a%20b%26c%3Dd%2F%23"
WORDS: Final = [{"role": "user", "content": "one two"}]
SIXTEEN: Final = {f"x-{number}": "v" for number in range(16)}

REFUSED: Final[dict[str, Any]] = {
    **{
        f"the header {name}": {"api_key": KEY, "headers": {name: "v"}}
        for name in (
            "Host", "connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade",
            "Proxy-Authorization", "proxy-connection", "Content-Length", "content-type",
            "Content-Foo", "X-Forwarded-For", "x-forwarded-client-cert", "Forwarded", "Via",
            "Expect", "Accept-Encoding", "HTTP2-Settings", ":authority", "a b", "", "Ä", "x" * 101,
        )
    },
    **{
        f"the value {value!r}": {"api_key": KEY, "headers": {"X-A": value}}
        for value in ("", " ", "a\r\nb: c", "ä", "a ", 1, None, ["a"], {"a": "b"})
    },
    "authorization beside a key": {"api_key": KEY, "headers": {"AUTHORIZATION": "Basic abc"}},
    "a header twice": {"headers": {"X-A": "1", "x-a": "2"}},
    "too many headers": {"headers": {**SIXTEEN, "x": "v"}},
    "too many parameters": {"query": {**SIXTEEN, "x": "v"}},
    "more than 4 kB": {"headers": {"X-A": "a" * 2048}, "query": {"b": "b" * 2048}},
    "a list": {"headers": ["X-A"]},
    "a text": {"query": "a=b"},
    "an empty name": {"query": {"": "v"}},
    "a name that ends another": {"query": {"a&b": "v"}},
    "the form of a stream": {"query": {"alt": "json"}},
    "a value that is no text": {"query": {"a": 1}},
    "a line break": {"query": {"a": "b\nc"}},
    "an empty value": {"query": {"a": ""}},
    "nothing": {},
    "empty tables": {"headers": {}, "query": None},
    "a short key": {"api_key": "short"},
    "a key that is no text": {"api_key": None, "headers": PROXY},
    "an unknown member": {"api_key": KEY, "header": PROXY},
    "the members of a cloud": clouds.azure(),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_be_stated_is_refused_and_stores_nothing(
    management: APIClient, case: str
) -> None:
    factories.make_provider("acme")
    before = snapshots.everything()
    answer = management.post("/api/v1/byok", {"provider": "acme", "key": json.dumps(REFUSED[case])})
    assert answer.status_code == 400
    assert list(answer.json()["error"]["metadata"]["fields"]) == ["key"]
    assert KEY not in answer.text
    assert snapshots.everything() == before


@pytest.mark.parametrize("cloud", ["bedrock", "vertex"])
def test_clouds_that_sign_their_requests_take_nothing_beside(
    management: APIClient, cloud: str
) -> None:
    factories.make_provider("cloud", dialect=cloud, base_url=None)
    members = {"bedrock": clouds.bedrock, "vertex": clouds.vertex}[cloud](headers=PROXY)
    answer = management.post("/api/v1/byok", {"provider": "cloud", "key": json.dumps(members)})
    assert (answer.status_code, ByokCredential.objects.count()) == (400, 0)
    assert "unknown member" in answer.text


def store(management: APIClient, tenant: Tenant, members: dict[str, Any]) -> None:
    ByokCredential.objects.all().delete()
    answer = management.post("/api/v1/byok", {"provider": "acme", "key": json.dumps(members)})
    assert answer.status_code == 201
    label = f"…{KEY[-4:]}" if "api_key" in members else "…"
    assert answer.json()["data"]["label"] == label


@pytest.mark.parametrize(
    ("members", "login"),
    [
        ({"api_key": KEY, "headers": PROXY, "query": VERSION}, f"Bearer {KEY}"),
        ({"headers": {**PROXY, "Authorization": "Basic dXNlcjpwYXNz"}, "query": VERSION},
         "Basic dXNlcjpwYXNz"),
        ({"headers": PROXY, "query": VERSION}, None),
    ],
)  # fmt: skip
def test_every_call_carries_what_the_credential_states(
    site: Site, monkeypatch: pytest.MonkeyPatch, members: dict[str, Any], login: str | None
) -> None:
    monkeypatch.setattr(site.upstream, "admit", lambda request: "chat")
    management = factories.client(site.tenant.management_key)
    store(management, site.tenant, members)
    created = management.post(
        "/api/v1/private-endpoints",
        {
            "model_permaslug": site.model.canonical_slug,
            "provider_slug": "acme",
            "base_url": site.upstream.base_url,
            "upstream_model_id": "sim-echo",
            "activate": {"workspace_id": str(site.tenant.workspace.pk)},
        },
    )
    assert created.status_code == 201, created.content
    validated = len(site.dialled())
    assert site.chat().status_code == 200
    assert site.chat(stream=True).text.rstrip().endswith("data: [DONE]")
    assert len(site.dialled()) == validated + 2
    for request in site.dialled():
        assert request.path.partition("?")[2] == QUERY
        assert request.headers.get("authorization") == login
        assert request.headers["cf-access-client-secret"] == PROXY["CF-Access-Client-Secret"]


def test_what_a_credential_states_is_masked(site: Site) -> None:
    management = factories.client(site.tenant.management_key)
    login = {"Authorization": "Bearer token-of-the-proxy-3"}
    store(management, site.tenant, {"headers": login})
    endpoint = site.own("sim-echo-key:401")
    answer = site.chat()
    assert answer.status_code != 200
    assert "token-of-the-proxy-3" not in answer.text
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(status="draft", activated_at=None)
    workspace = {"workspace_id": str(site.tenant.workspace.pk)}
    shown = management.post(f"/api/v1/private-endpoints/{endpoint.pk}/validate", workspace)
    assert "********" in shown.json()["data"]["checks"][-1]["upstream_message"]
    assert "token-of-the-proxy-3" not in shown.text


@pytest.mark.parametrize("before", ["\ufeff", " ", "\n", "\r\n\t\ufeff "])
def test_what_stands_around_an_object_makes_no_bare_key_of_it(
    management: APIClient, before: str
) -> None:
    factories.make_provider("cloud", dialect="azure", base_url=None)
    text = json.dumps(clouds.azure(headers=PROXY, query={"code": "a-secret-value"}))
    key = f"{before}{text}{before}"
    answer = management.post("/api/v1/byok", {"provider": "cloud", "key": key})
    assert answer.status_code == 201
    stored = ByokCredential.objects.get().reveal()
    assert stored.reveal() == text
    told = " ".join((clouds.AZURE_KEY, *PROXY.values(), "a-secret-value"))
    for secret in (stored, Secret(key)):
        made = build_stated(azure.build, call_with(secret, base_url=None))
        assert made.headers.items() >= PROXY.items()
        assert clean_message(told, secret) == "******** ******** ********"


def test_messages_show_neither_values_nor_their_spelling_in_a_url() -> None:
    query = {"code": "a secret/value", "tier": "free"}
    secret = Secret(json.dumps({"headers": {"X-Login": "Token abcdefgh-1"}, "query": query}))
    text = "abcdefgh-1 | Token abcdefgh-1 | a secret/value | a%20secret%2Fvalue | free"
    mask = "********"
    assert clean_message(text, secret) == f"{mask} | {mask} | {mask} | {mask} | free"
    assert "secret" not in repr(build_stated(openai.build, call_with(secret)))


def call_with(secret: Secret, base_url: str | None = "https://a.example/v1") -> Call:
    return Call(Operation.CHAT, base_url, "m", secret, {"messages": WORDS})


@pytest.mark.parametrize(
    ("dialect", "own"),
    [(openai, "Authorization"), (anthropic, "x-api-key"), (gemini, "x-goog-api-key")],
)
def test_the_owners_header_takes_the_place_of_the_dialects(dialect: Dialect, own: str) -> None:
    stated = {"headers": {own.upper(): "of the owner"}, "query": {"a": "b"}}
    made = build_stated(dialect.build, call_with(Secret(json.dumps(stated))))
    found = {name: text for name, text in made.headers.items() if name.lower() == own.lower()}
    assert found == {own.upper(): "of the owner"}
    assert made.url.endswith("?a=b") or made.url.endswith("&a=b")


def test_a_stored_object_that_is_no_credential_is_refused_before_it_is_sent() -> None:
    # An earlier release stored it as it was.
    with pytest.raises(Untranslatable, match=r"headers\.Host"):
        build_stated(openai.build, call_with(Secret('{"headers": {"Host": "a"}}')))
