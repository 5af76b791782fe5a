"""Tests which endpoints a policy excludes, and for which reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accounts.models import Guardrail
from accounts.policy import Family, Policy
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
        (Policy.of(no_retention=[Family.OTHER]), ("zdr",)),
        (Policy.of(no_retention=[Family.GOOGLE]), ()),
        (Policy.of(no_free_retention=True), ()),
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


@pytest.mark.parametrize(
    ("switch", "slug", "is_free", "others"),
    [
        ("allow_safety_retention_google", "google/gemini", False, "acme/falcon"),
        ("allow_safety_retention_other", "acme/falcon", False, "google/gemini"),
        ("enable_free_model_publication", "acme/falcon", True, "acme/falcon"),
    ],
)
def test_a_switch_of_a_guardrail_leaves_what_keeps_nothing(
    switch: str, slug: str, is_free: bool, others: str
) -> None:
    policy = Guardrail(**{switch: False}).policy
    facts = replace(FACTS, model_slug=slug, is_free=is_free)
    assert exclusions(facts, policy) == ("zdr",)
    assert exclusions(replace(facts, zdr=True), policy) == ()
    assert exclusions(replace(facts, model_slug=others, is_free=False), policy) == ()
    assert exclusions(facts, Guardrail(**{switch: True}).policy) == ()
