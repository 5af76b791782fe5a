#!/usr/bin/env bash
# llguidance: at most 0.15 allows 0.10 and 0.149, but not 0.1
#
# Software: llguidance 1.9.1 (PyPI)
# Guess:    "maximum": 0.15 allows every number up to 0.15, however it is written.
# Seen:     A decimal with which the maximum begins is refused: 0.1 below 0.15 and 2.2 below 2.25
#           cannot be written, 0.10 and 2.20 can. The maximum itself must be written without a zero
#           at its end: 0.150 is refused.
# Matters:  A model that means 0.1 must go on with a digit, which may as well be a 4: the number
#           that comes out is another one, and it is valid.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json

from llguidance import LLMatcher, LLTokenizer


def writes(schema: dict, text: str) -> bool:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


CASES = {0.15: ("0", "0.0", "0.05", "0.1", "0.10", "0.149", "0.15", "0.150", "0.16"),
         2.25: ("1", "2", "2.0", "2.1", "2.2", "2.20", "2.24", "2.25", "2.250", "2.26")}
for maximum, numbers in CASES.items():
    schema = {"type": "number", "minimum": 0, "maximum": maximum}
    valid = {number for number in numbers if 0 <= float(number) <= maximum}
    seen = {number for number in numbers if writes(schema, number)}
    print(maximum, "valid but refused:", sorted(valid - seen), "invalid but taken:", seen - valid)
    assert not seen - valid
    assert valid - seen == ({"0.1", "0.150"} if maximum == 0.15 else {"2.2", "2.250"})
PYTHON
