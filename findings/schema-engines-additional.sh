#!/usr/bin/env bash
# Members that a schema does not name: one engine lets the model write them, two forbid them always
#
# Software: outlines-core 0.2.14, llguidance 1.9.1, lm-format-enforcer 0.11.3 (PyPI)
# Guess:    As JSON Schema says: further members are allowed unless additionalProperties is false;
#           {"type": "integer"} allows integers.
# Seen:     llguidance keeps to it: without the keyword it allows members that nobody named.
#           outlines-core and lm-format-enforcer forbid them beside `properties` even where the
#           schema says true or integer. Without `properties` the keyword works in all three.
# Matters:  The same schema gives extra members at one server, and an object that lost its free part
#           (labels, metadata) at another. Say false, or put the free part in an object of its own.
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
INTEGER = {"type": "integer"}
NAMED = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
TEXT = '{"a":1,"z":2}'
CASES: dict[str, tuple[dict[str, Any], list[bool]]] = {
    "none": (NAMED, [False, True, False]),
    "false": ({**NAMED, "additionalProperties": False}, [False, False, False]),
    "true": ({**NAMED, "additionalProperties": True}, [False, True, False]),
    "integer": ({**NAMED, "additionalProperties": INTEGER}, [False, True, False]),
    "integer, alone": ({"type": "object", "additionalProperties": INTEGER}, [True, True, True]),
}


def outlines(schema: dict[str, Any]) -> bool:
    return bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), TEXT))


def llguidance(schema: dict[str, Any]) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    taken = all(matcher.try_consume_tokens([byte]) for byte in TEXT.encode())
    return taken and matcher.is_accepting()


def enforcer(schema: dict[str, Any]) -> bool:
    parser: Any = JsonSchemaParser(schema)
    for character in TEXT:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return bool(parser.can_end())


for name, (schema, expected) in CASES.items():
    seen = [outlines(schema), llguidance(schema), enforcer(schema)]
    print(name.ljust(15), dict(zip(("outlines-core", "llguidance", "enforcer"), seen)))
    assert seen == expected, (name, seen)
PYTHON
