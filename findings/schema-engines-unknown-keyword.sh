#!/usr/bin/env bash
# What a schema engine does with a keyword that it cannot keep
#
# Software: outlines-core 0.2.14, llguidance 1.9.1 (PyPI)
# Guess:    An engine that promises valid JSON keeps a bound, or refuses the schema.
# Seen:     outlines-core passes over maximum, multipleOf, uniqueItems, not and required names
#           without a property, and invalid answers pass; llguidance keeps three of them and refuses
#           the schema with the other two.
# Matters:  "strict" structured output of a server says nothing about numbers until its engine is
#           known.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema

CASES = {
    "maximum": ({"type": "integer", "maximum": 9}, "12"),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "7"),
    "uniqueItems": ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True}, "[1,1]"),
    "not": ({"type": "string", "not": {"const": "a"}}, '"a"'),
    "required": ({"type": "object", "properties": {}, "required": ["c"]}, "{}"),
}


def outlines(schema: object, text: str) -> str:
    matched = re.fullmatch(build_regex_from_schema(json.dumps(schema)), text)
    return "passes" if matched else "refuses the text"


def llguidance(schema: object, text: str) -> str:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    if matcher.get_error():
        return "refuses the schema"
    whole = matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()
    return "passes" if whole else "refuses the text"


seen = {name: (outlines(*case), llguidance(*case)) for name, case in CASES.items()}
for name, answers in seen.items():
    print(f"{name}: outlines-core {answers[0]}, llguidance {answers[1]}")
assert seen == {
    "maximum": ("passes", "refuses the text"),
    "multipleOf": ("passes", "refuses the text"),
    "uniqueItems": ("passes", "refuses the schema"),
    "not": ("passes", "refuses the schema"),
    "required": ("passes", "refuses the text"),
}, seen
PYTHON
