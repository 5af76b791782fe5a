"""The algebra of policies: a merge can only tighten a policy."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.policy import Fallback, Family, Policy
from catalog.visibility import EndpointFacts, exclusions

PROVIDERS = ["acme", "acme ai", "globex", "initech"]
MODELS = ["acme/*", "acme/falcon", "acme/falcon-2026-01-01", "openai/kestrel", "x-ai/osprey"]
REGIONS = ["global", "europe", "us"]


def _some(names: list[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(names))


def _any_or(names: list[str]) -> st.SearchStrategy[frozenset[str] | None]:
    return st.none() | _some(names)


policies = st.builds(
    Policy,
    only=st.frozensets(_some(PROVIDERS), max_size=3),
    ignore=_some(PROVIDERS),
    models=_any_or(MODELS),
    ignored_models=_some(MODELS),
    zdr=st.frozensets(st.sampled_from(Family)),
    no_retention=st.frozensets(st.sampled_from(Family)),
    no_free_retention=st.booleans(),
    no_training=st.booleans(),
    no_free_training=st.booleans(),
    ingress_regions=_any_or(REGIONS),
    served_in=_any_or(REGIONS),
    fallback=st.none() | st.sampled_from(Fallback),
)
endpoints = st.builds(
    EndpointFacts,
    provider_slug=st.sampled_from(["acme", "Globex", "initech"]),
    provider_name=st.sampled_from(["Acme AI", "Globex", "Other"]),
    zdr=st.booleans(),
    trains_on_prompts=st.booleans(),
    model_slug=st.sampled_from(MODELS[1:]),
    model_permaslug=st.sampled_from(MODELS[1:]),
    region=st.none() | st.sampled_from(REGIONS),
    is_free=st.booleans(),
)


def test_the_strategy_covers_every_field_of_a_policy() -> None:
    assert {field.name for field in fields(Policy)} == {
        "only", "ignore", "models", "ignored_models", "zdr", "no_retention", "no_free_retention",
        "no_training", "no_free_training", "ingress_regions", "served_in", "fallback",
    }  # fmt: skip


@given(policies, policies)
def test_merging_commutes(one: Policy, two: Policy) -> None:
    assert one & two == two & one


@given(policies, policies, policies)
def test_merging_associates(one: Policy, two: Policy, three: Policy) -> None:
    assert (one & two) & three == one & (two & three)


@given(policies)
def test_merging_with_itself_changes_nothing(policy: Policy) -> None:
    assert policy & policy == policy


@given(policies)
def test_the_empty_policy_is_neutral(policy: Policy) -> None:
    assert policy & Policy() == Policy() & policy == policy


@given(policies, policies, endpoints)
def test_merging_never_removes_an_exclusion(
    one: Policy, two: Policy, endpoint: EndpointFacts
) -> None:
    assert set(exclusions(endpoint, one & two)) >= set(exclusions(endpoint, one))


@given(policies, policies, endpoints)
def test_the_merged_policy_admits_the_providers_that_both_admit(
    one: Policy, two: Policy, endpoint: EndpointFacts
) -> None:
    one, two = (replace(Policy(), only=each.only, ignore=each.ignore) for each in (one, two))
    assert bool(exclusions(endpoint, one & two)) is any(
        exclusions(endpoint, each) for each in (one, two)
    )


@given(policies, policies, endpoints)
def test_both_policies_admit_every_endpoint_that_the_merged_policy_admits(
    one: Policy, two: Policy, endpoint: EndpointFacts
) -> None:
    if not exclusions(endpoint, one & two):
        assert exclusions(endpoint, one) == exclusions(endpoint, two) == ()


@given(endpoints)
def test_the_empty_policy_admits_everything(endpoint: EndpointFacts) -> None:
    assert Policy().is_open
    assert exclusions(endpoint, Policy()) == ()


@given(policies, policies)
def test_ingress_regions_intersect(one: Policy, two: Policy) -> None:
    for region in REGIONS:
        left = [
            policy.ingress_regions is None or region in policy.ingress_regions
            for policy in (one, two)
        ]
        both = (one & two).ingress_regions
        assert (both is None or region in both) is all(left)


@pytest.mark.parametrize(
    ("slug", "family"),
    [
        ("anthropic/opus", "anthropic"),
        ("google/gemini", "google"),
        ("openai/gpt", "openai"),
        ("x-ai/grok", "xai"),
        ("xai/grok", "xai"),
        ("acme/falcon", "other"),
        ("openai", "openai"),
        ("", "other"),
    ],
)
def test_the_author_of_a_model_decides_its_family(slug: str, family: str) -> None:
    assert Family.of(slug) == family


@pytest.mark.parametrize(
    ("given_fields", "expected"),
    [
        ({}, Policy()),
        ({"zdr": True}, Policy(zdr=frozenset(Family))),
        ({"zdr": False}, Policy()),
        ({"zdr": [Family.GOOGLE]}, Policy(zdr=frozenset({Family.GOOGLE}))),
        ({"only": [], "models": []}, Policy(only=frozenset({frozenset()}), models=frozenset())),
        ({"only": ["ACME"]}, Policy(only=frozenset({frozenset({"acme"})}))),
        ({"only": None}, Policy()),
        ({"no_training": True}, Policy(no_training=True, no_free_training=True)),
        ({"no_free_training": True}, Policy(no_free_training=True)),
        ({"served_in": "us"}, Policy(served_in=frozenset({"us"}))),
    ],
)
def test_of_builds_a_policy_from_lists_and_flags(
    given_fields: dict[str, Any], expected: Policy
) -> None:
    assert Policy.of(**given_fields) == expected
