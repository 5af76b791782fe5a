#!/usr/bin/env bash
# @huggingface/jinja: `~` and `join` write an object as [object Map]
#
# Software: @huggingface/jinja 0.5.11 (npm), against Jinja2 3.1.6 (PyPI) set as transformers sets
#           it
# Guess:    `~` turns both sides into text and joins them, so `'Call: ' ~ call.arguments` writes
#           the arguments as `{{ call.arguments }}` does.
# Seen:     `~` and `join` write "[object Map]", and a list without its brackets; `{{ }}` alone
#           writes JSON. Of null `join` writes nothing, and `~` fails, where Jinja2 writes None.
# Matters:  The model reads [object Map] where its tool's arguments stood. `|tojson` before `~`
#           gives the same text in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11
cat >cases.json <<'JSON'
{"context": {"c": {"arguments": {"city": "Rome"}, "parts": ["a", "b"]}},
 "templates": [
  "Call: {{ c.arguments }}",
  "{{ 'Call: ' ~ c.arguments }}",
  "{{ 'Parts: ' ~ c.parts }}",
  "{{ [c.arguments, none, 1]|join(', ') }}",
  "{{ 'Call: ' ~ c.arguments|tojson }}"
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
"Call: {'city': 'Rome'}"
"Call: {'city': 'Rome'}"
"Parts: ['a', 'b']"
"{'city': 'Rome'}, None, 1"
'Call: {"city": "Rome"}'
TEXT
diff second.txt - <<'TEXT'
'Call: {"city": "Rome"}'
'Call: [object Map]'
'Parts: a,b'
'[object Map], , 1'
'Call: {"city": "Rome"}'
TEXT
