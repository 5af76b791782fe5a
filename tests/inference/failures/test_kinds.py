"""Each failure says which provider failed and how, except what a private endpoint would reveal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from catalog.dialects.base import Untranslatable
from config import egress
from config.api.errors import UpstreamError, UpstreamTimeout
from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint
from inference.exchange.failures import translate
from inference.requests.messages.native import parse_message
from inference.routing.routes import Candidate
from tests.support.console import page
from tests.support.inference.routes import credential, planned, route
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.simulator.server import Simulator

UNREACHABLE = "The upstream could not be reached."
ADDRESSES = [
    ("https://127.0.0.1:9/v1", "refused"),
    ("https://no-such-name.invalid/v1", "name"),
    ("https://10.1.2.3/v1", "policy"),
]


def candidate_of(*, private: bool = False) -> Candidate:
    if private:
        found = planned(private=[route("x", private=True)], credentials=[credential("x")])
    else:
        found = planned([route("x")])
    return found.candidates[0]


def move(site: Site, base_url: str, endpoint: PrivateEndpoint | None = None) -> None:
    """Gives the provider another address, and a private endpoint there too."""
    site.move(base_url)
    if endpoint is not None:
        PrivateEndpoint.objects.filter(pk=endpoint.pk).update(base_url=base_url)


def ask(site: Site) -> dict[str, Any]:
    answer = site.chat()
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (502, UNREACHABLE)
    return error["metadata"]


@pytest.mark.parametrize(("base_url", "kind"), ADDRESSES)
@pytest.mark.parametrize("is_private", [False, True])
def test_only_the_operator_learns_why_an_endpoint_cannot_be_reached(
    site: Site, base_url: str, kind: str, is_private: bool, operator: Client
) -> None:
    move(site, base_url, site.own() if is_private else None)
    if not is_private:
        site.publish()
    metadata = ask(site)
    assert base_url.split("/")[2] not in str(metadata)
    assert (metadata["kind"], metadata["provider_name"]) == ("unreachable", "Acme AI")
    row = site.settled()
    assert [one["kind"] for one in row.attempts] == [kind]
    shown = site.get(f"/api/v1/generation?id={row.pk}").text
    assert f':"{kind}"' not in shown.replace(": ", ":")
    assert f"provider_unavailable: {kind}" in operator.get(page(row)).content.decode()
    assert_in_order()


@pytest.mark.parametrize("is_private", [False, True])
def test_a_wrong_certificate_is_named_to_the_operator(site: Site, is_private: bool) -> None:
    directory = Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls"
    endpoint = site.own() if is_private else None
    with Simulator(ensure_certificates(directory, "expired")).run_in_thread() as liar:
        move(site, liar.base_url, endpoint)
        if endpoint is None:
            site.publish()
        assert ask(site)["kind"] == "unreachable"
    assert [one["kind"] for one in site.settled().attempts] == ["certificate"]


@pytest.mark.parametrize("is_private", [False, True])
def test_a_connection_that_takes_too_long_is_a_failure_to_connect(is_private: bool) -> None:
    candidate = candidate_of(private=is_private)
    error = translate(egress.TimedOut("connect"), candidate)
    assert isinstance(error, UpstreamError)
    assert not isinstance(error, UpstreamTimeout)
    assert (error.status, error.message) == (502, UNREACHABLE)
    assert (error.kind, error.limit) == ("timeout", "connect")
    assert error.metadata == {"provider_name": "X Inc", "kind": "unreachable"}


@pytest.mark.parametrize(("phase", "limit"), [("idle", "idle"), ("first byte", "headers")])
@pytest.mark.parametrize("is_private", [False, True])
def test_a_later_timeout_names_its_limit(phase: str, limit: str, is_private: bool) -> None:
    error = translate(egress.TimedOut(phase), candidate_of(private=is_private))
    assert (error.status, error.metadata["kind"]) == (504, "timeout")
    assert error.metadata["limit"] == limit


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("reasoning: It thinks.", "thinking: It thinks."),
        ("tools: It has none.", "tools: It has none."),
        ("It has no reasoning.", "It has no reasoning."),
    ],
)
def test_a_field_has_the_name_of_its_interface(text: str, told: str) -> None:
    body = {"model": "acme/falcon", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    request = parse_message(json.dumps(body).encode())
    assert translate(Untranslatable(text), candidate_of(), request).message == told
    assert translate(Untranslatable(text), candidate_of()).message == text


def test_a_bug_is_not_translated() -> None:
    with pytest.raises(KeyError):
        translate(KeyError(), candidate_of())
