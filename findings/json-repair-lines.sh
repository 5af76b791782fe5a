#!/usr/bin/env bash
# json-repair: of JSON lines of one shape only the last is kept
#
# Software: json-repair 0.64.6 (PyPI), used by agent frameworks for answers of models
# Guess:    Several objects, one a line, come back as a list.
# Seen:     Objects with different names become a list; an object that has the names of the one
#           before replaces it, so ten rows of a table become the last row.
# Matters:  Rows that a model lists as JSON lines vanish without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check json-repair==0.64.6
"$folder/venv/bin/python" - <<'PYTHON'
import json_repair

seen = {
    text: json_repair.loads(text)
    for text in ('{"a": 1}\n{"b": 2}', '{"a": 1}\n{"a": 2}', '{"a": 1}\n{"a": 2}\n{"b": 3}')
}
for text, value in seen.items():
    print(repr(text), "->", value)
assert list(seen.values()) == [
    [{"a": 1}, {"b": 2}],
    {"a": 2},
    [{"a": 2}, {"b": 3}],
], seen
PYTHON
