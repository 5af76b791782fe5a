"""Filter rules of broadcast destinations: their check, and which generations they let pass; pure.

A generation passes if it matches any of the groups. Within a group, all rules must match
(``"logic": "and"``, the default) or any of them (``"or"``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

from accounts.patterns import InvalidPattern, compile_budgets, compile_pattern
from config.api.text import NOT_STORABLE

Value: TypeAlias = str | int | Decimal | None
Facts: TypeAlias = Mapping[str, Value]
Test: TypeAlias = Callable[[Facts], bool]

TEXTS: Final = frozenset(
    ["model", "provider", "session_id", "user_id", "api_key_name", "finish_reason"]
)
NUMBERS: Final = frozenset(["total_cost", "total_tokens", "prompt_tokens", "completion_tokens"])
# Fields of the interface whose values never leave this service.
_CONTENT: Final = frozenset(["input", "output"])
_PRESENCE: Final[Mapping[str, Callable[[Value], bool]]] = {
    "exists": lambda actual: actual is not None,
    "not_exists": lambda actual: actual is None,
}
_OF_TEXT: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "equals": lambda actual, value: actual == value,
    "not_equals": lambda actual, value: actual != value,
    "contains": lambda actual, value: value in actual,
    "not_contains": lambda actual, value: value not in actual,
    "starts_with": lambda actual, value: actual.startswith(value),
    "ends_with": lambda actual, value: actual.endswith(value),
}
_OF_NUMBER: Final[Mapping[str, Callable[[Decimal, Decimal], bool]]] = {
    "equals": lambda actual, value: actual == value,
    "not_equals": lambda actual, value: actual != value,
    "gt": lambda actual, value: actual > value,
    "lt": lambda actual, value: actual < value,
    "gte": lambda actual, value: actual >= value,
    "lte": lambda actual, value: actual <= value,
}
OPERATORS: Final = ("regex", *dict.fromkeys((*_OF_TEXT, *_OF_NUMBER, *_PRESENCE)))
# An absent value matches only these.
_NEGATIONS: Final = frozenset(["not_equals", "not_contains", "not_exists"])
_LOGICS: Final[Mapping[str, Callable[[Sequence[bool]], bool]]] = {"and": all, "or": any}
_MAX_GROUPS: Final = 20
_MAX_RULES: Final = 20
_MAX_EXPRESSIONS: Final = 20
_MAX_TEXT: Final = 512


class InvalidMember(ValueError):
    """A member of an object is not valid: ``path`` names it, and ``why`` says what it must be."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path
        self.why = why


class InvalidRules(InvalidMember):
    """A rule is not valid."""


def check_rules(data: Any, owner: Hashable = None) -> dict[str, Any]:
    """Returns filter rules as they are stored; raises :class:`InvalidRules`.

    ``owner`` is the organization whose budget compiles their regular expressions.
    """
    _require_members("", data, {"enabled", "groups"}, required="groups")
    is_enabled = data.get("enabled", True)
    if not isinstance(is_enabled, bool):
        raise InvalidRules("enabled", "Must be true or false.")
    groups = _require_list("groups", data["groups"], _MAX_GROUPS, least=0)
    rules = {
        "enabled": is_enabled,
        "groups": [_check_group(f"groups[{n}]", group) for n, group in enumerate(groups)],
    }
    _check_expressions(rules, owner)
    return rules


def compile_rules(rules: Mapping[str, Any] | None) -> Test:
    """Returns the test of a generation's facts by stored rules; without rules, all pass."""
    if rules is None or not rules["enabled"] or not rules["groups"]:
        return lambda facts: True
    groups = [
        (_LOGICS[group["logic"]], [_compile_rule(rule) for rule in group["rules"]])
        for group in rules["groups"]
    ]
    return lambda facts: any(combine([test(facts) for test in tests]) for combine, tests in groups)


def find_expressions(rules: Mapping[str, Any]) -> dict[str, str]:
    """Returns the regular expressions of checked rules by their paths."""
    return {
        f"groups[{n}].rules[{m}].value": rule["value"]
        for n, group in enumerate(rules["groups"])
        for m, rule in enumerate(group["rules"])
        if rule["operator"] == "regex"
    }


def _check_group(path: str, group: Any) -> dict[str, Any]:
    _require_members(path, group, {"logic", "rules"}, required="rules")
    logic = group.get("logic", "and")
    if not isinstance(logic, str) or logic not in _LOGICS:
        raise InvalidRules(f"{path}.logic", f"Must be one of: {', '.join(_LOGICS)}.")
    rules = _require_list(f"{path}.rules", group["rules"], _MAX_RULES, least=1)
    checked = [_check_rule(f"{path}.rules[{n}]", rule) for n, rule in enumerate(rules)]
    return {"logic": logic, "rules": checked}


def _check_rule(path: str, rule: Any) -> dict[str, Any]:
    _require_members(path, rule, {"field", "operator", "value"}, required="field")
    field, operator = rule["field"], rule.get("operator")
    if isinstance(field, str) and field in _CONTENT:
        raise InvalidRules(
            f"{path}.field", "Texts are not broadcast, so no rule can read them. Leave it out."
        )
    if not isinstance(field, str) or field not in TEXTS | NUMBERS:
        names = ", ".join(sorted(TEXTS | NUMBERS))
        raise InvalidRules(f"{path}.field", f"Must be one of: {names}.")
    allowed = (*_OF_NUMBER, *_PRESENCE) if field in NUMBERS else ("regex", *_OF_TEXT, *_PRESENCE)
    if not isinstance(operator, str) or operator not in allowed:
        raise InvalidRules(
            f"{path}.operator", f"Must be one of these for {field}: {', '.join(allowed)}."
        )
    if operator in _PRESENCE:
        if rule.get("value") is not None:
            raise InvalidRules(f"{path}.value", f"{operator} takes no value.")
        return {"field": field, "operator": operator}
    value = _check_value(f"{path}.value", field, operator, rule.get("value"))
    return {"field": field, "operator": operator, "value": value}


def _check_value(path: str, field: str, operator: str, value: Any) -> Any:
    if field in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise InvalidRules(path, "Must be a number.")
        try:
            number = float(value)
        except OverflowError:  # an integer of more than 308 digits
            number = math.inf
        if not abs(number) <= 10**15:
            raise InvalidRules(path, "Must be a number of at most 15 digits.")
        return int(number) if number.is_integer() else number
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_TEXT or NOT_STORABLE.search(value):
        raise InvalidRules(path, f"Must be a string of 1 to {_MAX_TEXT} characters.")
    return value


def _check_expressions(rules: Mapping[str, Any], owner: Hashable) -> None:
    """Compiles the regular expressions of checked rules; raises :class:`InvalidRules`."""
    found = find_expressions(rules)
    if len(found) > _MAX_EXPRESSIONS:
        raise InvalidRules(
            [*found][_MAX_EXPRESSIONS],
            f"A destination may have {_MAX_EXPRESSIONS} rules with regex. Use other operators.",
        )
    try:
        compile_budgets.compile(owner, found.values())
    except InvalidPattern as exc:
        why, index = exc.args
        raise InvalidRules([*found][index], why) from None


def _compile_rule(rule: Mapping[str, Any]) -> Test:
    field, operator = rule["field"], rule["operator"]
    if operator in _PRESENCE:
        is_present = _PRESENCE[operator]
        return lambda facts: is_present(facts[field])
    compare: Callable[[Any], bool]
    if operator == "regex":
        pattern = compile_pattern(rule["value"])
        compare = lambda actual: pattern.search(actual.encode()) is not None  # noqa: E731
    elif field in NUMBERS:
        number, of_number = Decimal(str(rule["value"])), _OF_NUMBER[operator]
        compare = lambda actual: of_number(Decimal(actual), number)  # noqa: E731
    else:
        text, of_text = rule["value"], _OF_TEXT[operator]
        compare = lambda actual: of_text(actual, text)  # noqa: E731
    absent = operator in _NEGATIONS
    return lambda facts: absent if facts[field] is None else compare(facts[field])


def _require_members(path: str, data: Any, known: set[str], *, required: str) -> None:
    if not isinstance(data, Mapping):
        raise InvalidRules(path, "Must be a JSON object.")
    for name in data:
        if name not in known:
            raise InvalidRules(f"{path}.{name[:100]}".lstrip("."), "Unknown field.")
    if required not in data:
        raise InvalidRules(f"{path}.{required}".lstrip("."), "This field is required.")


def _require_list(path: str, data: Any, most: int, *, least: int) -> Sequence[Any]:
    if not isinstance(data, list) or not least <= len(data) <= most:
        raise InvalidRules(path, f"Must be a list of {least} to {most} entries.")
    return data
