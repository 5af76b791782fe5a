#!/usr/bin/env bash
# @huggingface/jinja: strip, lstrip and rstrip do not look at their argument
#
# Software: @huggingface/jinja 0.5.11 (npm), against Jinja2 3.1.6 (PyPI) set as transformers sets
#           it
# Guess:    `.lstrip('\n')` on what follows </think> takes line feeds away and leaves an
#           indentation alone.
# Seen:     All white space goes, whatever the argument says; and characters that it names, but
#           that are no white space, stay.
# Matters:  Indented code at the head of an earlier answer loses its indentation, and the prompt is
#           not the one that Jinja2 makes of the same template.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11
cat >cases.json <<'JSON'
{"context": {"m": "<think>\nhm\n</think>\n\n    return 1"},
 "templates": [
  "{{ m.split('</think>')[-1].lstrip('\\n') }}",
  "[{{ ' x \\n'.rstrip('\\n') }}]",
  "{{ '**a**'.strip('*') }}"
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
'    return 1'
'[ x ]'
'a'
TEXT
diff second.txt - <<'TEXT'
'return 1'
'[ x]'
'**a**'
TEXT
