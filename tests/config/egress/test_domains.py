"""A host belongs to the domain that one party registered."""

from __future__ import annotations

import pytest

from config.egress.domains import is_in_scope, scope_of

SCOPES = {
    "example.com": ".example.com",
    "a.b.example.com": ".example.com",
    "llm.example.co.uk": ".example.co.uk",
    "me.github.io": ".me.github.io",
    "a.me.github.io": ".me.github.io",
    "github.io": "github.io",
    "co.uk": "co.uk",
    "simulator.test": ".simulator.test",
    "localhost": "localhost",
    "192.0.2.7": "192.0.2.7",
    "2001:db8::7": "2001:db8::7",
}


@pytest.mark.parametrize("host", SCOPES)
def test_the_scope_of_a_host_is_its_registrable_domain_or_itself(host: str) -> None:
    assert scope_of(host) == SCOPES[host]
    assert is_in_scope(host, scope_of(host))


@pytest.mark.parametrize(
    ("host", "used"),
    [
        ("badexample.com", "llm.example.com"),
        ("example.com.evil.test", "llm.example.com"),
        ("evil.github.io", "me.github.io"),
        ("evil.github.io", "github.io"),
        ("9.192.0.2.7", "192.0.2.7"),
        ("x.localhost", "localhost"),
        ("com", "example.com"),
        ("evil.up.railway.app", "api.railway.app"),
        ("evil.lambda-url.us-east-1.on.aws", "api.on.aws"),
    ],
)
def test_a_host_of_another_party_is_outside_of_the_scope(host: str, used: str) -> None:
    assert not is_in_scope(host, scope_of(used))
