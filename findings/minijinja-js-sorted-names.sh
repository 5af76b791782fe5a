#!/usr/bin/env bash
# minijinja-js: names come in the order of the alphabet, so a tool's schema is another text
#
# Software: minijinja-js 2.11.0 (npm), against minijinja 3.1.0 (PyPI), the same engine in Python
# Guess:    `tojson` and a loop over an object keep the order in which its names were sent.
# Seen:     So it is in Python; in JavaScript they are sorted: {"type": …, "properties": …} becomes
#           {"properties":…,"type":…}, without the spaces, and the members of a loop change places.
# Matters:  The prompt of one template and one request differs between the two: what a server has
#           cached for one spelling is no prefix of the other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check minijinja==3.1.0
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund minijinja-js@2.11.0
cat >cases.json <<'JSON'
{"context": {"schema": {"type": "object", "properties": {"unit": {}, "city": {}}}},
 "templates": ["{{ schema|tojson }}",
               "{% for name in schema.properties %}{{ name }} {% endfor %}"]}
JSON
cat >first.py <<'PYTHON'
import json

import minijinja

cases = json.load(open("cases.json"))
for source in cases["templates"]:
    print(minijinja.Environment().render_str(source, **cases["context"]).strip())
PYTHON
cat >second.mjs <<'JAVASCRIPT'
import fs from 'node:fs';
import * as minijinja from 'minijinja-js/dist/node/minijinja_js.js';

const cases = JSON.parse(fs.readFileSync('cases.json', 'utf8'));
for (const source of cases.templates) {
  console.log(new minijinja.Environment().renderStr(source, cases.context).trim());
}
JAVASCRIPT
venv/bin/python first.py >first.txt
node second.mjs >second.txt
echo "Python:" && cat first.txt
echo "JavaScript:" && cat second.txt
diff first.txt - <<'TEXT'
{"type": "object", "properties": {"unit": {}, "city": {}}}
unit city
TEXT
diff second.txt - <<'TEXT'
{"properties":{"city":{},"unit":{}},"type":"object"}
city unit
TEXT
