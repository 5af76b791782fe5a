#!/usr/bin/env bash
# outlines-core: a date-time may lack its zone, but must not have an offset or a fraction
#
# Software: outlines-core 0.2.14, llguidance 1.9.1 (PyPI)
# Guess:    "format": "date-time" is the date-time of RFC 3339, as JSON Schema says: a zone is
#           needed, and +01:00 is one.
# Seen:     outlines-core allows Z or nothing after whole seconds: 2026-11-28T09:00:00, which is not
#           valid, can be written, +01:00 and .5Z cannot. llguidance allows what the RFC does.
# Matters:  A model that was told 9 o'clock in Berlin can only write a time without a zone or claim
#           UTC, and a strict reader refuses the first.
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

SCHEMA = json.dumps({"type": "string", "format": "date-time"})
BYTES = LLTokenizer("byte")


def llguidance(text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(SCHEMA))
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.try_consume_tokens([byte]) for byte in text.encode()) and (
        matcher.is_accepting()
    )


pattern = re.compile(build_regex_from_schema(SCHEMA))
seen = {}
for zone in ("Z", "+01:00", ".5Z", ""):
    text = f'"2026-11-28T09:00:00{zone}"'
    seen[zone] = (bool(pattern.fullmatch(text)), llguidance(text))
    print(text, dict(zip(("outlines-core", "llguidance"), seen[zone])))
assert seen == {
    "Z": (True, True), "+01:00": (False, True), ".5Z": (False, True), "": (True, False)
}, seen
PYTHON
