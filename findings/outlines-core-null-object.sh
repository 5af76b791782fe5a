#!/usr/bin/env bash
# outlines-core: an object that may be null must not be null
#
# Software: outlines-core 0.2.14 (PyPI), against llguidance 1.9.1
# Guess:    {"type": ["object", "null"], "properties": …} lets the model write null, as the same
#           list does for a text or an array.
# Seen:     null is refused as soon as there are properties. A text or an array that may be null can
#           be null, and so can the object if it is written as anyOf. llguidance writes null each
#           time.
# Matters:  Where there is nothing to report the model must invent an address, a refund or a person,
#           with all required members. Write anyOf instead of the list.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    outlines-core==0.2.14 llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema


def outlines(schema: str, text: str) -> bool:
    return bool(re.fullmatch(build_regex_from_schema(schema), text))


def llguidance(schema: str, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(schema))
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


sum_ = {"properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
SCHEMAS = {"object": {"type": ["object", "null"], **sum_},
           "bare object": {"type": ["object", "null"]},
           "anyOf": {"anyOf": [{"type": "object", **sum_}, {"type": "null"}]},
           "text": {"type": ["string", "null"], "maxLength": 9},
           "array": {"type": ["array", "null"], "items": {"type": "integer"}}}
seen = {}
for name, schema in SCHEMAS.items():
    whole = {"type": "object", "properties": {"refund": schema}, "required": ["refund"]}
    source = json.dumps(whole)
    seen[name] = outlines(source, '{"refund":null}'), llguidance(source, '{"refund":null}')
    print(name, "null: outlines-core", seen[name][0], "llguidance", seen[name][1])
assert outlines(json.dumps(SCHEMAS["object"]), '{"sum":1}')
assert seen.pop("object") == (False, True)
assert all(row == (True, True) for row in seen.values())
PYTHON
