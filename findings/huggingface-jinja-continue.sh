#!/usr/bin/env bash
# @huggingface/jinja: what a turn has written before `continue` or `break` is lost
#
# Software: @huggingface/jinja 0.5.11 (npm), against Jinja2 3.1.6 (PyPI) set as transformers sets
#           it
# Guess:    Loop controls stop the rest of a turn, as in Jinja2 with the extension that
#           transformers turns on for chat templates. What stands before them is written.
# Seen:     The text that the same turn wrote before `continue` or `break` is gone, without an
#           error. Turns without them are whole.
# Matters:  A template that closes a message and goes on loses that message: the model never sees
#           it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11
cat >cases.json <<'JSON'
{"context": {"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]},
 "templates": [
  "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'tool' %}</tool>{% continue %}{% endif %}</>{% endfor %}",
  "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'tool' %}</tool>{% break %}{% endif %}</>{% endfor %}"
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
'<user>a</><tool>b</tool>'
'<user>a</><tool>b</tool>'
TEXT
diff second.txt - <<'TEXT'
'<user>a</>'
'<user>a</>'
TEXT
