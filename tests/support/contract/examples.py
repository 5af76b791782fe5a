"""Generates values that fit a schema of the OpenAPI document."""

from __future__ import annotations

import math
import string
from typing import Any, Final

from hypothesis import strategies

Strategy = strategies.SearchStrategy[Any]
_DEPTH: Final = 3
_ALPHABET: Final = string.ascii_letters + string.digits + " äß€😀"
_TEXT: Final = strategies.text(_ALPHABET, max_size=12)
_ANY: Final = strategies.one_of(
    strategies.none(),
    strategies.booleans(),
    strategies.integers(-9, 9),
    _TEXT,
    strategies.dictionaries(_TEXT, strategies.integers(0, 9), max_size=2),
)


def values(schema: dict[str, Any], document: dict[str, Any], depth: int = 0) -> Strategy:
    """Returns a strategy for values of a schema; deep ones have no optional members."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return values(document["components"]["schemas"][name], document, depth)
    if "allOf" in schema:
        # A reference that has a description of its own.
        [reference] = schema["allOf"]
        return values(reference, document, depth)
    if "const" in schema:
        return strategies.just(schema["const"])
    if "enum" in schema:
        return strategies.sampled_from(schema["enum"])
    if "anyOf" in schema or "oneOf" in schema:
        options = schema.get("anyOf") or schema["oneOf"]
        return strategies.one_of([values(option, document, depth) for option in options])
    match schema.get("type"):
        case "object":
            return _objects(schema, document, depth)
        case "array":
            least = schema.get("minItems", 0)
            most = min(schema.get("maxItems", 2), max(least, 0 if depth > _DEPTH else 2))
            items = values(schema.get("items", {}), document, depth + 1)
            return strategies.lists(items, min_size=least, max_size=most)
        case "string":
            return _texts(schema)
        case "integer":
            return strategies.integers(schema.get("minimum", -9), schema.get("maximum", 99))
        case "number":
            bounds = (schema.get("minimum", -9), schema.get("maximum", 99))
            return strategies.one_of(
                strategies.integers(math.ceil(bounds[0]), math.floor(bounds[1])),
                strategies.floats(*bounds, allow_nan=False, allow_infinity=False, width=32),
            )
        case "boolean":
            return strategies.booleans()
        case "null":
            return strategies.none()
        case None:
            return _ANY
    raise AssertionError(f"no strategy for {schema}")


def _objects(schema: dict[str, Any], document: dict[str, Any], depth: int) -> Strategy:
    required = set(schema.get("required", ()))
    properties = schema.get("properties", {})
    if not properties:
        inner = schema.get("additionalProperties")
        content = values(inner, document, depth + 1) if isinstance(inner, dict) and inner else _ANY
        names = schema.get("propertyNames", {})
        return strategies.dictionaries(_texts(names), content, max_size=2)
    members = {name: values(each, document, depth + 1) for name, each in properties.items()
               if name in required or depth <= _DEPTH}  # fmt: skip
    return strategies.fixed_dictionaries(
        {name: each for name, each in members.items() if name in required},
        optional={name: each for name, each in members.items() if name not in required},
    )


def _texts(schema: dict[str, Any]) -> Strategy:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 12)
    excluded = schema.get("not", {}).get("enum", ())
    if pattern := schema.get("pattern"):
        found = strategies.from_regex(pattern.replace("$", r"\Z"), alphabet=strategies.characters(
            codec="ascii")).filter(lambda text: least <= len(text) <= most)  # fmt: skip
    else:
        found = strategies.text(_ALPHABET, min_size=least, max_size=min(most, 12))
    return found.filter(lambda text: text not in excluded) if excluded else found
