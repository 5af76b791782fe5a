"""Tests which endpoints a policy excludes, and for which reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accounts.policy import Policy
from catalog.visibility import EndpointFacts, Exclusion, exclusions

OPEN = Policy()
FACTS = EndpointFacts(
    provider_slug="acme", provider_name="Acme AI", zdr=False, trains_on_prompts=True
)


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        (OPEN, ()),
        (Policy.of(only=["acme"]), ()),
        (Policy.of(only=["ACME"]), ()),
        (Policy.of(only=["Acme AI"]), ()),
        (Policy.of(only=["acme", "other"]), ()),
        (Policy.of(only=["other"]), ("provider_not_allowed",)),
        (Policy.of(only=[]), ("provider_not_allowed",)),
        (Policy.of(ignore=["other"]), ()),
        (Policy.of(ignore=["acme"]), ("provider_ignored",)),
        (Policy.of(ignore=["acme ai"]), ("provider_ignored",)),
        (Policy.of(zdr=True), ("zdr",)),
        (Policy.of(no_training=True), ("data_collection",)),
        (
            Policy.of(only=["other"], ignore=["acme"], zdr=True, no_training=True),
            ("provider_not_allowed", "provider_ignored", "zdr", "data_collection"),
        ),
    ],
)
def test_exclusions_returns_all_reasons(policy: Policy, reasons: tuple[str, ...]) -> None:
    assert exclusions(FACTS, policy) == tuple(Exclusion(reason) for reason in reasons)


def test_exclusions_accepts_an_endpoint_that_meets_a_strict_policy() -> None:
    strict = Policy.of(zdr=True, no_training=True)
    assert exclusions(replace(FACTS, zdr=True, trains_on_prompts=False), strict) == ()
