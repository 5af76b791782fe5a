#!/usr/bin/env bash
# lm-format-enforcer: a choice that may be null is refused, or an AttributeError
#
# Software: lm-format-enforcer 0.11.3, outlines-core 0.2.14, llguidance 1.9.1 (PyPI)
# Guess:    {"type": ["string", "null"], "enum": ["a", null]} is a plain way to say "a or null", and
#           const takes any value.
# Seen:     lm-format-enforcer raises for the enum, and for const null or false it raises an
#           AttributeError about `startswith` once the parser begins. As anyOf of an enum and
#           {"type": "null"} it works. The other two write null and false in each form.
# Matters:  A strict schema of an optional choice fails at a server with this engine, and works at
#           the next. A gateway may write the anyOf.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    outlines-core==0.2.14 llguidance==1.9.1 lm-format-enforcer==0.11.3
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from lmformatenforcer import JsonSchemaParser
from outlines_core.json_schema import build_regex_from_schema

BYTES = LLTokenizer("byte")
CASES: list[tuple[dict[str, Any], str, object]] = [
    ({"type": ["string", "null"], "enum": ["a", None]}, "null", "Exception"),
    ({"const": None}, "null", "AttributeError"),
    ({"const": False}, "false", "AttributeError"),
    ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, "null", True),
]


def outlines(schema: dict[str, Any], text: str) -> bool:
    return bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), text))


def llguidance(schema: dict[str, Any], text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    taken = all(matcher.try_consume_tokens([byte]) for byte in text.encode())
    return taken and matcher.is_accepting()


def enforcer(schema: dict[str, Any], text: str) -> object:
    try:
        parser: Any = JsonSchemaParser(schema)
        for character in text:
            if character not in parser.get_allowed_characters():
                return False
            parser = parser.add_character(character)
        return bool(parser.can_end())
    except Exception as exc:
        return type(exc).__name__


for schema, text, expected in CASES:
    seen = (outlines(schema, text), llguidance(schema, text), enforcer(schema, text))
    print(json.dumps(schema), text, dict(zip(("outlines-core", "llguidance", "enforcer"), seen)))
    assert seen == (True, True, expected), (schema, seen)
PYTHON
