"""Which endpoints a policy admits, and every reason why not."""

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
        (OPEN.tightened(only=["acme"]), ()),
        (OPEN.tightened(only=["ACME"]), ()),
        (OPEN.tightened(only=["Acme AI"]), ()),
        (OPEN.tightened(only=["acme", "other"]), ()),
        (OPEN.tightened(only=["other"]), ("provider_not_allowed",)),
        (OPEN.tightened(only=[]), ("provider_not_allowed",)),
        (OPEN.tightened(ignore=["other"]), ()),
        (OPEN.tightened(ignore=["acme"]), ("provider_ignored",)),
        (OPEN.tightened(ignore=["acme ai"]), ("provider_ignored",)),
        (OPEN.tightened(zdr=True), ("zdr",)),
        (OPEN.tightened(no_training=True), ("data_collection",)),
        (
            OPEN.tightened(only=["other"], ignore=["acme"], zdr=True, no_training=True),
            ("provider_not_allowed", "provider_ignored", "zdr", "data_collection"),
        ),
    ],
)
def test_a_policy_excludes_for(policy: Policy, reasons: tuple[str, ...]) -> None:
    assert exclusions(FACTS, policy) == tuple(Exclusion(reason) for reason in reasons)


def test_what_an_endpoint_keeps_to_does_not_exclude_it() -> None:
    strict = OPEN.tightened(zdr=True, no_training=True)
    assert exclusions(replace(FACTS, zdr=True, trains_on_prompts=False), strict) == ()


def test_a_policy_can_only_be_tightened() -> None:
    policy = OPEN.tightened(only=["a", "b"], ignore=["x"], zdr=True)
    tighter = policy.tightened(only=["B", "c"], ignore=["Y"], no_training=True)
    assert tighter == Policy(
        only=frozenset({"b"}), ignore=frozenset({"x", "y"}), zdr=True, no_training=True
    )
    assert policy == Policy(only=frozenset({"a", "b"}), ignore=frozenset({"x"}), zdr=True)
    assert tighter.tightened() == tighter
    assert policy.tightened(only=["z"]).only == frozenset()
