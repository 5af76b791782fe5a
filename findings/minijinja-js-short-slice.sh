#!/usr/bin/env bash
# minijinja-js: the last ten of two messages are none
#
# Software: minijinja-js 2.11.0 (npm), against minijinja 3.1.0 (PyPI), the same engine in Python
# Guess:    A slice that begins before the first item begins at the first item, as in Python and
#           Jinja2, so `messages[-10:]` is all of a short conversation.
# Seen:     It is empty in JavaScript while there are fewer than ten messages, without an error,
#           and whole in Python. Slices that begin within the list agree.
# Matters:  A template that keeps the end of a long conversation sends an empty prompt at its
#           beginning, and only there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check minijinja==3.1.0
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund minijinja-js@2.11.0
cat >cases.json <<'JSON'
{"context": {"messages": [{"role": "user"}, {"role": "assistant"}]},
 "templates": ["{% for m in messages[-10:] %}<{{ m.role }}>{% endfor %}",
               "{% for m in messages[-2:] %}<{{ m.role }}>{% endfor %}",
               "{% for m in messages[:10] %}<{{ m.role }}>{% endfor %}"]}
JSON
cat >first.py <<'PYTHON'
import json

import minijinja

cases = json.load(open("cases.json"))
for source in cases["templates"]:
    print("'" + minijinja.Environment().render_str(source, **cases["context"]) + "'")
PYTHON
cat >second.mjs <<'JAVASCRIPT'
import fs from 'node:fs';
import * as minijinja from 'minijinja-js/dist/node/minijinja_js.js';

const cases = JSON.parse(fs.readFileSync('cases.json', 'utf8'));
for (const source of cases.templates) {
  console.log("'" + new minijinja.Environment().renderStr(source, cases.context) + "'");
}
JAVASCRIPT
venv/bin/python first.py >first.txt
node second.mjs >second.txt
echo "Python:" && cat first.txt
echo "JavaScript:" && cat second.txt
diff first.txt - <<'TEXT'
'<user><assistant>'
'<user><assistant>'
'<user><assistant>'
TEXT
diff second.txt - <<'TEXT'
''
'<user><assistant>'
'<user><assistant>'
TEXT
