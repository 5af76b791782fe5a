#!/usr/bin/env bash
# outlines-core: allOf beside properties has no effect, and what it demands is refused
#
# Software: outlines-core 0.2.14 (PyPI)
# Guess:    properties and allOf of one object hold together, as JSON Schema says, or the schema is
#           refused.
# Seen:     The allOf is passed over without a word: the object without its required member is the
#           only one that can be written, and the valid one cannot.
# Matters:  Generators of schemas write inheritance in this form (a base in allOf, own members
#           beside it).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from outlines_core.json_schema import build_regex_from_schema

own = {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]}
more = {"properties": {"size": {"type": "integer"}}, "required": ["size"]}


def accepts(schema: object, text: str) -> bool:
    return bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), text))


both = {**own, "allOf": [more]}
seen = [accepts(both, '{"kind": "a"}'), accepts(both, '{"kind": "a", "size": 1}')]
print("allOf beside properties: without size, with size:", seen)
assert seen == [True, False]
PYTHON
