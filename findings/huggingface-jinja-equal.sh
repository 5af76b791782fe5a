#!/usr/bin/env bash
# @huggingface/jinja: == is JavaScript's: 1 is '1', a missing value is none, [] is not []
#
# Software: @huggingface/jinja 0.5.11 (npm), against Jinja2 3.1.6 (PyPI) set as transformers sets
#           it
# Guess:    == compares as Python does: a text is no number, a missing value is not none, and two
#           equal lists are equal.
# Seen:     A text equals the number that it spells, '' equals false and 0, a missing member equals
#           none; two lists or objects that hold the same are never equal, so `tools == []` is
#           false of an empty list.
# Matters:  Templates branch the other way: a header for tools is written where there are none, and
#           a default of `x == none` is taken for a member that was never sent.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11
cat >cases.json <<'JSON'
{"context": {"tools": []},
 "templates": [
  "{{ 'yes' if tools == [] else 'no' }}",
  "{{ 'yes' if 1 == '1' else 'no' }}",
  "{{ 'yes' if '' == false else 'no' }}",
  "{{ 'yes' if missing == none else 'no' }}",
  "{{ 'yes' if {'a': 1} == {'a': 1} else 'no' }}"
]}
JSON
cat >first.py <<'PYTHON'
import json

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# As transformers sets it for chat templates.
environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
)
cases = json.load(open("cases.json"))
for source in cases["templates"]:
    print(repr(environment.from_string(source).render(cases["context"])))
PYTHON
cat >second.mjs <<'JAVASCRIPT'
import fs from 'node:fs';
import { Template } from '@huggingface/jinja';

const cases = JSON.parse(fs.readFileSync('cases.json', 'utf8'));
for (const source of cases.templates) {
  const text = new Template(source).render(cases.context);
  console.log("'" + text.replaceAll('\n', '\\n') + "'");
}
JAVASCRIPT
venv/bin/python first.py >first.txt
node second.mjs >second.txt
echo "Jinja2:" && cat first.txt
echo "@huggingface/jinja:" && cat second.txt
diff first.txt - <<'TEXT'
'yes'
'no'
'no'
'no'
'yes'
TEXT
diff second.txt - <<'TEXT'
'no'
'yes'
'yes'
'yes'
'no'
TEXT
