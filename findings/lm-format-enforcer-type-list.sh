#!/usr/bin/env bash
# lm-format-enforcer: what may also be null may also be anything of its type
#
# Software: lm-format-enforcer 0.11.3 (PyPI), against llguidance 1.9.1
# Guess:    {"type": ["string", "null"], "maxLength": 2} bounds the text as {"type": "string",
#           "maxLength": 2} does, and allows null beside it.
# Seen:     With a list of types pattern, maxLength, items and required are dropped without a word:
#           an object lacks its required member, a list of integers holds a text. With one type they
#           are kept; llguidance keeps them with both.
# Matters:  A usual spelling of an optional member takes its rules away at this engine. anyOf with
#           null keeps them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    lm-format-enforcer==0.11.3 llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json

from llguidance import LLMatcher, LLTokenizer
from lmformatenforcer import JsonSchemaParser


def enforcer(schema: dict, text: str) -> bool:
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def llguidance(schema: dict, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


number = {"type": "integer"}
CASES = [("string", {"maxLength": 2}, '"abc"'), ("string", {"pattern": "^a$"}, '"b"'),
         ("array", {"items": number}, '["a"]'),
         ("object", {"properties": {"sum": number}, "required": ["sum"]}, "{}")]
for kind, rules, invalid in CASES:
    one, two = {"type": kind, **rules}, {"type": [kind, "null"], **rules}
    either = {"anyOf": [one, {"type": "null"}]}
    seen = {engine.__name__: [engine(schema, invalid) for schema in (one, two, either)]
            for engine in (enforcer, llguidance)}
    print(json.dumps(rules), invalid, "taken with one type, two, anyOf:", seen)
    assert enforcer(two, "null") and llguidance(two, "null") and enforcer(either, "null")
    assert seen == {"enforcer": [False, True, False], "llguidance": [False] * 3}
PYTHON
