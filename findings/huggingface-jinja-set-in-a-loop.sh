#!/usr/bin/env bash
# @huggingface/jinja: what one turn of a loop has set, the next turn reads
#
# Software: @huggingface/jinja 0.5.11 (npm), against Jinja2 3.1.6 (PyPI) set as transformers sets
#           it
# Guess:    A name that is set inside a loop ends with its turn, as in Jinja2.
# Seen:     The name keeps its value until the loop ends: a counter counts up, and an assistant's
#           turn without text (null beside tool calls) repeats what the user said.
# Matters:  The model reads a user's words as its own. Nothing fails, and the first message is
#           right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11
cat >cases.json <<'JSON'
{"context": {"messages": [{"role": "user", "content": "Delete it."},
   {"role": "assistant", "content": null}, {"role": "tool", "content": "done"}]},
 "templates": [
  "{% for m in messages %}{% if m.content %}{% set text = m.content %}{% endif %}{{ m.role }}: {{ text }};{% endfor %}",
  "{% set n = 0 %}{% for m in messages %}{% set n = n + 1 %}{{ n }},{% endfor %}{{ n }}"
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
'user: Delete it.;assistant: ;tool: done;'
'1,1,1,0'
TEXT
diff second.txt - <<'TEXT'
'user: Delete it.;assistant: Delete it.;tool: done;'
'1,2,3,0'
TEXT
