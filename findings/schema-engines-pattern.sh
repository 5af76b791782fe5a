#!/usr/bin/env bash
# One pattern, three engines: whether it must match the whole string
#
# Software: outlines-core 0.2.14, llguidance 1.9.1, lm-format-enforcer 0.11.3 (PyPI)
# Guess:    A JSON Schema pattern is searched, so "ab" allows "xaby"; engines for structured output
#           agree.
# Seen:     llguidance searches; outlines-core and lm-format-enforcer take the same pattern as
#           anchored at both ends.
# Matters:  The same response_format gives other strings at two servers of one model; write ^…$ or
#           .* when a schema goes to more than one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 llguidance==1.9.1 lm-format-enforcer==0.11.3
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from llguidance import LLMatcher, LLTokenizer
from lmformatenforcer import JsonSchemaParser
from outlines_core.json_schema import build_regex_from_schema

SCHEMA = {"type": "string", "pattern": "ab"}
TEXT = '"xaby"'


def outlines() -> bool:
    return bool(re.fullmatch(build_regex_from_schema(json.dumps(SCHEMA)), TEXT))


def llguidance() -> bool:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    return matcher.try_consume_tokens(list(TEXT.encode())) == len(TEXT) and matcher.is_accepting()


def enforcer() -> bool:
    parser = JsonSchemaParser(SCHEMA)
    for character in TEXT:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


seen = {"outlines-core": outlines(), "llguidance": llguidance(), "lm-format-enforcer": enforcer()}
print(seen)
assert seen == {"outlines-core": False, "llguidance": True, "lm-format-enforcer": False}
PYTHON
