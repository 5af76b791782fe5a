#!/usr/bin/env bash
# outlines-core: a number with an exponent needs a sign
#
# Software: outlines-core 0.2.14 (PyPI), which makes regular expressions of JSON schemas
# Guess:    {"type": "number"} lets a model write every JSON number.
# Seen:     1e+5 and 1e-5 are numbers, 1e5 is none: the sign that JSON leaves optional is demanded.
# Matters:  A value that is valid JSON, and that another engine writes, cannot be written here: an
#           enumeration of examples in the prompt (1e5) and the answer (100000) then differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from outlines_core.json_schema import build_regex_from_schema

pattern = re.compile(build_regex_from_schema(json.dumps({"type": "number"})))
seen = {text: bool(pattern.fullmatch(text)) for text in ("1", "1e5", "1E5", "1e+5", "1e-5")}
print(seen)
assert seen == {"1": True, "1e5": False, "1E5": False, "1e+5": True, "1e-5": True}
PYTHON
