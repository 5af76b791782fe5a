"""Filter rules of broadcast destinations."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from accounts.destinations.rules import InvalidRules, check_rules, compile_rules
from accounts.patterns import compiled

FACTS: dict[str, Any] = {
    "model": "acme/falcon-9",
    "provider": "acme",
    "session_id": None,
    "user_id": "ada",
    "api_key_name": "CI",
    "finish_reason": "stop",
    "total_cost": Decimal("0.015"),
    "total_tokens": 120,
    "prompt_tokens": 100,
    "completion_tokens": None,
}


def rule(field: str, operator: str, *value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, **({"value": value[0]} if value else {})}


def passes(*groups: Any, enabled: bool = True) -> bool:
    return compile_rules(check_rules({"enabled": enabled, "groups": list(groups)}))(FACTS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (rule("model", "equals", "acme/falcon-9"), True),
        (rule("model", "equals", "acme"), False),
        (rule("model", "not_equals", "acme"), True),
        (rule("model", "contains", "falcon"), True),
        (rule("model", "not_contains", "falcon"), False),
        (rule("model", "starts_with", "acme/"), True),
        (rule("model", "ends_with", "-9"), True),
        (rule("model", "regex", "^acme/.*[0-9]$"), True),
        (rule("model", "regex", "^falcon"), False),
        (rule("total_cost", "equals", 0.015), True),
        (rule("total_cost", "gt", Decimal("0.0149999")), True),
        (rule("total_cost", "gt", 0.015), False),
        (rule("total_cost", "gte", 0.015), True),
        (rule("total_cost", "lt", 1), True),
        (rule("total_tokens", "lte", 119), False),
        (rule("total_tokens", "not_equals", 120), False),
        (rule("session_id", "exists"), False),
        (rule("session_id", "not_exists"), True),
        (rule("user_id", "exists"), True),
        # A value that is absent equals nothing and is no number.
        (rule("session_id", "equals", "s"), False),
        (rule("session_id", "not_equals", "s"), True),
        (rule("session_id", "not_contains", "s"), True),
        (rule("session_id", "regex", "."), False),
        (rule("completion_tokens", "lt", 10), False),
        (rule("completion_tokens", "not_equals", 10), True),
    ],
)
def test_a_rule(given: dict[str, Any], expected: bool) -> None:
    assert passes({"rules": [given]}) is expected


def test_groups() -> None:
    yes, no = rule("provider", "equals", "acme"), rule("provider", "equals", "other")
    assert passes()
    assert not passes({"rules": [yes, no]})
    assert passes({"rules": [yes, no], "logic": "or"})
    assert not passes({"rules": [no, no], "logic": "or"})
    assert passes({"rules": [no]}, {"rules": [yes]})
    assert not passes({"rules": [no]}, {"rules": [no]})
    assert passes({"rules": [no]}, enabled=False)
    assert compile_rules(None)(FACTS)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**400, id="400 digits"),
        pytest.param(-(10**400), id="minus and 400 digits"),
        *(10**15 + 1, Decimal("1e400"), Decimal("NaN"), float("inf"), True, "1"),
    ],
)
def test_a_number_of_a_rule_is_one_of_at_most_15_digits(value: Any) -> None:
    with pytest.raises(InvalidRules, match=r"groups\[0\].rules\[0\].value: Must be a number"):
        passes({"rules": [rule("total_cost", "gt", value)]})


def test_a_destination_has_few_regular_expressions() -> None:
    rules = [rule("model", "regex", f"m{number}") for number in range(20)]
    assert check_rules({"groups": [{"rules": rules}]})["groups"][0]["rules"] == rules
    more = {"groups": [{"rules": rules}, {"rules": [rule("user_id", "regex", "never-compiled")]}]}
    with pytest.raises(InvalidRules) as caught:
        check_rules(more)
    assert caught.value.path == "groups[1].rules[0].value"
    assert "20 rules with regex" in caught.value.why
    assert compiled.find("never-compiled") is None
